"""Tests that a record that is not sent in time names the address at which its broker was not reached."""

import socket
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from kfake.scripted_broker import ScriptedBroker

from cyproducer import KafkaProducer, errors

QUICK = {"linger_ms": 0, "request_timeout_ms": 3_000}


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Yield a port at which nothing listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.fixture
def broker(closed_port: int) -> Iterator[ScriptedBroker]:
    """Yield a broker that announces a wrong address of itself."""

    def announce(answer: dict) -> None:
        answer["brokers"] = [{**each, "port": closed_port} for each in answer["brokers"]]

    with ScriptedBroker(nodes=1, bootstrap_apart=True) as broker:
        broker.lies = announce
        yield broker


def test_what_is_not_done_in_time_names_the_address_and_the_setting_it_comes_from(
    broker: ScriptedBroker, closed_port: int, make_producer: Callable[..., KafkaProducer]
) -> None:
    address = rf"broker 127\.0\.0\.1:{closed_port}: .*advertised\.listeners"
    producer = make_producer(bootstrap_servers=broker.bootstrap_servers, delivery_timeout_ms=8_000, **QUICK)
    future = producer.send(broker.topic, b"0")
    rows = producer.send_array(broker.topic, np.arange(3))
    for late in (lambda: future.result(1), lambda: producer.flush(0.1), lambda: rows.result(0.1)):
        with pytest.raises(errors.KafkaTimeoutError, match=address):
            late()
    for over in (lambda: future.result(60), lambda: rows.result(60)):
        with pytest.raises(errors.KafkaError, match=address) as caught:
            over()
        assert isinstance(caught.value, errors.KafkaTimeoutError)


def test_an_address_that_was_reached_before_has_no_such_hint(
    make_producer: Callable[..., KafkaProducer],
) -> None:
    with ScriptedBroker(nodes=1, bootstrap_apart=True) as broker:
        producer = make_producer(bootstrap_servers=broker.bootstrap_servers, delivery_timeout_ms=4_000, **QUICK)
        producer.send(broker.topic, b"0", partition=0).result(60)
        broker.down.add(1)
        broker.drop_connections()
        with pytest.raises(errors.KafkaError, match=rf"broker 127\.0\.0\.1:{broker.ports[0]}: ") as caught:
            producer.send(broker.topic, b"1", partition=0).result(60)
    assert "advertised" not in str(caught.value)
