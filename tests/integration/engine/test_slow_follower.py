"""Tests with a real Kafka that partitions with a slow follower do not hold up the others of the same leader."""

import time

import pytest
from support.engine_rig import EngineRig
from support.front_end import run_until, topic_number

NOW = int(time.time() * 1000)
LEADER, FOLLOWER, SLOW_FOLLOWER = 1, 2, 3
OTHERS = 3


@pytest.fixture
def topics(kafka3, new_topic):
    """Return the names of a topic with a slow follower, and of one without."""
    admin = pytest.importorskip("confluent_kafka.admin")
    client = admin.AdminClient({"bootstrap.servers": kafka3.bootstrap_servers})
    names = [f"slow-follower-{time.time_ns()}-{number}" for number in range(2)]
    wanted = [
        admin.NewTopic(names[0], 1, replica_assignment=[[LEADER, SLOW_FOLLOWER]]),
        admin.NewTopic(names[1], OTHERS, replica_assignment=[[LEADER, FOLLOWER]] * OTHERS),
    ]
    for made in client.create_topics(wanted, operation_timeout=30).values():
        made.result(30)
    return names


class Sending:
    """A front-end that sends one record at a time to a partition."""

    def __init__(self, rig: EngineRig, topics: list[str]) -> None:
        self.rig = rig
        self.front_end = rig.attach(slots=4096)
        self.numbers = [topic_number(rig.engine, self.front_end, name) for name in topics]
        self.slot = -1
        self.acknowledged: set[int] = set()

    def send(self, topic: int, partition: int = 0) -> int:
        self.slot += 1
        records = [(NOW, None, b"%d" % self.slot)]
        self.front_end.send(self.slot, records, topic=self.numbers[topic], partition=partition)
        return self.slot

    def has(self, slot: int) -> bool:
        for outcome in self.front_end.outcomes():
            assert outcome[5] == 0, outcome
            self.acknowledged.add(outcome[0])
        return slot in self.acknowledged

    def until(self, slot: int, timeout: float = 30) -> None:
        run_until(self.rig.engine, lambda: self.has(slot), timeout)


def test_partitions_of_a_leader_are_acknowledged_while_a_follower_of_another_one_is_stopped(kafka3, topics) -> None:
    rig = EngineRig(kafka3.bootstrap_servers, request_timeout_ms=30_000)
    try:
        sending = Sending(rig, topics)
        for _ in range(60):
            for slot in [sending.send(0), *(sending.send(1, partition) for partition in range(OTHERS))]:
                sending.until(slot)
        slow = stop_until_apart(kafka3, rig, sending)
        for number in range(20):
            sending.until(sending.send(1, number % OTHERS))
        assert not sending.has(slow)
        kafka3.resume(SLOW_FOLLOWER)
        sending.until(slow)
    finally:
        kafka3.resume(SLOW_FOLLOWER)
        rig.close()


def stop_until_apart(kafka3, rig: EngineRig, sending: Sending) -> int:
    """Stop the follower for short times until the others go by another connection. Return a slot in flight.

    The follower is left stopped.
    """
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        kafka3.pause(SLOW_FOLLOWER)
        slow = sending.send(0)
        others = [sending.send(1, partition) for partition in range(OTHERS)]
        ends = time.monotonic() + 0.3
        while time.monotonic() < ends:
            rig.engine.run(10)
        if not sending.has(slow) and all(sending.has(slot) for slot in others):
            return slow
        kafka3.resume(SLOW_FOLLOWER)
        for slot in [slow, *others]:
            sending.until(slot)
    raise AssertionError("the partition waited for each other")
