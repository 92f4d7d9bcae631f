"""Tests the control plane's part of the push of metrics: the last push at the end, and the question for the id."""

from collections.abc import Callable

import pytest
from control_rig import Sender

from cyproducer.sender.control import ending, facts


def test_an_idle_sender_ends_after_its_last_push(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=1.0)
    sender.engine.pushed = False
    sender.turn(1.5)
    assert not sender.server.finished
    assert 0 < sender.server.timeout_ms() <= ending.LAST_PUSH_POLL_S * 1000 + 1
    sender.engine.pushed = True
    sender.turn()
    assert sender.server.finished
    assert "resume" not in sender.engine.ends


def test_a_sender_that_is_not_idle_long_enough_makes_no_last_push(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=5.0)
    sender.turn(1)
    sender.attach()
    sender.turn(100)
    assert "end" not in sender.engine.ends


@pytest.mark.parametrize("pushed", [False, True])
def test_a_process_that_comes_during_the_last_push_is_served_and_metrics_are_pushed_again(
    make: Callable[..., Sender], pushed: bool
) -> None:
    sender = make(idle_timeout_s=1.0)
    sender.engine.pushed = pushed
    sender.connect()  # not attached yet: the sender does not end meanwhile
    sender.turn(1.5)
    assert sender.engine.ends[-1] == "end"
    _, client = sender.attach()
    assert sender.engine.ends[-1] == "resume"
    before = len(sender.engine.ends)
    sender.turn(10)
    assert not sender.server.finished
    assert len(sender.engine.ends) == before
    client.close()
    sender.turn()
    assert not sender.server.finished
    assert sender.server.timeout_ms() > 500  # the idle time begins anew


def test_the_last_push_of_a_drain_comes_before_front_ends_are_released(make: Callable[..., Sender]) -> None:
    """A released front-end waits in send() for the next sender."""
    sender = make()
    sender.attach()
    sender.engine.pushed = False
    sender.ending.drain("SIGTERM")
    sender.turn()
    assert "end" in sender.engine.ends
    assert sender.engine.released == []
    sender.engine.pushed = True
    sender.turn()
    assert sender.engine.released == [1]
    assert sender.server.finished


def test_a_drain_ends_at_its_deadline_also_without_the_last_push(make: Callable[..., Sender]) -> None:
    sender = make()
    sender.attach()
    sender.engine.pushed = False
    sender.ending.drain("SIGTERM")
    sender.turn(facts.DRAIN_S + 1)
    assert sender.server.finished


def test_a_process_gets_the_client_instance_id(make: Callable[..., Sender]) -> None:
    sender = make()
    assert sender.ask({"op": "client_instance_id"})[0] == {"ok": True, "id": None, "pushes": True}
    sender.engine.client_instance = "some id"
    assert sender.ask({"op": "client_instance_id"})[0]["id"] == "some id"
