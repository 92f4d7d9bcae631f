"""Tests the short answer about a sender's health. The control server runs around a fake engine."""

from collections.abc import Callable

import pytest
from control_rig import Sender

from cyproducer.host import control_messages

READY = {"broker_id": 1, "host": "h", "port": 1, "state": "ready", "in_flight": 0}
LOST = {**READY, "state": "connecting"}


@pytest.mark.parametrize(
    ("cluster", "connections", "error", "state"),
    [
        (None, [], None, "starting"),
        (None, [LOST], "", "starting"),
        (None, [LOST], "broker h:1: connection refused", "disconnected"),
        ("c1", [READY, LOST], "broker h:2: connection refused", "running"),
        ("c1", [LOST], "broker h:1: connection refused", "disconnected"),
        ("c1", [], "", "running"),  # idle for long
    ],
)
def test_states(
    make: Callable[..., Sender], cluster: str | None, connections: list[dict], error: str | None, state: str
) -> None:
    sender = make(restarts=2)
    sender.engine.cluster, sender.engine.connections, sender.engine.last_error = cluster, connections, error
    answer, fds, _ = sender.ask({"op": "health"})
    assert not fds
    assert (answer["state"], answer["ok"]) == (state, state in ("starting", "running"))
    assert (answer["last_error"], answer["restarts"]) == (error, 2)
    assert answer["brokers_connected"] == sum(row is READY for row in connections)
    assert answer["uptime_s"] >= 0
    assert "error" not in answer


def test_a_sender_that_drains_is_not_ok(make: Callable[..., Sender]) -> None:
    sender = make()
    sender.attach()
    sender.engine.pending = 3
    sender.ending.drain("SIGTERM")
    answer, _, _ = sender.ask({"op": "health"})
    assert (answer["ok"], answer["state"]) == (False, "draining")
    assert (answer["front_ends"], answer["undelivered"]) == (1, 3)


def test_an_attached_process_may_ask_as_for_the_status(make: Callable[..., Sender]) -> None:
    sender = make()
    _, client = sender.attach()
    control_messages.send(client, {"op": "health"})
    sender.turn()
    answer = control_messages.receive_alone(client)
    assert answer is not None and answer["state"] == "starting"
    assert len(control_messages.encode(answer)) < 1000
