"""Tests whom a sender asks for the next OAuth token, and whose tokens it refuses."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer.sender.cluster.supplied_tokens import Refusal, SuppliedTokens
from cyproducer.sender.control.peers import OWNER
from cyproducer.sender.control.quotas import RefusalLog
from cyproducer.sender.control.token_suppliers import CHECK_S, TokenSuppliers
from cyproducer.sender.system.tasks import Signal, Tasks

ASK = {"op": "token"}


class Process:
    """Stands for the connection of a process: keeps what the sender sends."""

    def __init__(self, fd: int, is_owner: bool = True) -> None:
        self.fd, self.shown_pid, self.uid = fd, fd, 0 if is_owner else 4711
        self.is_owner, self.vouched, self.deadline = is_owner, False, None
        self.account = OWNER if is_owner else self.uid
        self.sent: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> bool:
        self.sent.append(message)
        return True


class Rig:
    """The suppliers of a sender, with a clock. A broker accepts each token at once, unless `broken`."""

    def __init__(self, own_tokens: bool = True) -> None:
        self.now = 1000.0
        self.broken, self.undecided, self.hangs = "", False, False
        self.told: list[dict[str, Any]] = []
        self.tasks = Tasks(0, logging.getLogger("test"))
        self.tokens = SuppliedTokens(
            {},
            self.tasks,
            self._check,
            lambda: self.now,
            lambda: 0.0,
            lambda: self.now,
        )
        self.table = SimpleNamespace(peers={}, unfinished={}, finish=lambda peer: self.table.unfinished.pop(peer.fd, 0))
        self.table.has = lambda peer: self.table.peers.get(peer.fd) is peer
        self.table.end = lambda peer, why: self.table.peers.pop(peer.fd)
        self.suppliers = TokenSuppliers(
            self.tokens if own_tokens else None,
            self.table,
            RefusalLog(logging.getLogger("test"), lambda: self.now),
            SimpleNamespace(tell=self.told.append),
            logging.getLogger("test"),
            lambda: self.now,
        )  # type: ignore[arg-type]

    async def _check(self, token: Any) -> Refusal | None:
        if self.hangs:
            await Signal().wait()
        return Refusal("UNCHECKED" if self.undecided else "TOKEN", self.broken) if self.broken else None

    def process(self, fd: int, is_owner: bool = True) -> Any:
        self.table.peers[fd] = process = Process(fd, is_owner)
        return process

    def supply(self, process: Any, token: str, lifetime: float = 100.0, serve: bool = True) -> None:
        message = {"token": token, "expires_at": self.now + lifetime, "extensions": {}, "serve": serve}
        self.suppliers.on_token(process, message)
        self.tasks.run(0)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.suppliers.run()


def test_one_process_after_the_other_is_asked() -> None:
    rig = Rig()
    first, second = rig.process(1), rig.process(2)
    rig.supply(first, "a")
    rig.supply(second, "b")
    rig.pass_time(79)
    assert ASK not in first.sent + second.sent
    rig.pass_time(2)
    assert (first.sent.count(ASK), second.sent.count(ASK)) == (1, 0)
    assert rig.suppliers.next_time() == rig.now + rig.tokens.patience_s()
    rig.pass_time(rig.tokens.patience_s() + 0.1)  # it does not answer
    assert (first.sent.count(ASK), second.sent.count(ASK)) == (1, 1)
    rig.suppliers.on_token(second, {"error": "it failed"})
    assert rig.tokens.trouble == "it failed"
    rig.pass_time(rig.tokens.patience_s() + 0.1)
    assert (first.sent.count(ASK), second.sent.count(ASK)) == (2, 1)
    del rig.table.peers[1]  # it has ended
    rig.pass_time(0)
    assert second.sent.count(ASK) == 2
    rig.supply(second, "c", 200)
    assert rig.tokens.trouble == "" and rig.told[-1]["token"]["value"] == "c"
    rig.pass_time(1)
    assert second.sent.count(ASK) == 2


def test_a_process_whose_tokens_are_not_used_is_asked_after_a_pause() -> None:
    """Its tokens expire earlier than the one of a process that has ended."""
    rig = Rig()
    first, second = rig.process(1), rig.process(2)
    rig.supply(first, "a", 3600)
    rig.supply(second, "b", 300)
    del rig.table.peers[1]
    rig.pass_time(2900)
    for number in range(3):
        assert second.sent.count(ASK) == number + 1
        rig.supply(second, f"b{number}", 300)
        rig.pass_time(0)
        assert second.sent.count(ASK) == number + 1
        rig.pass_time(rig.tokens.patience_s())
    assert rig.tokens.usable()[0] is not None


def test_without_a_process_errors_say_so(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    first = rig.process(1)
    rig.supply(first, "a", serve=False)
    assert first.vouched
    for _ in range(200):
        rig.pass_time(1)
    assert "no attached process has a sasl_oauth_token_provider" in rig.tokens.usable()[1]
    assert caplog.text.count("there is no new OAuth token") == 1


@pytest.mark.parametrize("undecided", [False, True])
def test_a_process_whose_first_token_is_refused_is_asked_for_another(undecided: bool) -> None:
    """After a crash of the sender, a process supplies its last token, which may be valid no more."""
    rig = Rig()
    process = rig.process(1)
    process.deadline = 1015.0
    rig.table.unfinished[1] = process
    rig.broken, rig.undecided = "the broker refuses the OAuth token", undecided
    rig.supply(process, "stale")
    assert [each["error"] for each in process.sent] == ["UNCHECKED" if undecided else "TOKEN"]
    assert not process.vouched and not rig.table.unfinished  # it has no deadline, so its connection stays
    assert "the broker refuses the OAuth token" in rig.tokens.usable()[1]
    rig.broken = ""
    rig.pass_time(rig.tokens.patience_s() - 1)
    assert ASK not in process.sent
    rig.pass_time(1.1)
    assert process.sent.count(ASK) == 1
    rig.supply(process, "new")
    assert process.vouched and rig.told[-1]["token"]["value"] == "new" and rig.tokens.trouble == ""


def test_no_other_process_is_asked_while_no_broker_can_check_a_token() -> None:
    """A new token of each process would be no better. The next round begins with the next process."""
    rig = Rig()
    first, second = rig.process(1), rig.process(2)
    rig.supply(first, "a")
    rig.supply(second, "b")
    rig.pass_time(81)
    rig.broken, rig.undecided = "no broker could check it", True
    rig.supply(first, "c")
    assert (first.sent.count(ASK), second.sent.count(ASK)) == (1, 0)
    rig.pass_time(rig.tokens.patience_s() + 0.1)
    assert (first.sent.count(ASK), second.sent.count(ASK)) == (1, 1)


def test_a_check_that_hangs_is_answered_before_the_connection_ends() -> None:
    rig = Rig()
    process = rig.process(1)
    process.deadline = rig.now + 5
    rig.table.unfinished[1] = process
    rig.hangs = True
    rig.supply(process, "a", serve=False)
    assert rig.suppliers.next_time() < process.deadline == rig.now + CHECK_S
    rig.pass_time(rig.suppliers.next_time() - rig.now)
    assert [each["error"] for each in process.sent] == ["UNCHECKED"]
    assert rig.suppliers.next_time() > rig.now


def test_what_is_refused() -> None:
    rig = Rig()
    stranger, first = rig.process(1, is_owner=False), rig.process(2)
    rig.supply(stranger, "a")
    rig.broken = "the broker refuses it"
    rig.supply(first, "b", serve=False)
    rig.suppliers.on_token(first, {"token": "é", "expires_at": None, "extensions": {}})
    rig.suppliers.on_token(first, {"token": "c", "expires_at": True, "extensions": {}})
    rig.suppliers.on_token(first, {"token": "c", "expires_at": None, "extensions": {"a": 1}})
    assert [each["error"] for each in stranger.sent + first.sent] == ["REFUSED", "TOKEN", *["MALFORMED"] * 3]
    assert not stranger.vouched and not first.vouched and rig.told == []
    assert list(rig.table.peers.values()) == [first], "a process of another user sends no second one"
    other = Rig(own_tokens=False)
    other.supply(first, "a")
    assert first.sent[-1]["error"] == "CREDENTIALS"
