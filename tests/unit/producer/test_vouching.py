"""Tests how a process shows a sender its OAuth token, and how it tries again."""

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError, SenderUnavailableError
from cyproducer.host import control_messages
from cyproducer.producer.channel import attach as module
from cyproducer.producer.channel.attach import TryAgainError, UncheckedTokenError, vouch
from cyproducer.producer.tokens.token_supplier import TokenSupplier


class Rig:
    """A supplier of tokens t1, t2, ..., and the sockets of a process and of its sender."""

    def __init__(self) -> None:
        self.calls = 0
        self.tokens = TokenSupplier(settings_of(self._provide))

    def _provide(self) -> tuple[str, float]:
        self.calls += 1
        return f"t{self.calls}", time.time() + 3600

    def show(self, answer: dict[str, Any] | None, named: bool = False) -> str:
        """Show a token to a sender that gives this answer; None: it hangs up. Return the token."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            ours.setblocking(False)
            if answer is not None:
                control_messages.send(theirs, answer)
            else:
                theirs.shutdown(socket.SHUT_WR)
            try:
                vouch(ours, self.tokens, "/path", named, time.monotonic() + 30)
            finally:
                message, _ = control_messages.receive(theirs)
        assert message is not None
        return str(message["token"])


def settings_of(provide: Any, **more: Any) -> Settings:
    return Settings.parse(
        bootstrap_servers="h:1", security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=provide, **more,
    )  # fmt: skip


@pytest.fixture
def rig() -> Iterator[Rig]:
    found = Rig()
    with closing(found.tokens):
        yield found


def refused(name: str) -> dict[str, Any]:
    return {"ok": False, "error": name, "message": "why"}


def test_a_token_that_could_not_be_checked_is_kept(rig: Rig) -> None:
    """Each retry of a process would need a call of its provider otherwise, as long as no broker can be reached."""
    for _ in range(5):
        with pytest.raises(UncheckedTokenError, match="why"):
            rig.show(refused("UNCHECKED"))
    with pytest.raises(TryAgainError, match="closed the connection"):
        rig.show(None)
    assert (rig.show({"ok": True}), rig.calls) == ("t1", 1)


def test_a_token_that_is_refused_is_replaced(rig: Rig) -> None:
    with pytest.raises(SenderUnavailableError, match=r"does not take the OAuth token \(TOKEN\): why"):
        rig.show(refused("TOKEN"))
    with pytest.raises(KafkaConfigurationError, match="has other credentials: why"):
        rig.show(refused("CREDENTIALS"), named=True)
    assert (rig.show({"ok": True}), rig.calls) == ("t3", 3)


@pytest.mark.parametrize("named", [False, True])
def test_the_pause_after_a_token_that_could_not_be_checked(monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    results: list[Any] = [UncheckedTokenError("a"), UncheckedTokenError("b"), TryAgainError("c"), "attached"]
    pauses: list[float] = []

    def attach(*_: Any) -> Any:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    place = SimpleNamespace(socket="/path")
    address = SimpleNamespace(
        with_principal=lambda settings, deadline: settings, find=lambda **_: (place, {}), other_sockets=list
    )
    starter = SimpleNamespace(step=lambda limited: None, descriptors=list, close=lambda: None)
    monkeypatch.setattr(module, "attach", attach)
    monkeypatch.setattr(module, "Starter", lambda *_: starter)
    monkeypatch.setattr(module, "wait_readable", lambda fds, pause: pauses.append(pause))
    settings = settings_of(lambda: "t", **({"sender": "/path"} if named else {}))
    found: Any = module.connect(settings, time.monotonic() + 600, address)  # type: ignore[arg-type]
    assert found == "attached"
    assert pauses[:2] == [1.0, 1.0] and 0 < pauses[2] < 0.1 and len(pauses) == 3
