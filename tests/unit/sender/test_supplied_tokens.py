"""Tests which supplied OAuth tokens a sender takes, and when it asks for the next one."""

import json
import logging
from typing import Any

import pytest
from support.unsigned_jwt import jwt

from cyproducer.security.token_principal import jwt_principal
from cyproducer.security.token_source import Token
from cyproducer.sender.cluster.supplied_tokens import Refusal, SuppliedTokens
from cyproducer.sender.system.tasks import Reply, Tasks

SETTINGS = {"sasl_login_refresh_window_factor": 0.8, "sasl_login_refresh_window_jitter": 0.0}


class Rig:
    """Tokens with a clock that stands still, and with the checks that wait for the answer of a broker."""

    def __init__(self, **settings: Any) -> None:
        self.now = 1_000_000.0
        self.monotonic = 500.0
        self.checks: list[tuple[Token, Reply[Refusal | None]]] = []
        self.results: list[Refusal | None] = []
        self.tasks = Tasks(0, logging.getLogger("test"))
        self.tokens = SuppliedTokens(
            SETTINGS | settings,
            self.tasks,
            self._check,
            lambda: self.now,
            lambda: 0.0,
            lambda: self.monotonic,
        )

    def take(self, value: str, lifetime: float | None = 1000.0) -> None:
        expires_at = None if lifetime is None else self.now + lifetime
        self.tokens.accept_new(value, expires_at, {}, self.results.append)
        self.tasks.run(0)

    async def _check(self, token: Token) -> Refusal | None:
        reply = Reply[Refusal | None]()
        self.checks.append((token, reply))
        return await reply.get()

    def answer(self, error: str = "", undecided: bool = False) -> None:
        _, reply = self.checks.pop(0)
        reply.set(Refusal("UNCHECKED" if undecided else "TOKEN", error) if error else None)
        self.tasks.run(0)

    @property
    def current(self) -> str | None:
        token = self.tokens.current
        return None if token is None else token.value


def test_a_token_is_used_after_a_broker_has_accepted_it() -> None:
    rig = Rig()
    assert rig.tokens.usable() == (None, rig.tokens.usable()[1])
    assert "no attached process has supplied" in rig.tokens.usable()[1]
    rig.take("a")
    rig.take("a")
    assert (rig.current, rig.results, len(rig.checks)) == (None, [], 1)
    rig.answer()
    assert (rig.current, rig.results) == ("a", [None, None])
    rig.take("a")
    assert (rig.results, rig.checks) == ([None] * 3, [])


def test_refusals() -> None:
    rig = Rig()
    rig.take("a")
    rig.answer("the broker refuses it")
    rig.take("b")
    rig.answer("no broker", undecided=True)
    rig.take("c", -1)
    assert [(each.name, each.text[:12]) for each in rig.results if each] == [
        ("TOKEN", "the broker r"), ("UNCHECKED", "no broker"), ("TOKEN", "the OAuth to"),
    ]  # fmt: skip
    assert rig.current is None and rig.tokens.due_in_s() is None


def test_a_token_of_another_principal() -> None:
    """It is refused, without a question to a broker, and also if it was being checked when the first one came."""
    rig = Rig()
    rig.take(jwt(sub="alice"))
    rig.take(jwt(sub="bob"))
    rig.answer()
    rig.answer()
    rig.take("opaque")
    rig.take(jwt(sub="alice", jti="2"))
    rig.answer()
    assert [each and each.name for each in rig.results] == [None, "CREDENTIALS", "CREDENTIALS", None]
    rig = Rig(sasl_oauth_principal=jwt_principal(jwt(sub="alice")))
    rig.take(jwt(sub="bob"))
    assert [each and each.name for each in rig.results] == ["CREDENTIALS"]
    assert not rig.checks


def test_a_declared_principal_does_not_allow_other_claims() -> None:
    """The declaration decides which sender a process finds. It does not lend connections with a wider scope."""
    rig = Rig(sasl_oauth_principal="declared")
    rig.take(jwt(sub="alice", scope="read write"))
    rig.answer()
    rig.take(jwt(sub="alice", scope="read"))
    assert rig.results[0] is None and rig.results[1] is not None and rig.results[1].name == "CREDENTIALS"
    assert "leave sender= out if it is given, else set another sasl_oauth_principal" in rig.results[1].text


def test_when_the_next_token_is_requested() -> None:
    rig = Rig()
    for lifetime, due in ((1000.0, 700.0), (100.0, 80.0), (None, 240.0), (10_000.0, 8000.0)):
        rig = Rig()
        rig.take("a", lifetime)
        rig.answer()
        assert rig.tokens.due_in_s() == due
    rig.now += 8000
    assert rig.tokens.due_in_s() == 0
    rig.take("a", 2000.0)  # the provider keeps its tokens
    assert rig.tokens.due_in_s() == rig.tokens.patience_s() == 10
    rig.tokens.on_not_supplied("it failed")
    rig.now += 2001
    token, why = rig.tokens.usable()
    assert token is None and "has expired" in why and "(it failed)" in why
    rig.take("b", 100.0)
    rig.answer()
    assert rig.tokens.usable()[0] is rig.tokens.current and rig.tokens.trouble == ""


def test_an_older_token_does_not_replace_a_newer_one() -> None:
    rig = Rig()
    rig.take("new", 1000.0)
    rig.answer()
    rig.take("old", 500.0)
    rig.answer()
    assert (rig.current, rig.results) == ("new", [None, None])
    assert rig.tokens.due_in_s() == 700


def test_a_valid_token_that_is_not_used_does_not_lead_to_requests_without_a_pause() -> None:
    rig = Rig()
    rig.take("new", 1000.0)
    rig.answer()
    rig.now += 800
    for _ in range(2):  # at first a broker is asked, then the token is known
        assert rig.tokens.due_in_s() == 0
        rig.take("short", 100.0)
        if rig.checks:
            rig.answer()
        assert rig.current == "new" and rig.tokens.due_in_s() == rig.tokens.patience_s() == 10
        rig.now += 10


@pytest.mark.parametrize("value", ["new", "short"])
def test_processes_that_attach_do_not_delay_a_request(value: str) -> None:
    rig = Rig()
    for each, lifetime in (("new", 1000.0), ("short", 950.0)):
        rig.take(each, lifetime)
        rig.answer()
    rig.now += 695
    rig.take(value, 250.0)
    assert rig.tokens.due_in_s() == 5


def test_a_successor_has_the_token_and_its_principal() -> None:
    former = Rig()
    former.take(jwt(sub="alice"), 1000.0)
    former.answer()
    rig = Rig()
    held = former.tokens.for_successor()
    assert held is not None
    rig.tokens.restore(json.loads(json.dumps(held)))
    assert rig.current == former.current and rig.tokens.due_in_s() == former.tokens.due_in_s()
    rig.take(jwt(sub="bob"))
    assert rig.results[0] is not None
    assert "alice" not in repr(rig.tokens) and str(rig.current) not in repr(rig.tokens)


def test_checks_are_limited() -> None:
    rig = Rig()
    for number in range(65):
        rig.take(f"t{number}")
    assert [each and each.name for each in rig.results] == ["UNCHECKED"]
    while rig.checks:
        rig.answer()
    rig.take("t64")
    rig.answer()
    assert rig.results[-1] is None


def test_a_check_that_hangs_is_given_up() -> None:
    """It is in the way of no other check. Its answer, if one comes, counts for the next attempt."""
    rig = Rig()
    assert rig.tokens.next_check_ends_in_s() is None
    for number in range(64):
        rig.take(f"t{number}")
    rig.take("t0")
    assert rig.tokens.next_check_ends_in_s() == 13
    rig.monotonic += 5
    rig.tokens.end_late_checks()
    assert rig.results == [] and rig.tokens.next_check_ends_in_s() == 8
    rig.monotonic += 8
    rig.tokens.end_late_checks()
    assert [each and each.name for each in rig.results] == ["UNCHECKED"] * 65
    assert rig.tokens.next_check_ends_in_s() is None
    rig.take("t1")
    rig.answer()
    assert (rig.results[65:], rig.current) == ([], None)  # the late answer is that for t0
    rig.take("t0")
    assert (rig.results[65:], rig.current) == ([None], "t0")
    rig.answer("the broker refuses it")
    assert [each and each.name for each in rig.results[66:]] == ["TOKEN"]  # the answer for t1
    rig.answer()
    rig.take("t2")
    assert (rig.results[67:], rig.current) == ([None], "t2")
