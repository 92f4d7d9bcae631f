"""Tests that settings of the sender change what it does: two engines with different values run side by side.

The engine with the longer time is compared with the other one, and not with a clock.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest
from kfake import cluster
from kfake.scripted_broker import ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until

LONG_MS = 600_000
Two = Callable[..., list[tuple[ScriptedBroker, Rig]]]


def side_by_side(rigs: list[Rig], over: Callable[[], bool], timeout: float = 60) -> None:
    """Run all engines until `over()`."""
    deadline = time.monotonic() + timeout
    while not over():
        assert time.monotonic() < deadline
        for rig in rigs:
            rig.engine.run(5)


@pytest.fixture
def two() -> Iterator[Two]:
    """Return ``two(*settings)``: a broker and an engine for each. Its front-end has sent one batch."""
    with contextlib.ExitStack() as opened:

        def make(*settings: dict) -> list[tuple[ScriptedBroker, Rig]]:
            made = []
            for given in settings:
                broker = opened.enter_context(ScriptedBroker(partitions=5, nodes=1))
                made.append((broker, opened.enter_context(Rig(broker, **{"request_timeout_ms": LONG_MS, **given}))))
                made[-1][1].begin()
            return made

        yield make


def test_metadata_max_age_ms(two: Two) -> None:
    made = two({"metadata_max_age_ms": 50}, {"metadata_max_age_ms": LONG_MS})
    (often, _), (seldom, _) = made
    before = seldom.metadata_requests
    asked = often.metadata_requests
    side_by_side([rig for _, rig in made], lambda: often.metadata_requests >= asked + 5)
    assert seldom.metadata_requests == before


def test_connections_max_idle_ms(two: Two) -> None:
    """The connection to the broker closes, and the next batch makes another one."""
    made = two({"connections_max_idle_ms": 1000}, {"connections_max_idle_ms": -1})
    (closed, rig), (kept, other) = made
    before = len(kept._connections)
    assert before == len(closed._connections) > 0
    side_by_side([rig, other], lambda: len(closed._connections) < before)
    assert len(kept._connections) == before
    rig.deliver(0, 0)
    assert rig.errors(0) == [0, 0]


def test_request_timeout_ms(two: Two) -> None:
    made = two({"request_timeout_ms": 100}, {})
    (impatient, rig), (patient, other) = made
    before = impatient.produce_requests, patient.produce_requests
    for broker, each in made:
        broker.swallow = True
        each.send(0, 0)
    side_by_side([rig, other], lambda: impatient.produce_requests >= before[0] + 3)
    assert patient.produce_requests == before[1] + 1
    for broker, _ in made:
        broker.swallow = False
    patient.drop_connections()
    side_by_side([rig, other], lambda: rig.engine.undelivered() == other.engine.undelivered() == 0)


@pytest.mark.parametrize("limit", [1, 3])
def test_max_in_flight_requests_per_connection(two: Two, limit: int) -> None:
    made = two({"max_in_flight_requests_per_connection": limit})
    ((broker, rig),) = made
    before = broker.produce_requests
    broker.swallow = True
    for partition in range(5):
        rig.send(0, partition)
        for _ in range(20):
            rig.engine.run(1)
    run_until(rig.engine, lambda: broker.produce_requests >= before + limit)
    for _ in range(50):
        rig.engine.run(1)
    assert broker.produce_requests == before + limit
    broker.swallow = False
    broker.drop_connections()
    rig.settle()


@pytest.mark.parametrize(
    ("first_ms", "most"), [(LONG_MS, 1), (20, 15)], ids=["reconnect_backoff_ms", "reconnect_backoff_max_ms"]
)
def test_reconnect_backoff(two: Two, first_ms: int, most: int) -> None:
    """The pauses of the slow engine are long from the start, or double without a limit. The fast one makes 60."""
    slow = {"reconnect_backoff_ms": first_ms, "reconnect_backoff_max_ms": LONG_MS}
    made = two({"reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 20}, slow)
    (fast, rig), (other, other_rig) = made
    before = fast.accepted, other.accepted
    for broker, _ in made:
        broker.nonsense = True
        broker.drop_connections()
    rig.send(0, 0)
    other_rig.send(0, 0)
    side_by_side([rig, other_rig], lambda: fast.accepted >= before[0] + 60)
    assert other.accepted <= before[1] + most
    for broker, _ in made:
        broker.nonsense = False


def test_client_id(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()

    def note(frame: bytes) -> tuple:
        request = decode(frame)
        seen.add(request[3])
        return request

    decode = cluster.decode_request
    monkeypatch.setattr(cluster, "decode_request", note)
    ((_, rig),) = two({})
    assert seen == {"cyproducer"}
    seen.clear()
    rig.engine.parts().client_id.add("billing")
    rig.deliver(0, 1)
    assert seen == {"billing"}


def test_enable_idempotence() -> None:
    """A front-end without idempotence needs no producer id."""
    for wanted in (True, False):
        with ScriptedBroker(partitions=1, nodes=1) as broker, Rig(broker) as rig:
            rig.begin(enable_idempotence=wanted)
            assert bool(broker.partitions[0].producers) == wanted


def test_linger_ms() -> None:
    """The partitions have different brokers: a request takes along what lingers for the same broker."""
    with ScriptedBroker(partitions=2, nodes=2) as broker, Rig(broker, request_timeout_ms=LONG_MS) as rig:
        rig.attach(linger_ms=LONG_MS)
        rig.attach(linger_ms=0)
        rig.send(0, 0, seal=False)
        rig.send(1, 1, seal=False)
        run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[1]))
        for _ in range(50):
            rig.engine.run(1)
        rig.listen()
        assert rig.heard[0] == {}
