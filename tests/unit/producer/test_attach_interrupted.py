"""Tests a signal handler that raises while a process attaches: its exception comes out, nothing is left behind."""

import contextlib
import functools
import gc
import os
import random
import signal
import time
import types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from standin_sender import StandIn
from support.process import wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.config.settings import Settings
from cyproducer.producer.core import native

KINDS = (TimeoutError, ConnectionResetError, FileNotFoundError, BlockingIOError, AttributeError, KeyboardInterrupt)


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Collect no garbage: an exception of a handler in a callback of the collector is only printed."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def interrupted() -> Iterator[Callable[..., BaseException | None]]:
    """Return ``interrupted(call, after_s, kind)``: what `call()` raises if a handler raises `kind` after that time."""

    def run(call: Callable[[], object], after_s: float, kind: type[BaseException]) -> BaseException | None:
        def handler(_number: int, _frame: object) -> None:
            raise kind("of the handler")

        signal.signal(signal.SIGALRM, handler)
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, after_s)
                call()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except BaseException as error:
            return error
        return None

    former = signal.getsignal(signal.SIGALRM)
    yield run
    signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("kind", KINDS)
def test_exception_of_a_handler_while_a_named_sender_is_awaited(short_tmp, interrupted, kind) -> None:
    """Most of these are OSErrors, which the kernel raises as well when there is no listener."""
    producer = KafkaProducer(sender=str(short_tmp / "nobody.sock"), max_block_ms=60_000)
    for _ in range(5):
        error = interrupted(lambda: producer.send("t", b"x"), random.uniform(0.001, 0.05), kind)
        assert type(error) is kind
        assert str(error) == "of the handler"


def descriptors() -> set[tuple[str, str]]:
    """Return (number, target) of the open descriptors."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


def test_interrupted_attach_leaves_no_descriptor(short_tmp, interrupted) -> None:
    """At any moment of it: descriptors come from the kernel and from the sender, and are stored in several steps."""
    path = short_tmp / f"s{time.monotonic_ns()}"
    with StandIn(path, {"t": 1}) as sender, warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # a socket that the interpreter closes for us
        with KafkaProducer(sender=sender.path) as first:
            started = time.monotonic()
            first.send("t", b"x").result(10)
            takes_s = time.monotonic() - started
        seen = set()
        gc.collect()
        time.sleep(0.2)
        before = descriptors()
        for _ in range(200):
            producer = KafkaProducer(sender=sender.path)
            error = interrupted(lambda p=producer: p.partitions_for("t"), random.uniform(1e-5, takes_s), TimeoutError)
            assert error is None or str(error) == "of the handler"
            seen.add(type(error))
            producer.close(10)
            del producer, error
        assert TimeoutError in seen
        gc.collect()
        wait_until(lambda: descriptors() == before, 30, "the stand-in closes its side")


def test_socket_closes_itself_without_python_code(short_tmp) -> None:
    """A handler could raise in a __del__ of Python, before its first line; the socket would stay open."""
    path = short_tmp / f"s{time.monotonic_ns()}"
    with StandIn(path, {"t": 1}) as sender, KafkaProducer(sender=sender.path) as producer:
        producer.partitions_for("t")
        finalizer = type(producer._channel().session.attachment.socket).__del__
        assert not isinstance(finalizer, types.FunctionType)


def test_session_that_was_not_made_is_dropped_without_a_word(capfd) -> None:
    """A handler has raised in the middle of its construction."""

    class Interrupted:
        @property
        def arena(self) -> None:
            raise KeyboardInterrupt

    owner: Any = native.SessionOwner(Settings.parse(sender="/none.sock"))  # type: ignore[abstract]
    attachment: Any = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        native.Session(owner, attachment)
    gc.collect()
    assert capfd.readouterr().err == ""


def test_errors_of_the_kernel_are_not_passed_on(short_tmp) -> None:
    with pytest.raises(errors.SenderUnavailableError, match="No such file"):
        KafkaProducer(sender=str(short_tmp / "nobody.sock"), max_block_ms=50).send("t", b"x")


class _Handler:
    def __call__(self, number: int, frame: object) -> None:
        raise TimeoutError("of the handler")

    def method(self, number: int, frame: object) -> None:
        self(number, frame)


HANDLERS = {
    "object": _Handler(),
    "method": _Handler().method,
    "partial": functools.partial(_Handler.method, _Handler()),
    "lambda": lambda *_arguments: _Handler()(0, None),
}


@pytest.mark.parametrize("name", HANDLERS)
def test_handlers_of_all_kinds_are_recognised(name: str, short_tmp: Path) -> None:
    former = signal.signal(signal.SIGALRM, HANDLERS[name])
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(TimeoutError, match="of the handler"):
            KafkaProducer(sender=str(short_tmp / "nobody.sock"), max_block_ms=30_000).send("t", b"x")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
