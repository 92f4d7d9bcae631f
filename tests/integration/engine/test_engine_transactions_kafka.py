"""Tests transactions of an engine on a real Kafka, with the protocol of KIP-890 and the one before it.

`tests/integration/transactions` has those of producers: who is fenced, visibility, and changes of the protocol.
"""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from devkafka.node import KafkaCluster
from support.consumer import read_topic
from support.engine_rig import EngineRig
from support.front_end import run_until
from support.transactional_front_end import GROUP, TransactionalFrontEnd

from cyproducer.sender.cluster.transaction_failures import TRANSACTION_ABORTED
from cyproducer.transaction_states import TransactionState

INVALID_TXN_STATE, INVALID_TIMEOUT, FENCED = 48, 50, 90


@pytest.fixture(params=["v2", "v1"])
def cluster(request: pytest.FixtureRequest) -> KafkaCluster:
    return request.getfixturevalue("kafka" if request.param == "v2" else "kafka_v1")


@pytest.fixture
def rig(cluster: KafkaCluster) -> Iterator[EngineRig]:
    rig = EngineRig(cluster.bootstrap_servers)
    yield rig
    rig.close()


@pytest.fixture
def begin(rig: EngineRig, cluster: KafkaCluster, new_topic: Callable[..., str]) -> Iterator[Callable]:
    """Return ``begin(name="", **fields) -> TransactionalFrontEnd`` with a producer id, on one new topic."""
    topic = new_topic(2, cluster=cluster)
    made = []

    def begin(name: str = "", **fields: int) -> TransactionalFrontEnd:
        made.append(TransactionalFrontEnd(rig.engine, topic, name or f"id-{topic}", **fields))
        assert made[-1].do("init")["ok"]
        return made[-1]

    yield begin
    for each in made:
        each.close()


def committed(cluster: KafkaCluster, producer: TransactionalFrontEnd, count: int) -> set[bytes | None]:
    return set(read_topic(cluster.bootstrap_servers, producer.topic, count).value)


def test_records_and_offsets_are_committed_and_aborted(begin: Callable, cluster: KafkaCluster, request) -> None:
    producer = begin()
    assert producer.row["v2"] is ("v2" in request.node.callspec.id)
    group = {**GROUP, "group_id": f"g-{producer.topic}"}
    for number in range(6):
        for partition in range(2):
            producer.send(b"%d/%d" % (number, partition), partition)
        assert producer.errors() == [0, 0]
        assert producer.row["state"] == TransactionState.IN_TRANSACTION
        offsets = [(producer.topic, 0, number, -1, "note"), (producer.topic, 1, number + 1, 0, "")]
        assert producer.do("offsets", offsets=offsets, group=group)["ok"]
        answer = producer.abort() if number % 2 else producer.commit()
        assert answer["ok"], answer
    assert committed(cluster, producer, 6) == {b"%d/%d" % (number, part) for number in (0, 2, 4) for part in range(2)}
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap_servers, "group.id": group["group_id"]})
    try:
        asked = [TopicPartition(producer.topic, partition) for partition in range(2)]
        assert [found.offset for found in consumer.committed(asked, timeout=20)] == [4, 5]
    finally:
        consumer.close()


def test_an_abort_of_batches_that_wait_and_an_init_over_an_open_transaction(
    begin: Callable, cluster: KafkaCluster
) -> None:
    producer = begin()
    for number in range(40):
        producer.send(b"dropped %d" % number, number % 2)
    producer.do("fail")
    errors = producer.errors()
    assert set(errors) <= {0, TRANSACTION_ABORTED} and len(errors) == 40
    assert producer.do("abort")["ok"]
    producer.send(b"left open")
    producer.errors()
    assert producer.do("init")["ok"]
    producer.send(b"kept")
    assert producer.commit()["ok"]
    assert committed(cluster, producer, 1) == {b"kept"}


def test_a_timeout_that_the_broker_does_not_allow(rig: EngineRig, begin: Callable) -> None:
    topic = begin().topic
    producer = TransactionalFrontEnd(rig.engine, topic, "long", timeout_ms=2**31 - 1)
    answer = producer.do("init")
    producer.close()
    assert (answer["kind"], answer["code"]) == ("fatal", INVALID_TIMEOUT)


@pytest.mark.parametrize("do", ["commit", pytest.param("abort", marks=pytest.mark.long)])
def test_a_transaction_that_has_timed_out_is_known_at_its_end(begin: Callable, do: str) -> None:
    producer = begin(timeout_ms=500)
    producer.send(b"late")
    producer.errors()
    is_v2 = producer.row["v2"]
    until = time.monotonic() + 12  # the broker looks every 10 s
    run_until(producer.engine, lambda: time.monotonic() > until, 20)
    answer = producer.do(do)
    if do == "abort" and is_v2:
        assert answer["ok"]
    else:
        assert (answer["kind"], answer["code"]) == ("fatal", INVALID_TXN_STATE if is_v2 else FENCED)


def test_the_transaction_of_an_ended_front_end_is_aborted_at_once(
    begin: Callable, cluster: KafkaCluster, rig: EngineRig
) -> None:
    producer, other = begin("leaves"), begin("stays")
    producer.send(b"left")
    producer.errors()
    producer.end()
    run_until(rig.engine, lambda: len(rig.engine._transaction_table.rows()) == 1, 10)
    other.send(b"kept")
    assert other.commit()["ok"]
    assert committed(cluster, other, 1) == {b"kept"}


def test_another_engine_takes_the_end_of_a_transaction_up(begin: Callable, cluster: KafkaCluster) -> None:
    for do in ("commit", "abort", "commit"):
        producer = begin()
        producer.send(do.encode())
        assert producer.errors() == [0]
        second = EngineRig(cluster.bootstrap_servers)
        again = TransactionalFrontEnd(second.engine, producer.topic, producer.row["transactional_id"])
        again.known = producer.known
        assert again.do(do)["ok"]
        again.send(do.encode() + b" again")
        assert again.commit()["ok"]
        again.close()
        second.close()
    values = {b"commit", b"commit again", b"abort again"}
    assert committed(cluster, producer, 5) == values
