"""Tests transactions on a real Kafka while engines are killed: each is committed whole, or not at all."""

import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from support.consumer import read_topic
from support.engine_host import Nursery, RemoteEngine
from support.front_end import run_until
from support.transactional_front_end import GROUP, TransactionalFrontEnd

from cyproducer.config.settings import Settings
from cyproducer.devkafka.node import KafkaCluster

TRANSACTIONS = 40
KILL_EVERY = 25  # calls of run(), on average


class MortalEngine(RemoteEngine):
    """An engine that is killed and replaced at random moments while the test waits for it."""

    def __init__(self, settings: dict[str, Any], nursery: Nursery) -> None:
        super().__init__(settings, nursery)
        self.chance = random.Random(11)
        self.kills = 0

    def run(self, timeout_ms: float) -> None:
        if self.chance.randrange(KILL_EVERY) == 0:
            time.sleep(self.chance.random() / 100)
            self.kill()
            self.take_over()
            self.kills += 1
        super().run(timeout_ms)

    def describe(self, attach_id: int) -> dict[str, Any]:
        return dict(self.transactions("describe", self.transactions("row_of", attach_id)))


@pytest.fixture(params=["v2", pytest.param("v1", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    found: KafkaCluster = request.getfixturevalue("kafka" if request.param == "v2" else "kafka_v1")
    return found


@pytest.fixture
def topic(new_topic: Callable[..., str], cluster: KafkaCluster) -> str:
    return new_topic(3, cluster=cluster)


@pytest.fixture
def engine(cluster: KafkaCluster, nursery: Nursery) -> Iterator[MortalEngine]:
    settings = Settings.parse(bootstrap_servers=cluster.bootstrap_servers).sender_settings()
    engine = MortalEngine(settings, nursery)
    yield engine
    engine.close()


def test_each_transaction_is_committed_whole_or_not_at_all(
    engine: MortalEngine, cluster: KafkaCluster, topic: str
) -> None:
    producer = TransactionalFrontEnd(engine, topic, f"id-{topic}")
    assert producer.do("init")["ok"]
    expected = set()
    for number in range(TRANSACTIONS):
        values = {b"%d/%d" % (number, at) for at in range(6)}
        for at, value in enumerate(sorted(values)):
            producer.send(value, at % 3)
        if number % 4 == 3:
            producer.do("fail")
            producer.errors()
            answer = producer.do("abort")
        else:
            assert set(producer.errors()) == {0}
            offsets = [(topic, 0, number, -1, "")]
            assert producer.do("offsets", offsets=offsets, group={**GROUP, "group_id": topic})["ok"]
            answer = producer.do("commit")
            expected |= values
        assert answer["ok"], answer
    assert engine.kills > 5
    found = read_topic(cluster.bootstrap_servers, topic, len(expected)).value
    assert sorted(value or b"" for value in found) == sorted(expected)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": topic})
    try:
        (offset,) = consumer.committed([TopicPartition(topic, 0)], timeout=20)
    finally:
        consumer.close()
    assert offset.offset == TRANSACTIONS - 2
    producer.close()


@pytest.mark.parametrize("do", ["commit", "nothing"])
def test_a_front_end_ends_while_the_engine_is_killed(
    engine: MortalEngine, cluster: KafkaCluster, topic: str, do: str
) -> None:
    """What it has left open is aborted, and a commit that it had requested is done."""
    for number in range(5):
        producer = TransactionalFrontEnd(engine, topic, f"id-{topic}-{number}")
        assert producer.do("init")["ok"]
        producer.send(b"%d" % number)
        producer.errors()
        if do == "commit":
            producer.ask("commit")
            engine.run(1)
        engine.detach(producer.attach_id)
        producer.close()
        run_until(engine, lambda: not engine.transactions("rows"), 20)
    last = TransactionalFrontEnd(engine, topic, f"id-{topic}-last")
    assert last.do("init")["ok"]
    last.send(b"last")
    last.errors()
    assert last.do("commit")["ok"]
    found = set(read_topic(cluster.bootstrap_servers, topic, 1).value)
    assert b"last" in found
    if do == "nothing":
        assert found == {b"last"}
    last.close()
