"""Tests the payloads that the helper makes: their contents, and the errors."""

import errno
import os
import sys
import time
from collections.abc import Iterator

import pytest
from support.asking import Asked, Asking, helpers
from support.otlp_payload import Payload as Decoded
from support.otlp_payload import decompressed
from support.process import kill9, wait_until
from test_otlp import counts, request

from cyproducer.sender.system.helper import EndedError
from cyproducer.sender.telemetry import otlp
from cyproducer.sender.telemetry.payload import JOBS, LibraryError, PayloadError, load_library, make_payload


class VersionError(Exception):
    """An error like that of protobuf, which is no ImportError."""


@pytest.fixture
def asking() -> Iterator[Asking]:
    made = Asking(JOBS)
    yield made
    made.close()


def made(asking: Asking, **more: object) -> Asked:
    return asking.start(make_payload(asking.helper, request(counts(5, topics=1000), **more)))


def test_a_payload_is_made_in_another_process(asking: Asking) -> None:
    before = len(os.listdir("/proc/self/fd"))
    asking.start(load_library(asking.helper)).wait()
    found = made(asking, accepted=[4]).wait()
    assert found.codec == 4
    assert len(Decoded(decompressed(found.codec, found.data)).values) > 6000
    assert len(helpers()) == 1
    assert made(asking).wait().data
    assert len(os.listdir("/proc/self/fd")) == before + 1, "only the socket of the helper is open"


def test_a_missing_library_is_reported_at_once(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for asked in (asking.start(load_library(asking.helper)), made(asking)):
        with pytest.raises(LibraryError, match=r"ModuleNotFoundError: .*opentelemetry"):
            asked.wait()


def test_a_library_whose_dependency_does_not_fit(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise VersionError("generated with protobuf 6, the runtime is protobuf 5")

    monkeypatch.setattr(otlp, "load_library", refuse)
    for asked in (asking.start(load_library(asking.helper)), made(asking)):
        with pytest.raises(LibraryError, match="VersionError: generated with protobuf 6"):
            asked.wait()


def test_a_shortage_during_the_import_is_no_final_error(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(otlp, "load_library", refuse)
    for asked in (asking.start(load_library(asking.helper)), made(asking)):
        with pytest.raises(PayloadError, match="Too many open files") as caught:
            asked.wait()
        assert not isinstance(caught.value, LibraryError)


def test_an_error_of_the_library_is_an_answer(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ValueError("a library's error")

    monkeypatch.setattr(otlp, "payload", fail)
    with pytest.raises(PayloadError, match="ValueError: a library's error") as caught:
        made(asking).wait()
    assert not isinstance(caught.value, LibraryError)


def test_a_payload_that_ends_the_helper_twice_is_an_error(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "payload", lambda _: time.sleep(1000))
    monkeypatch.setattr(otlp, "load_library", lambda: time.sleep(1000))
    hanging, loading = made(asking), asking.start(load_library(asking.helper))
    for _ in range(2):
        (pid,) = wait_until(helpers, 20, "a helper")
        kill9(pid)
        asking.turn()
    with pytest.raises(PayloadError, match="the process that prepares the metrics has ended"):
        hanging.wait()
    with pytest.raises(EndedError):
        loading.wait()
    monkeypatch.undo()
    assert made(asking).wait().data


def test_a_helper_that_cannot_be_started(asking: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(PayloadError, match="Resource temporarily unavailable"):
        made(asking).wait()
