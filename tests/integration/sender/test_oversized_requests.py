"""Tests a broker that closes the connection at each request above its socket.request.max.bytes."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import Rig

from cyproducer import KafkaProducer
from cyproducer.errors import OutcomeUnknownError, RecordTooLargeError, RequestTooLargeError

LIMIT = 200_000


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(partitions=8, nodes=1) as broker:
        broker.request_bytes_max = LIMIT
        yield broker


@pytest.fixture
def producer(broker: ScriptedBroker, make_producer: Callable[..., Any]) -> KafkaProducer:
    return make_producer(
        bootstrap_servers=broker.bootstrap_servers,
        linger_ms=0,
        retry_backoff_ms=20,
        retry_backoff_max_ms=100,
        reconnect_backoff_ms=10,
    )


def test_only_the_batch_that_is_too_large_fails(producer: KafkaProducer, broker: ScriptedBroker) -> None:
    producer.send("t", b"first", partition=0).result(30)
    before = producer.send("t", b"before", partition=1)
    large = producer.send("t", b"x" * (LIMIT + 1000), partition=1)
    behind = producer.send("t", b"behind", partition=1)
    sent = 0
    deadline = time.monotonic() + 60
    while not large.done():
        assert time.monotonic() < deadline
        producer.send("t", b"%d" % sent, partition=2).result(30)
        sent += 1
    with pytest.raises(RequestTooLargeError, match=r"socket\.request\.max\.bytes.*max_request_size") as caught:
        large.result(0)
    assert isinstance(caught.value, OutcomeUnknownError)
    assert isinstance(caught.value, RecordTooLargeError)
    assert before.result(30).offset == 0
    assert behind.result(30).offset == 1
    assert [producer.send("t", b"after", partition=1).result(30).offset for _ in range(3)] == [2, 3, 4]
    assert broker.values(2) == [b"%d" % n for n in range(sent)]
    assert broker.oversized <= 6
    assert not broker.complaints


def test_a_batch_that_is_too_large_fails_though_nothing_else_is_sent(
    producer: KafkaProducer, broker: ScriptedBroker
) -> None:
    with pytest.raises(RequestTooLargeError):
        producer.send("t", b"x" * (LIMIT + 1000), partition=0).result(60)
    assert producer.send("t", b"after", partition=0).result(30).offset == 0
    assert broker.oversized <= 13


def test_batches_that_are_too_large_together_arrive(broker: ScriptedBroker, make_producer: Callable[..., Any]) -> None:
    producer = make_producer(
        bootstrap_servers=broker.bootstrap_servers, batch_size=65_536, linger_ms=0, reconnect_backoff_ms=10
    )
    producer.send("t", b"first", partition=0).result(30)
    value = b"x" * 50_000
    for _ in range(3):
        futures = [producer.send("t", value, partition=n % 8) for n in range(64)]
        assert all(future.result(60).offset is not None for future in futures)
    assert sum(len(broker.values(partition)) for partition in range(8)) == 193
    assert not broker.complaints
    # Two until the limit is known, and only a few until it is right.
    assert broker.oversized <= 20


def test_connections_that_break_at_small_requests_fail_no_batch(broker: ScriptedBroker) -> None:
    broker.faults.extend(Fault(close="before") for _ in range(25))
    with Rig(broker) as rig:
        rig.attach()
        rig.send(0, 0)
        rig.send(0, 1)
        rig.settle(60)
        assert rig.errors(0) == [0, 0]
        rig.check()
