"""Tests that the cost of a topic does not depend on the number of other topics: work is counted, not timed."""

import logging
import os
import select
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from standin_sender import StandIn
from support import layout
from support.front_end import PlainFrontEnd
from support.process import wait_until
from support.whole_engine import Engine

from cyproducer import KafkaProducer
from cyproducer.config.settings import Settings
from cyproducer.protocol.codec import decode_response, encode_response
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.sender.cluster.metadata import PARTITIONS_PER_ITERATION
from cyproducer.sender.engine.predecessor import PredecessorState

PARTITIONS = 4
INDEX_BYTES = 32_768 * 8
UNKNOWN_TOPIC = 3


def rows(leader: int) -> list[dict[str, Any]]:
    """Return the partitions of a topic in a metadata answer."""
    return [
        {
            "error_code": 0, "partition_index": index, "leader_id": leader, "leader_epoch": 1, "replica_nodes": [],
            "isr_nodes": [], "offline_replicas": [],
        }
        for index in range(PARTITIONS)
    ]  # fmt: skip


class CountingLoop:
    """An engine's loop that counts calls from the control plane."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._loop, name)
        if not callable(attribute):
            return attribute

        def counted(*values: Any) -> Any:
            self.calls[name] += 1
            return attribute(*values)

        return counted


class Sender:
    """An engine whose broker is the test: `answer` replaces the network. The topic "missing" does not exist."""

    def __init__(self) -> None:
        settings = Settings.parse(bootstrap_servers="127.0.0.1:1").sender_settings()
        self.engine = Engine(settings, logging.getLogger("engine"))
        self.metadata = self.engine._metadata
        self.loop = self.metadata._loop = CountingLoop(self.engine._loop)
        self.engine._connections.update()
        self.connection = self.engine._connections.get(-1)
        self.asked: list[str] = []

    def answer(self, nodes: Iterable[int] = (1,), leader: Callable[[str], int] = lambda name: 1) -> None:
        """Request and answer the wanted topics, and publish one loop iteration's share of them."""
        now_ms = self.engine._tasks.now_ms = time.monotonic_ns() // 1_000_000
        names = [item["name"] for item in self.engine._cluster.request_body(now_ms)["topics"]]
        self.asked += names
        body = {
            "brokers": [{"node_id": node, "host": "127.0.0.1", "port": node, "rack": None} for node in nodes],
            "cluster_id": "c",
            "controller_id": 1,
            "topics": [
                {"error_code": UNKNOWN_TOPIC, "name": name, "partitions": []}
                if name == "missing"
                else {"error_code": 0, "name": name, "partitions": rows(leader(name))}
                for name in names
            ],
        }
        payload = encode_response(ApiKey.METADATA, 12, 1, body)[4:]
        self.metadata._on_response(self.connection, 12, decode_response(ApiKey.METADATA, 12, payload)[1])
        self.metadata.publish()

    def begin(self, names: Iterable[str], attach_id: int = 0) -> None:
        """Request topics one after the other, each when the previous one is known."""
        for name in names:
            self.engine.want_topic(attach_id, name)
            self.answer()


@pytest.fixture
def sender() -> Iterator[Sender]:
    made = Sender()
    yield made
    made.engine.close()


def test_a_new_topic_is_asked_for_applied_and_published_alone(sender):
    sender.begin(f"topic-{index}" for index in range(300))
    assert len(sender.asked) == sender.metadata.rows_published == sender.loop.calls["set_leaders"] == 300
    assert sender.loop.calls["take_used_topics"] <= 1
    assert len(sender.engine._front_ends.snapshot.read()[3]) == 300


def test_a_want_for_a_known_topic_publishes_nothing_and_wakes_no_other_front_end(sender):
    sender.begin(["a", "b"])
    front_ends = [PlainFrontEnd(sender.engine, slots=256) for _ in range(3)]
    for front_end in front_ends:
        front_end.set_header(wants_snapshot=1)
    published = sender.metadata.rows_published
    for _ in range(50):
        sender.engine.want_topic(front_ends[1].attach_id, "a")
    assert sender.metadata.rows_published == published
    assert sender.metadata.waiters_woken == 1
    woken = select.select([front_end.wake_fd for front_end in front_ends], [], [], 0)[0]
    assert woken == [front_ends[1].wake_fd]
    for front_end in front_ends:
        front_end.close()


def test_topics_wake_only_the_front_ends_that_asked_for_them(sender):
    first, second = (PlainFrontEnd(sender.engine, slots=256) for _ in range(2))
    sender.engine.want_topic(second.attach_id, "missing")
    sender.answer()
    second.set_header(wants_snapshot=1)
    for index in range(100):
        first.set_header(wants_snapshot=2 * index + 1)
        sender.begin([f"topic-{index}"], first.attach_id)
    assert sender.metadata.waiters_woken == 100
    assert select.select([first.wake_fd, second.wake_fd], [], [], 0)[0] == [first.wake_fd]
    assert sender.metadata._requests.take("missing", False) == {second.attach_id}
    sender.engine.detach(second.attach_id)
    assert sender.metadata._requests.take("missing", False) == ()
    first.close()
    second.close()


def test_a_broker_that_comes_or_goes_touches_only_the_topics_that_it_leads(sender):
    names = [f"topic-{index}" for index in range(500)]
    for name in names:
        sender.engine.want_topic(0, name)
    while len(sender.asked) < len(names):
        sender.answer(leader=lambda name: 3 if name == "topic-7" else 1)
        settle(sender)
    begun = sender.loop.calls["set_leaders"]
    assert begun == len(names)
    sender.engine.want_topic(0, "one-more")
    sender.answer(nodes=(1, 2, 3))
    settle(sender)
    assert sender.loop.calls["set_leaders"] - begun <= 1 + 1, "the new one, and the one that node 3 leads"
    sender.engine.want_topic(0, "and-another")
    sender.answer(nodes=(1, 3))
    settle(sender)
    assert sender.loop.calls["set_leaders"] - begun <= 1 + 1 + 1


def settle(sender: Sender) -> int:
    """Publish all that is left; return the most leaders that were set between two loop iterations."""
    most = 0
    while sender.metadata.is_unsettled:
        before = sender.loop.calls["set_leaders"]
        sender.metadata.publish()
        most = max(most, sender.loop.calls["set_leaders"] - before)
    return most


def test_a_change_of_all_topics_is_applied_in_several_iterations(sender):
    names = [f"topic-{index}" for index in range(3_000)]
    for name in names:
        sender.engine.want_topic(0, name)
    while len(sender.asked) < len(names):
        sender.answer()
        settle(sender)
    before = sender.loop.calls["set_leaders"]
    sender.metadata._schedule_publication(sender.engine._cluster.rebootstrap().topics)
    assert settle(sender) <= PARTITIONS_PER_ITERATION // (1 + PARTITIONS) + 1
    assert sender.loop.calls["set_leaders"] - before == len(names)
    assert {leaders for _, _, leaders in sender.engine._front_ends.snapshot.read()[3].values()} == {bytes(PARTITIONS)}


def test_a_front_end_reads_only_the_topics_that_it_uses(short_tmp):
    """Topics of other front-ends cost it only a look into the ring of changes; it reads its own once each."""
    with StandIn(short_tmp / "reads", {"t": 4}) as sender, KafkaProducer(sender=sender.path) as producer:
        producer.send("t", b"a").result(10)
        topics = producer._channel().session.topics
        read = topics.rows_read
        for number in range(1, 3_001):
            sender.snapshot.enter(number, b"other-%d" % number)
            sender.snapshot.store(number, 0, b"\1")
            if number % 10 == 0:
                producer.send("t", b"b")
                producer._channel().session.refresh_topics(None)
        assert topics.rows_read - read <= 300, "once for each refresh with more changes than topics"
        read = topics.rows_read
        for number in range(1, 1_001):
            assert len(producer.partitions_for(f"other-{number}")) == 1
        assert topics.rows_read - read <= 2_000
        assert producer.send("t", b"c").result(10).topic == "t"


def test_a_front_end_that_is_behind_the_ring_of_changes_reads_its_topics_again(short_tmp):
    with StandIn(short_tmp / "behind", {"t": 1}) as sender, KafkaProducer(sender=sender.path) as producer:
        assert producer.partitions_for("t") == {0}
        sender.snapshot.store(0, 0, b"\1\1\1")
        for change in range(20_000):
            sender.snapshot.enter(1, b"other")
            sender.snapshot.store(1, 0, bytes([change & 1]))
        assert wait_until(lambda: producer.partitions_for("t") == {0, 1, 2}, 10, "the change")


def test_a_successor_enters_and_announces_what_the_former_sender_did_not(sender):
    """The former sender died before a topic was in the index, and before it announced a change of another topic."""
    sender.begin(["a", "b"])
    snapshot = sender.engine._front_ends.snapshot
    numbers = {name: row[0] for name, row in snapshot.read()[3].items()}
    memory = snapshot.region.memory()
    header = layout.read_all(memory, "cyp_snapshot_header", 0)
    snapshot.store(numbers["a"] & 0x3FFF, 0, bytes([1]) * 9)
    layout.write(memory, "cyp_snapshot_header", 0, published=header["published"])
    index = header["index_offset"]
    memory[index : index + INDEX_BYTES] = bytes(INDEX_BYTES)
    memory.release()
    state, region = (os.dup(fd) for fd in sender.engine.regions())
    sender.engine.close()
    settings = Settings.parse(bootstrap_servers="127.0.0.1:1").sender_settings()
    sender.engine = Engine(settings, logging.getLogger("engine"), PredecessorState(state, region, []))
    os.close(state)
    os.close(region)
    front_end = PlainFrontEnd(sender.engine, slots=256)
    changes, _, _, topics = front_end.snapshot.read()
    assert changes == header["published"] + 1
    assert {name: row[0] for name, row in topics.items()} == numbers
    assert [len(topics[name][2]) for name in ("a", "b")] == [9, PARTITIONS]
    assert {name: sender.engine._loop.add_topic(name) for name in ("a", "b")} == {
        name: number & 0x3FFF for name, number in numbers.items()
    }
    front_end.close()
