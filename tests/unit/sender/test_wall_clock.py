"""Tests a wall clock that is set, in the control plane: no timer depends on it."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_control import Sender

from cyproducer.host import control_messages
from cyproducer.sender.control import listening

DAY_S = 86_400.0


@pytest.fixture
def sender(short_tmp: Path) -> Iterator[Sender]:
    made = Sender(short_tmp)
    yield made
    made.close()


def set_clock(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + step_s)


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S])
def test_warnings_keep_their_pace(sender: Sender, monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """A day back would silence the ledger for a day; a day forward would repeat a recent warning."""
    _, client = sender.attach(app="a")
    client.setblocking(False)
    told = []
    for seconds in (0, 1, 30, 31):
        sender.engine.failures = [(1, "t", 10, 1)]
        sender.turn(seconds)
        assert sender.server.timeout_ms() <= 60_000
        with contextlib.suppress(BlockingIOError):
            told.append(control_messages.receive(client)[0]["message"])
        set_clock(monkeypatch, step_s)
    assert [text.partition(" of ")[0] for text in told] == ["1 record", "3 records"]


@pytest.mark.parametrize("step_s", [-DAY_S, DAY_S])
def test_handshake_deadline_and_idle_exit_ignore_the_wall_clock(
    sender: Sender, monkeypatch: pytest.MonkeyPatch, step_s: float
) -> None:
    slow = sender.connect()
    sender.turn()
    set_clock(monkeypatch, step_s)
    sender.turn(listening.HANDSHAKE_S - 0.1)
    assert len(sender.table.peers) == 1
    assert not sender.server.finished
    sender.turn(0.2)
    assert control_messages.receive(slow) == (None, [])
    assert sender.attach()[0]["ok"]
