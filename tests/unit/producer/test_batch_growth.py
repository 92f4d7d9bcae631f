"""Tests that a batch becomes larger than the default of batch_size while an earlier one of its partition waits."""

import os

import pytest
from standin_sender import FrontEnd, StandIn
from support.process import wait_until

from cyproducer import KafkaProducer, errors

FULL = 65_536 - 61
MIB = 1 << 20
LARGEST = MIB - 61


def send_backlog(sender: StandIn, producer: KafkaProducer, count: int, topic: str = "one") -> list[int]:
    """Send `count` records of 1 kB that wait in the sender. Return the bytes of their batches."""
    producer.partitions_for(topic)
    sender.chains.clear()
    sender.hold = True
    for _ in range(count):
        producer.send(topic, os.urandom(1000))
    sender.release()
    producer.flush(30)
    return [chain[4] for chain in sender.chains]


def marked(front_end: FrontEnd) -> int:
    """Return how many of the batches that the stand-in holds are marked as sent."""
    return sum(front_end.sent_words()[slot] > 0 for slot in list(front_end.waiting))


def test_a_batch_grows_up_to_the_largest_request_while_the_one_before_waits(sender):
    with KafkaProducer(sender=sender.path) as producer:
        sizes = send_backlog(sender, producer, 2500)
    assert FULL - 1100 < sizes[0] <= FULL, "nothing waited before it"
    assert LARGEST - 1100 < sizes[1] <= LARGEST
    assert sum(sizes) > 2_500_000
    assert len(sizes) == 4


@pytest.mark.parametrize(
    ("settings", "largest"),
    [
        ({"batch_size": 65_536}, FULL),
        ({"batch.size": "65536"}, FULL),
        ({"acks": 0, "enable_idempotence": False}, FULL),
        ({"max_request_size": 200_000}, 200_000 - 61),
        ({"buffer_memory": 4 * MIB}, 4 * MIB // 32),
    ],
    ids=str,
)
def test_what_limits_a_batch(sender, settings, largest):
    with KafkaProducer(sender=sender.path, **settings) as producer:
        sizes = send_backlog(sender, producer, 1500)
    assert largest - 1100 < max(sizes) <= largest


def test_a_batch_is_full_at_its_usual_size_when_the_one_before_was_sent(sender):
    sender.mark_sent = True
    with KafkaProducer(sender=sender.path) as producer:
        producer.partitions_for("one")
        sender.hold = True
        front_end = sender.front_ends[0]
        for batches in range(1, 4):
            while producer.metrics()["producer-metrics"]["batch-total"] < batches:
                producer.send("one", bytes(1000))
            wait_until(lambda wanted=batches: marked(front_end) == wanted, 30, "the mark of the batch")
        sender.release()
        producer.flush(30)
    assert len(sender.chains) >= 3
    assert max(chain[4] for chain in sender.chains) <= FULL


def test_records_without_a_key_reach_all_partitions_although_batches_grow(sender):
    """A partition has its turn for 64 KiB, as without growth, and its open batch goes on growing in its next turn."""
    with KafkaProducer(sender=sender.path, partitioner_adaptive_partitioning_enable=False) as producer:
        sizes = send_backlog(sender, producer, 3000, "t")
    found = [sum(chain[3] for chain in sender.chains if chain[1] == partition) for partition in range(4)]
    assert min(found) > 64
    assert max(sizes) > 2 * FULL


def test_a_batch_that_is_compressed_grows_when_the_time_for_it_is_known(sender):
    with KafkaProducer(sender=sender.path, compression_type="lz4") as producer:
        for _ in range(50):  # a machine that stops for a moment measures a long time
            if max(send_backlog(sender, producer, 2000)) > 2 * FULL:
                break
        assert 2 * FULL < max(chain[4] for chain in sender.chains) <= LARGEST


@pytest.mark.parametrize("error", [errors.RecordTooLargeError, errors.RequestTooLargeError])
def test_a_topic_or_broker_that_refuses_large_batches_gets_smaller_ones(sender, error):
    sender.too_large, sender.size_error = 300_000, error.code
    with KafkaProducer(sender=sender.path) as producer:
        producer.partitions_for("one")
        sender.hold = True
        futures = [producer.send("one", bytes(1000)) for _ in range(2500)]
        sender.release()
        producer.flush(30)
        assert {type(future.exception(0)) for future in futures} == {type(None), error}
        refused = min(chain[4] for chain in sender.chains if chain[4] > sender.too_large)
        sizes = send_backlog(sender, producer, 2500)
        assert max(sizes) <= refused // 2
        while max(sizes) > sender.too_large:
            sizes = send_backlog(sender, producer, 2500)
        assert max(sizes) > FULL
