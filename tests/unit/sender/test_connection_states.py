"""Tests the times of connections: pauses and time limits that grow, and what resets them."""

import pytest

from cyproducer.cluster.backoff import ExponentialBackoff
from cyproducer.config.settings import Settings
from cyproducer.sender.brokers import connection_states
from cyproducer.sender.brokers.broker import Link
from cyproducer.sender.brokers.connection_states import ConnectionStates

NOW_MS = 1_000_000
#: What the source of a backoff returns, by the share of the delay that the jitter leaves.
SHORTEST, EXACT = 0.0, 0.5


def make(monkeypatch, source: float = EXACT, **settings) -> tuple[ConnectionStates, Link]:
    def predictable(base_ms: int, max_ms: int) -> ExponentialBackoff:
        return ExponentialBackoff(base_ms, max_ms, source=lambda: source)

    monkeypatch.setattr(connection_states, "ExponentialBackoff", predictable)
    parsed = Settings.parse(bootstrap_servers="one:9092", **settings).sender_settings()
    return ConnectionStates(parsed), Link(0, 1, "one", 9092)


def limits(states: ConnectionStates, link: Link, attempts: int) -> list[int]:
    """Let attempts fail, and return how long each could take."""
    found = []
    for _ in range(attempts):
        states.connecting(link, NOW_MS)
        assert link.connect_deadline_ms == NOW_MS + link.setup_ms
        found.append(link.setup_ms)
        states.failed(link, NOW_MS)
    return found


def pauses(states: ConnectionStates, link: Link, attempts: int) -> list[int]:
    """Let attempts fail, and return the pause after each."""
    found = []
    for _ in range(attempts):
        states.failed(link, NOW_MS)
        found.append(link.retry_at_ms - NOW_MS)
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
    assert limits(*make(monkeypatch, **settings), 4) == expected


def test_the_time_for_an_attempt_varies_by_a_fifth(monkeypatch):
    assert limits(*make(monkeypatch, SHORTEST), 3) == [8000, 16_000, 24_000]


def test_the_time_for_an_attempt_grows_from_address_to_address(monkeypatch):
    states, link = make(monkeypatch)
    link.addresses = [object(), object()]
    assert limits(states, link, 2) == [10_000, 20_000]
    assert link.retry_at_ms == 0, "there is no pause before the next address"
    assert not link.unreachable


def test_pauses_double_up_to_their_maximum(monkeypatch):
    assert pauses(*make(monkeypatch), 7) == [50, 100, 200, 400, 800, 1000, 1000]
    assert pauses(*make(monkeypatch, reconnect_backoff_ms=3000, reconnect_backoff_max_ms=700), 2) == [700, 700]
    assert pauses(*make(monkeypatch, reconnect_backoff_ms=0, reconnect_backoff_max_ms=0), 2) == [10, 10]
    assert pauses(*make(monkeypatch, SHORTEST), 6) == [40, 80, 160, 320, 640, 800]


def test_a_broken_connection_counts_for_the_pause_and_does_not_make_a_broker_unreachable(monkeypatch):
    states, link = make(monkeypatch)
    states.ready(link)
    states.broken(link, NOW_MS)
    assert link.retry_at_ms - NOW_MS == 50
    assert not link.unreachable
    assert pauses(states, link, 3) == [100, 200, 400]
    assert link.unreachable


def test_a_ready_broker_begins_again(monkeypatch):
    states, link = make(monkeypatch)
    limits(states, link, 4)
    states.ready(link)
    assert not link.unreachable
    assert link.connect_deadline_ms is None
    assert limits(states, link, 1) == [10_000]
    states.ready(link)
    assert pauses(states, link, 1) == [50]


def test_another_address_of_the_broker_begins_again(monkeypatch):
    states, link = make(monkeypatch)
    limits(states, link, 4)
    states.renew(link, "two", 9093)
    assert (link.name, link.retry_at_ms, link.unreachable) == ("two:9093", 0, False)
    assert limits(states, link, 1) == [10_000]
    assert link.retry_at_ms - NOW_MS == 50
