"""Tests the partition of records without a key: drawn by the snapshot's shares, for each full batch."""

import time
from collections import Counter

import numpy
import pytest
from standin_sender import StandIn
from support import layout

from cyproducer import KafkaProducer

AVOID, FULL = 1, 255
BATCHES = 400


@pytest.fixture
def sender(short_tmp):
    """Yield a stand-in sender with one topic of four partitions."""
    with StandIn(short_tmp / f"s{time.monotonic_ns()}", {"t": 4}, sticky={"t": 2}) as standin:
        yield standin


@pytest.fixture
def drawn(sender):
    """Return ``drawn(shares, **settings)``: a Counter of the partitions to which full batches went."""

    def draw(shares, **settings):
        sender.linger_s = 3600  # a batch that goes out before it is full would follow the published partition
        with KafkaProducer(sender=sender.path, batch_size=1000, **settings) as producer:
            producer.send("t", b"first")
            producer.flush(20)
            with sender.snapshot.region.memory() as memory:
                at = layout.read(memory, "cyp_snapshot_header", 0, "leaders_offset")
                memory[at : at + len(shares)] = bytes(shares)
            futures = [producer.send("t", bytes(600)) for _ in range(BATCHES)]
            producer.flush(20)
            # The first two may go to the published partition or to an earlier draw.
            return Counter(future.result(20).partition for future in futures[2:])

    return draw


def test_full_batches_avoid_a_broker_that_does_not_answer(drawn):
    counts = drawn([AVOID, FULL, AVOID, FULL])
    assert set(counts) == {1, 3}
    assert min(counts.values()) > BATCHES // 4


def test_a_partition_is_drawn_according_to_its_share(drawn):
    counts = drawn([AVOID, FULL, AVOID, AVOID + 25])
    assert counts[1] > 5 * counts[3] > 0


@pytest.mark.parametrize("share", [0, AVOID])
def test_where_no_partition_is_better_any_is_drawn(drawn, share):
    assert min(drawn([share] * 4)[partition] for partition in range(4)) > BATCHES // 10


def test_a_partition_without_a_leader_is_not_drawn(drawn):
    assert set(drawn([0, AVOID, 0, 0])) == {1}


def test_without_adaptive_partitioning_all_that_have_a_leader_are_drawn_alike(drawn):
    counts = drawn([FULL, AVOID, 0, AVOID + 3], partitioner_adaptive_partitioning_enable=False)
    assert set(counts) == {0, 1, 3}
    assert min(counts.values()) > BATCHES // 5


def test_without_adaptive_partitioning_small_batches_do_not_follow_the_published_partition(sender):
    with KafkaProducer(sender=sender.path, linger_ms=0, partitioner_adaptive_partitioning_enable=False) as producer:
        used = set()
        until = time.monotonic() + 60
        while used != {0, 1, 2, 3} and time.monotonic() < until:
            used.add(producer.send("t", b"value").result(10).partition)
    assert used == {0, 1, 2, 3}


@pytest.mark.parametrize("array", [False, True])
def test_without_adaptive_partitioning_a_slow_partition_gets_no_more_than_the_others(sender, array):
    """Its batches become full, those of the others do not: that must not be in its favour (KIP-794)."""
    sender.linger_s = 0
    sender.slow = frozenset({1})
    counts = Counter()
    with KafkaProducer(sender=sender.path, batch_size=2000, partitioner_adaptive_partitioning_enable=False) as producer:
        producer.partitions_for("t")
        futures = []
        for _ in range(4000):
            if array:
                futures.append(producer.send_array("t", numpy.zeros(1, "V100")))
            else:
                futures.append(producer.send("t", bytes(100)))
            time.sleep(0.0005)  # so that the sender takes batches before they are full
        sender.slow = frozenset()
        producer.flush(20)
        for future in futures:
            result = future.result(20)
            counts[int(result.partition[0]) if array else result.partition] += 1
    assert counts[1] < 4000 * 0.4, counts
