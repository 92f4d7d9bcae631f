"""Tests the engine on three Kafka nodes that are killed, stopped beyond their session, and restarted in mid-stream.

48 partitions, three replicas of each, min.insync.replicas 2; several front-ends whose batches are merged. A foreign
client reads the log: nothing is lost or duplicated, and order holds per front-end and partition.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable

import pytest
from support.consumer import read_topic
from support.front_end import PlainFrontEnd, run_until, topic_number
from support.whole_engine import Engine

from cyproducer.config.settings import Settings

PARTITIONS = 48
FRONT_ENDS = 6
SLOTS = 256


class Stream:
    """Front-ends that send numbered records round-robin over the partitions, reusing slots as they are released."""

    def __init__(self, servers: str, topic: str) -> None:
        parsed = Settings.parse(
            bootstrap_servers=servers,
            request_timeout_ms=3000,
            retry_backoff_ms=20,
            retry_backoff_max_ms=200,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=200,
        )
        self.engine = Engine(parsed.sender_settings(), logging.getLogger("engine"))
        self.front_ends = [
            PlainFrontEnd(self.engine, slots=SLOTS, linger_ms=5, delivery_timeout_ms=120_000) for _ in range(FRONT_ENDS)
        ]
        self.number = topic_number(self.engine, self.front_ends[0], topic)
        self.free = [[(slot, 0) for slot in range(SLOTS)] for _ in range(FRONT_ENDS)]
        self.sent = [0] * FRONT_ENDS
        self.errors: list[int] = []
        self.acknowledged = 0

    def turn(self) -> None:
        """Send one batch of each front-end to the next partition, if it has a free slot, and take outcomes."""
        for index, front_end in enumerate(self.front_ends):
            if self.free[index]:
                slot, generation = self.free[index].pop(0)
                number = self.sent[index]
                self.sent[index] += 1
                values = [b"%d/%d/%d" % (index, number, part) for part in range(2)]
                front_end.send(
                    slot,
                    [(int(time.time() * 1000), None, value) for value in values],
                    topic=self.number,
                    partition=number % PARTITIONS,
                    generation=generation,
                    seal=number % 3 == 0,
                )
        self.engine.run(1)
        self.take()

    def take(self) -> None:
        for index, front_end in enumerate(self.front_ends):
            for slot, generation, _, _, _, error, flags in front_end.outcomes():
                if flags & 1:
                    self.acknowledged += error == 0
                    if error:
                        self.errors.append(error)
                if flags & 2:
                    self.free[index].append((slot, generation + 1))

    def stream(self, batches: int, timeout: float = 60) -> None:
        """Send until this many more batches are acknowledged."""
        goal = self.acknowledged + batches
        deadline = time.monotonic() + timeout
        while self.acknowledged < goal:
            assert time.monotonic() < deadline, f"{goal - self.acknowledged} of {batches} batches are missing"
            self.turn()

    def until(self, condition: Callable[[], bool], timeout: float = 100) -> None:
        """Continue to send until the condition is true."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            for _ in range(50):
                self.turn()

    def settle(self) -> None:
        run_until(self.engine, lambda: self.take() or self.engine.undelivered() == 0, 60)
        self.take()

    def close(self) -> None:
        self.engine.close()
        for front_end in self.front_ends:
            front_end.close()


def leader_of(kafka3, topic: str, partition: int, asked: int) -> int:
    return kafka3.metadata(topic, asked).leaders[partition]


def whole(kafka3) -> bool:
    """Return whether every node answers and knows the others."""
    try:
        return all(len(kafka3.metadata(number=number).brokers) == 3 for number in (1, 2, 3))
    except OSError:
        return False


def check(stream: Stream, kafka3, topic: str) -> None:
    assert stream.errors == []
    assert set(stream.engine.tables_in_use().values()) == {0}
    total = 2 * sum(stream.sent)
    assert 2 * stream.acknowledged == total
    read = read_topic(kafka3.bootstrap_servers, topic, total)
    assert len(read) == total
    found: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for partition, value in zip(read.partition, read.value, strict=True):
        index, number, part = map(int, value.split(b"/"))
        assert number % PARTITIONS == partition
        found[index, partition].append((number, part))
    for (index, partition), numbers in found.items():
        expected = [(n, part) for n in range(partition, stream.sent[index], PARTITIONS) for part in range(2)]
        assert numbers == expected, f"front-end {index}, partition {partition}"


@pytest.fixture
def stream(kafka3, new_topic):
    topic = new_topic(PARTITIONS, replication=3, cluster=kafka3)
    stream = Stream(kafka3.bootstrap_servers, topic)
    yield stream, topic
    stream.close()


def test_a_leader_is_killed_then_another_is_stopped_and_all_come_back(stream, kafka3):
    stream, topic = stream
    stream.stream(1000)
    victim = leader_of(kafka3, topic, 0, 1)
    kafka3.kill(victim)
    stream.stream(1500)
    kafka3.restart(victim, wait=False)
    stream.stream(1500)
    stream.until(lambda: whole(kafka3))
    paused = leader_of(kafka3, topic, 1, victim)
    kafka3.pause(paused)
    until = time.monotonic() + 4  # its session is over after 2 s
    while time.monotonic() < until:
        stream.turn()
    kafka3.resume(paused)
    stream.stream(1500)
    stream.settle()
    assert stream.engine.stats()["totals"]["retries"] > 0
    check(stream, kafka3, topic)
