"""Tests the control plane's part of a purge: which process may ask for it, and what it is told."""

from collections.abc import Callable
from typing import Any

import pytest
from control_rig import Sender, hung_up

from cyproducer.host import control_messages
from cyproducer.sender.control import listening


@pytest.fixture
def sender(make: Callable[..., Sender]) -> Sender:
    sender = make(idle_timeout_s=None)
    sender.attach()
    return sender


def ask(sender: Sender, **fields: Any) -> dict[str, Any]:
    answer, _, _ = sender.ask({"op": "purge", "attach_id": 1, "key": sender.keys[1], **fields})
    return dict(answer)


def test_the_answer_comes_when_the_engine_has_dropped_the_batches(sender: Sender) -> None:
    assert ask(sender) == {"ok": True}
    assert sender.engine.purged == [1]


@pytest.mark.parametrize("fields", [{"key": None}, {"key": ""}, {"key": 5}, {"key": "0" * 32}, {"attach_id": 2}])
def test_only_the_process_of_the_front_end_may_ask(sender: Sender, fields: dict[str, Any]) -> None:
    answer = ask(sender, **fields)
    assert answer["error"] == "REFUSED"
    assert "no attached front-end" in answer["message"]
    assert sender.engine.purged == []


def test_the_key_of_another_front_end_is_not_enough(sender: Sender) -> None:
    sender.attach()
    assert sender.keys[1] != sender.keys[2]
    assert ask(sender, attach_id=2)["error"] == "REFUSED"
    assert ask(sender, attach_id=2, key=sender.keys[2]) == {"ok": True}
    assert sender.engine.purged == [2]


@pytest.mark.parametrize("attach_id", [None, 0, "1", True, 1 << 63])
def test_a_question_without_a_number_is_refused(sender: Sender, attach_id: object) -> None:
    answer = ask(sender, attach_id=attach_id)
    assert answer["error"] == "MALFORMED"
    assert "attach_id" in answer["message"]


def test_a_transactional_front_end_aborts_instead(sender: Sender) -> None:
    sender.engine.transactional[1] = True
    assert ask(sender)["error"] == "MALFORMED"


def test_a_front_end_does_not_ask_on_its_own_connection(sender: Sender) -> None:
    """There, a sender of an earlier version would end it."""
    _, client = sender.attach()
    control_messages.send(client, {"op": "purge", "attach_id": 2, "key": sender.keys[2]})
    sender.turn()
    answer, _ = control_messages.receive(client)
    assert answer is not None
    assert answer["error"] == "MALFORMED"
    assert sender.engine.purged == []


def test_a_connection_has_the_time_limit_of_each_other_one(sender: Sender) -> None:
    _, _, client = sender.ask({"op": "purge", "attach_id": 1, "key": sender.keys[1]})
    sender.turn(listening.HANDSHAKE_S + 1)
    assert hung_up(client)
