"""Tests the thread that calls an application's provider of OAuth tokens: when it runs, and when it ends."""

import contextlib
import gc
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.interrupts import at_each_entry
from support.process import run_script, wait_until
from support.unsigned_jwt import jwt

from cyproducer.config.settings import Settings
from cyproducer.errors import SenderUnavailableError
from cyproducer.host import control_messages
from cyproducer.host.poll import wait_readable
from cyproducer.producer.tokens import token_supplier as module
from cyproducer.producer.tokens.token_supplier import TokenSupplier
from cyproducer.security.token_principal import jwt_principal


def supplier_of(provider: Callable[[], Any], **settings: Any) -> TokenSupplier:
    given = {"bootstrap_servers": "h:1", "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
    return TokenSupplier(Settings.parse(**given, sasl_oauth_token_provider=provider, **settings))


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cyproducer-tokens"]


def soon() -> float:
    return time.monotonic() + 30


class Sender:
    """Stands for a sender: takes one connection after the other."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listening.bind(self.path)
        self._listening.listen()
        self._listening.settimeout(30)
        self._connection: socket.socket | None = None

    def accept(self) -> None:
        self.hang_up()
        self._connection, _ = self._listening.accept()
        self._connection.settimeout(30)

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def close(self) -> None:
        self.hang_up()
        self._listening.close()

    def ask(self) -> None:
        assert self._connection is not None
        with contextlib.suppress(ConnectionError):  # the process has hung up
            control_messages.send(self._connection, {"op": "token"})

    def answer(self, error: str = "") -> None:
        assert self._connection is not None
        answer = {"ok": False, "error": error, "message": "refused"} if error else {"ok": True}
        control_messages.send(self._connection, answer)

    def token(self) -> str:
        """Return the next token that arrives; "" if the process hangs up."""
        assert self._connection is not None
        with contextlib.suppress(ConnectionError):
            message, _ = control_messages.receive(self._connection)
            return "" if message is None else str(message["token"])
        return ""


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    with contextlib.closing(Sender(tmp_path / "s")) as found:
        yield found


@pytest.fixture
def numbered() -> Iterator[TokenSupplier]:
    """Return a supplier with the tokens t1, t2, ..., which has the first one already."""
    calls: list[None] = []

    def provide() -> tuple[str, float]:
        calls.append(None)
        return f"t{len(calls)}", time.time() + 1000

    supplier = supplier_of(provide)
    assert supplier.message(soon())["token"] == "t1"
    yield supplier
    supplier.close()


def test_a_kept_token_that_a_sender_refuses_is_replaced(sender: Sender, numbered: TokenSupplier) -> None:
    """The sender is another one than before. It refuses t1, so t2 follows without a request."""
    numbered.serve(sender.path, False)
    sender.accept()
    assert sender.token() == "t1"
    sender.answer("TOKEN")
    assert sender.token() == "t2"
    sender.answer()
    assert numbered.message(soon())["token"] == "t2"
    sender.accept()  # after a hang-up, the last token is supplied again
    assert sender.token() == "t2"


def test_a_new_token_that_a_sender_refuses_is_not_sent_again(sender: Sender, numbered: TokenSupplier) -> None:
    numbered.serve(sender.path, False)
    sender.accept()
    assert sender.token() == "t1"
    sender.answer()
    sender.ask()
    assert sender.token() == "t2"
    sender.answer("CREDENTIALS")
    sender.accept()
    assert sender.token() == "t3"


def test_the_pause_grows_while_a_sender_hangs_up(
    sender: Sender, numbered: TokenSupplier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection is taken and ended. After one with an answer, the pause is the shortest again."""
    pauses: list[float | None] = []

    def spy(fds: list[int], timeout: float | None) -> list[int]:
        if len(fds) == 1:
            pauses.append(timeout)
        return wait_readable(fds, timeout)

    monkeypatch.setattr(module, "wait_readable", spy)
    numbered.serve(sender.path, False)
    for _ in range(4):
        sender.accept()
        assert sender.token() == "t1"
    sender.answer()
    sender.accept()
    assert sender.token() == "t1"
    assert pauses == [0.05, 0.1, 0.2, 0.05]


def test_a_token_that_no_broker_could_check_is_supplied_again(sender: Sender, numbered: TokenSupplier) -> None:
    """The provider is not called for it: a server of tokens would get requests as long as the brokers are down."""
    numbered.serve(sender.path, False)
    sender.accept()
    for _ in range(3):
        assert sender.token() == "t1"
        sender.answer("UNCHECKED")
        sender.ask()
    assert sender.token() == "t1"
    sender.answer()
    sender.ask()
    assert sender.token() == "t2"


def test_a_token_is_kept_until_it_is_to_be_replaced() -> None:
    calls: list[float] = []

    def provide() -> tuple[str, float]:
        calls.append(time.time())
        return f"t{len(calls)}", calls[-1] + 1000

    supplier = supplier_of(provide)
    assert not threads()
    assert [supplier.message(soon())["token"] for _ in range(3)] == ["t1"] * 3
    wait_until(lambda: not threads(), 30, "the end of the thread")  # it serves no sender
    supplier.discard()
    assert supplier.message(soon())["token"] == "t2"
    supplier.close()
    assert not threads()
    assert "t2" not in repr(supplier)


def test_the_principal_of_an_opaque_token() -> None:
    def of(returned: Any, **settings: Any) -> str:
        supplier = supplier_of(lambda: returned, **settings)
        try:
            return supplier.principal(soon())
        finally:
            supplier.close()

    assert of(("x", None, "returned")) == "returned"
    assert of(("x", None, "returned"), sasl_oauth_principal="declared") == "declared"
    assert of("x").startswith("process:") and of("x") != of("x")


def test_a_provider_that_changes_the_claims() -> None:
    """The error says what helps: each principal, also with other claims, has a producer of its own."""
    scopes = ["one", "two"]

    def provide() -> str:
        return jwt(sub="alice", scope=scopes.pop(0))

    supplier = supplier_of(provide)
    supplier.principal(soon())
    supplier.discard()
    with pytest.raises(SenderUnavailableError, match=r"another issuer, .* scope; make another KafkaProducer"):
        supplier.message(soon())
    supplier.close()
    with contextlib.closing(supplier_of(lambda: jwt(sub="alice", scope="two"))) as another:
        assert another.principal(soon()) == jwt_principal(jwt(sub="alice", scope="two"))


def test_forked_children_have_the_principal_and_the_token_of_their_parent() -> None:
    supplier = supplier_of(lambda: (str(os.getpid()), time.time() + 1000))
    parent = supplier.principal(soon()), supplier.message(soon())["token"]
    pid = os.fork()
    if pid == 0:
        same = (supplier.principal(soon()), supplier.message(soon())["token"]) == parent and not threads()
        supplier.discard()
        other = supplier.message(soon())["token"] == str(os.getpid())
        os._exit(0 if same and other else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    supplier.close()


def test_a_closed_supplier_and_a_hanging_provider() -> None:
    ends = threading.Event()
    supplier = supplier_of(lambda: str(ends.wait(60)))
    with pytest.raises(SenderUnavailableError, match="has not returned within max_block_ms"):
        supplier.message(time.monotonic() + 0.05)
    ends.set()
    supplier.close()
    wait_until(lambda: not threads(), 30, "the end of the thread")
    supplier.discard()
    with pytest.raises(SenderUnavailableError, match="the producer is closed"):
        supplier.message(soon())


def test_the_thread_ends_with_a_supplier_that_is_dropped(tmp_path: Any) -> None:
    supplier = supplier_of(lambda: "x")
    supplier.serve(str(tmp_path / "no.sock"), False)
    assert len(threads()) == 1
    del supplier
    gc.collect()
    wait_until(lambda: not threads(), 30, "the end of the thread")


def test_a_token_at_exit() -> None:
    """The flush at exit may need one, to find another sender."""
    script = """
import atexit, time
supplier = None
atexit.register(lambda: print(supplier.message(time.monotonic() + 30)["token"]))
from cyproducer.config.settings import Settings
from cyproducer.producer.tokens.token_supplier import TokenSupplier

supplier = TokenSupplier(Settings.parse(
    bootstrap_servers="h:1", security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER",
    sasl_oauth_token_provider=lambda: "at exit",
))
supplier.serve("/no/socket", False)  # newer versions of Python start no thread at exit
"""
    assert run_script(script).stdout == "at exit\n"


def test_a_defect_in_the_thread_does_not_end_the_supply(
    sender: Sender, numbered: TokenSupplier, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures: list[None] = []

    def fails(*_: object) -> list[int]:
        failures.append(None)
        raise AttributeError("marked-secret")

    monkeypatch.setattr(module, "_DEFECT_PAUSE_S", 0.01)
    with monkeypatch.context() as patched:
        patched.setattr(module, "wait_readable", fails)
        numbered.serve(sender.path, False)
        wait_until(lambda: len(failures) > 3, 30, "failures")
        numbered.discard()
        assert numbered.message(soon())["token"] == "t2"
    answer = ""
    while not answer:  # the first connections are those of the failed attempts
        sender.accept()
        sender.token()
        sender.ask()
        answer = sender.token()
    assert answer == "t3" and len(threads()) == 1
    assert caplog.text.count("the thread that supplies OAuth tokens failed with AttributeError in ") == 1
    assert "marked-secret" not in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_started_anew(
    sender: Sender, numbered: TokenSupplier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread ends by an exception such as gevent's GreenletExit. Nobody waits for it, and the next use works."""

    def ends(*_: object) -> float:
        raise SystemExit

    numbered.discard()
    with monkeypatch.context() as patched:
        patched.setattr(module._Worker, "_step", ends)
        with pytest.raises(SenderUnavailableError, match="has ended; try again"):
            numbered.message(soon())
        numbered.serve(sender.path, False)
        wait_until(lambda: not threads(), 30, "the end of the thread")
    assert numbered.message(soon())["token"] == "t2"
    sender.accept()
    assert sender.token() == "t2"


def test_a_call_that_is_interrupted_holds_up_no_other_thread() -> None:
    """An exception of a signal's handler comes at each entry of a Python function of the call."""
    suppliers: list[TokenSupplier] = []

    def prepare() -> Callable[[], object]:
        suppliers.append(supplier_of(lambda: "x"))
        return lambda: suppliers[-1].message(soon())

    told = []
    for each in at_each_entry(prepare):
        told.append(each)
        supplier, messages = suppliers.pop(), []
        other = threading.Thread(target=lambda: messages.append(supplier.message(soon())), daemon=True)  # noqa: B023
        other.start()
        other.join(30)
        assert [message["token"] for message in messages] == ["x"], each.where
        supplier.close()
        each.error = None
    suppliers.pop().close()
    assert len(told) > 10
    wait_until(lambda: not any(thread.is_alive() for thread in threads()))


def test_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fails(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    supplier = supplier_of(lambda: "x")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(SenderUnavailableError, match=r"no thread .* can be started"):
            supplier.message(soon())
        supplier.serve("/no/socket", False)
    assert "supplies the sender with no further OAuth tokens" in caplog.text
    assert supplier.message(soon())["token"] == "x"
    supplier.close()
