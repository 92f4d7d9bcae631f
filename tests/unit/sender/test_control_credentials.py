"""Tests which processes the control plane attaches if the settings of the sender have credentials."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import control_rig
import pytest
from control_rig import Sender, attach_message, close_all, hung_up

from cyproducer.host import control_messages, credential_files, credentials
from cyproducer.shm.native import LAYOUT_VERSION
from cyproducer.version import VERSION

SECRET = {"sasl_plain_password": "of the sender"}


def prove(
    sender: Sender,
    secrets: dict[str, str],
    files: dict[str, str] | None = None,
    other: bool = False,
    pid: int | None = os.getpid(),
) -> dict[str, Any]:
    """Attach with proofs. `other`: they are about the challenge of another connection. Return the answer."""
    client = sender.connect()
    challenge = ask_challenge(sender, client)
    if other:
        challenge = ask_challenge(sender, sender.connect())
    fds, message = attach_message(sender_settings={})
    subject = credentials.attaching(challenge, fds[0], pid)
    message |= {"proof": credentials.proof(secrets, subject)} if secrets else {}
    message |= {"files": credential_files.file_proofs(files, subject)} if files else {}
    control_messages.send(client, message, fds)
    close_all(fds)
    sender.turn()
    answer, received = control_messages.receive(client)
    close_all(received)
    assert answer is not None
    return answer


def ask_challenge(sender: Sender, client: socket.socket) -> str:
    control_messages.send(client, {"op": "attach", "layout": LAYOUT_VERSION, "challenge": True})
    sender.turn()
    answer, _ = control_messages.receive(client)
    assert answer is not None and answer["ok"]
    return str(answer["challenge"])


def test_a_process_that_does_not_prove_the_secrets_is_refused(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(control_rig.SETTINGS, "sasl_plain_password", "of the sender")
    sender = make()
    for changes in ({}, {"proof": None}, {"proof": "0" * 64}):
        answer, client = sender.attach(**changes)
        assert answer["error"] == "CREDENTIALS"
        assert hung_up(client)
    assert prove(sender, {"sasl_plain_password": "another"})["error"] == "CREDENTIALS"
    assert prove(sender, SECRET)["ok"]


def test_a_proof_is_for_one_connection(make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has captured a proof could use it when the process id is used again."""
    monkeypatch.setitem(control_rig.SETTINGS, "sasl_plain_password", "of the sender")
    sender = make()
    assert prove(sender, SECRET, other=True)["error"] == "CREDENTIALS"
    assert prove(sender, SECRET)["ok"]


@pytest.mark.parametrize("private", [True, False], ids=["private", "named"])
def test_a_proof_for_a_named_sender_is_none_for_a_private_one(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch, private: bool
) -> None:
    """A listener in a PID namespace that the sender does not see could pass it on: the listener's process id is 0."""
    monkeypatch.setitem(control_rig.SETTINGS, "sasl_plain_password", "of the sender")
    monkeypatch.setattr(control_messages, "peer_credentials", lambda _: (0, os.geteuid(), os.getegid()))
    assert prove(make(private=private), SECRET, pid=None)["ok"] is not private


def test_files_with_credentials_must_be_read(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "key.pem"
    path.write_bytes(b"key")
    monkeypatch.setitem(control_rig.SETTINGS, "ssl_keyfile", str(path))
    sender = make()
    files = {"ssl_keyfile": str(path)}
    answer, _ = sender.attach()
    assert answer["error"] == "CREDENTIALS"
    assert "ssl_keyfile" in answer["message"]
    assert prove(sender, {}, files, other=True)["error"] == "FILES"
    assert prove(sender, {}, files)["ok"]
    path.write_bytes(b"another key")  # it is replaced: both sides read it again
    assert prove(sender, {}, files)["ok"]
    older = tmp_path / "older.pem"
    older.write_bytes(b"key")
    answer = prove(sender, {}, {"ssl_keyfile": str(older)})
    assert answer["error"] == "FILES"
    assert str(path) in answer["message"]
    path.unlink()
    assert prove(sender, {}, files)["ok"], "there is no credential that it could lack"
    path.mkdir()
    assert "is not a regular file" in sender.attach()[0]["message"]


def test_a_named_sender_lends_its_files(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(control_rig.SETTINGS, "ssl_keyfile", str(tmp_path / "key.pem"))
    sender = make(private=False)
    assert sender.attach()[0]["ok"]


def replace(sender: Sender, secrets: dict[str, str], files: dict[str, str], other: bool = False) -> tuple[str, str]:
    """Request a takeover. `other`: the proofs are about the challenge of another connection. Return why not."""
    request = {"op": "replace", "layout": LAYOUT_VERSION, "settings": sender.facts.public_settings}
    answer, _, client = sender.ask({**request, "challenge": True})
    assert answer["ok"]
    if other:
        answer, _, _ = sender.ask({**request, "challenge": True})
    subject = credentials.replacing(answer["challenge"], os.getpid())
    proofs = {"proof": credentials.proof(secrets, subject), "files": credential_files.file_proofs(files, subject)}
    control_messages.send(client, {**request, **proofs})
    sender.turn()
    answer, _ = control_messages.receive(client)
    assert answer is not None
    assert hung_up(client)
    return answer["error"], answer["message"]


def test_a_takeover_needs_the_credentials(
    make: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The sender without a supervisor says DRAINING to a process that has them."""
    path, other = tmp_path / "key.pem", tmp_path / "other.pem"
    path.write_bytes(b"key")
    monkeypatch.setitem(control_rig.SETTINGS, "sasl_plain_password", "of the sender")
    monkeypatch.setitem(control_rig.SETTINGS, "ssl_keyfile", str(path))
    sender, files = make(), {"ssl_keyfile": str(path)}
    assert replace(sender, SECRET, files)[0] == "DRAINING"
    assert replace(sender, SECRET, files, other=True)[0] == "SETTINGS"
    assert replace(sender, {"sasl_plain_password": "another"}, files)[0] == "SETTINGS"
    assert replace(sender, SECRET, {"ssl_keyfile": str(other)})[0] == "FILES"
    assert replace(sender, SECRET, {})[0] == "FILES"
    request = {"op": "replace", "layout": LAYOUT_VERSION, "settings": sender.facts.public_settings}
    assert sender.ask(request)[0]["error"] == "SETTINGS"


@pytest.mark.parametrize("op", ["attach", "replace"])
def test_the_question_for_a_challenge_is_refused_in_another_version(make: Callable[..., Sender], op: str) -> None:
    """The refusal has the versions of both sides, and what to do."""
    sender = make()
    answer, _, client = sender.ask({"op": op, "layout": 99, "version": "9.9", "challenge": True})
    assert answer["error"] == "LAYOUT"
    for text in (VERSION, f"layout {LAYOUT_VERSION}", "99"):
        assert text in answer["message"]
    assert hung_up(client)
