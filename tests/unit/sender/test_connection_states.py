"""Tests the times of connections: pauses and time limits that grow, and what resets them."""

import socket

import pytest

from cyproducer.config.settings import Settings
from cyproducer.sender.cluster import broker as broker_module
from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.broker import Backoffs, Broker
from cyproducer.sender.cluster.resolver import Address

NOW_MS = 1_000_000
PEER = Address(socket.AF_INET, ("127.0.0.1", 9092))
#: What the source of a backoff returns, by the share of the delay that the jitter leaves.
SHORTEST, EXACT = 0.0, 0.5


def make(monkeypatch, source: float = EXACT, **settings) -> Broker:
    def predictable(base_ms: int, max_ms: int) -> ExponentialBackoff:
        return ExponentialBackoff(base_ms, max_ms, source=lambda: source)

    monkeypatch.setattr(broker_module, "ExponentialBackoff", predictable)
    parsed = Settings.parse(bootstrap_servers="one:9092", **settings).sender_settings()
    return Broker(1, "one", 9092, Backoffs.of(parsed))


def limits(broker: Broker, attempts: int) -> list[int]:
    """Let attempts fail, and return how long each could take."""
    found = []
    for _ in range(attempts):
        found.append(broker.begin_attempt(PEER, False, NOW_MS))
        broker.set_failed(NOW_MS)
    return found


def pauses(broker: Broker, attempts: int) -> list[int]:
    """Let attempts fail, and return the pause after each."""
    found = []
    for _ in range(attempts):
        broker.set_failed(NOW_MS)
        found.append(broker.retry_at_ms - NOW_MS)
    return found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [10_000, 20_000, 30_000, 30_000]),
        ({"socket_connection_setup_timeout_ms": 700}, [700, 1400, 2800, 5600]),
        ({"socket_connection_setup_timeout_max_ms": 4000}, [4000] * 4),
        ({"socket_connection_setup_timeout_ms": 1}, [100, 200, 400, 800]),
    ],
)
def test_the_time_for_an_attempt_doubles_up_to_its_maximum(monkeypatch, settings, expected):
    assert limits(make(monkeypatch, **settings), 4) == expected


def test_the_time_for_an_attempt_varies_by_a_fifth(monkeypatch):
    assert limits(make(monkeypatch, SHORTEST), 3) == [8000, 16_000, 24_000]


def test_the_time_for_an_attempt_grows_from_address_to_address(monkeypatch):
    broker = make(monkeypatch)
    broker.addresses = [object(), object()]
    assert limits(broker, 2) == [10_000, 20_000]
    assert broker.retry_at_ms == 0, "there is no pause before the next address"
    assert not broker.unreachable


def test_pauses_double_up_to_their_maximum(monkeypatch):
    assert pauses(make(monkeypatch), 7) == [50, 100, 200, 400, 800, 1000, 1000]
    assert pauses(make(monkeypatch, reconnect_backoff_ms=3000, reconnect_backoff_max_ms=700), 2) == [700, 700]
    assert pauses(make(monkeypatch, reconnect_backoff_ms=0, reconnect_backoff_max_ms=0), 2) == [10, 10]
    assert pauses(make(monkeypatch, SHORTEST), 6) == [40, 80, 160, 320, 640, 800]


def test_a_broken_connection_counts_for_the_pause_and_does_not_make_a_broker_unreachable(monkeypatch):
    broker = make(monkeypatch)
    broker.set_ready()
    broker.set_broken(NOW_MS)
    assert broker.retry_at_ms - NOW_MS == 50
    assert not broker.unreachable
    assert pauses(broker, 3) == [100, 200, 400]
    assert broker.unreachable


def test_a_ready_broker_begins_again(monkeypatch):
    broker = make(monkeypatch)
    limits(broker, 4)
    broker.set_ready()
    assert not broker.unreachable
    assert limits(broker, 1) == [10_000]
    broker.set_ready()
    assert pauses(broker, 1) == [50]


def test_another_address_of_the_broker_begins_again(monkeypatch):
    broker = make(monkeypatch)
    limits(broker, 4)
    broker.set_address("two", 9093)
    assert (broker.name, broker.retry_at_ms, broker.unreachable) == ("two:9093", 0, False)
    assert limits(broker, 1) == [10_000]
    assert broker.retry_at_ms - NOW_MS == 50
