"""Tests the control plane's part of questions about transactions: who may ask, late answers, and answers that fail."""

import errno
import json
import os
import socket
from collections.abc import Callable

import pytest
from control_rig import Sender, close_all, hung_up

from cyproducer.host import control_messages
from cyproducer.sender.control import listening

ANSWER = {"transactions": []}


def ask(sender: Sender, **question: object) -> socket.socket:
    client = sender.connect()
    control_messages.send(client, {"op": "transactions", **question})
    sender.turn()
    return client


def test_the_answer_comes_when_the_brokers_have_answered(make: Callable[..., Sender]) -> None:
    sender = make(idle_timeout_s=None)
    client = ask(sender, do="describe", ids=["a"])
    sender.turn(10 * listening.HANDSHAKE_S)
    ((question, answer),) = sender.engine.questions
    assert (question["do"], question["ids"]) == ("describe", ["a"])
    answer(ANSWER)
    message, fds = control_messages.receive(client)
    assert message == {"ok": True}
    assert json.loads(os.pread(fds[0], 1 << 20, 0)) == ANSWER
    close_all(fds)
    client.close()


def test_a_process_that_has_hung_up_gets_no_answer(make: Callable[..., Sender]) -> None:
    sender = make()
    ask(sender, do="list").close()
    sender.turn()
    other = sender.connect()  # it may get the same descriptor
    sender.turn()
    sender.engine.questions[0][1](ANSWER)
    other.setblocking(False)
    with pytest.raises(BlockingIOError):
        control_messages.receive(other)


def test_an_answer_that_cannot_be_sent_ends_only_its_connection(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = make()
    client, other = ask(sender, do="list"), ask(sender, do="list")

    def full(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", full)
        sender.engine.questions[0][1](ANSWER)
    assert hung_up(client)
    sender.engine.questions[1][1](ANSWER)
    message, fds = control_messages.receive(other)
    close_all(fds)
    assert message == {"ok": True}


def test_only_the_owner_may_abort(make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch) -> None:
    sender = make(allow_uids=[12345])
    monkeypatch.setattr(control_messages, "peer_credentials", lambda sock: (os.getpid(), 12345, 12345))
    message, _ = control_messages.receive(ask(sender, do="abort", id="a"))
    assert message is not None and message["error"] == "REFUSED" and "may not abort" in message["message"]
    assert sender.engine.questions == []
    ask(sender, do="list")
    assert len(sender.engine.questions) == 1


def test_an_invalid_question_is_refused(make: Callable[..., Sender]) -> None:
    sender = make()
    message, _ = control_messages.receive(ask(sender, do="delete"))
    assert message == {"ok": False, "error": "MALFORMED", "message": "not a question"}
