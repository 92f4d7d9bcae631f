"""Tests the helper process that makes payloads: its answers, its errors and its end."""

import os
import select
import sys
from collections.abc import Iterator

import pytest
from support.otlp_payload import Payload as Decoded
from support.otlp_payload import decompressed
from support.process import kill9, wait_until
from test_otlp import counts, request

from cyproducer.sender.telemetry import otlp
from cyproducer.sender.telemetry.payload_process import Payload, PayloadProcess


@pytest.fixture
def process() -> Iterator[PayloadProcess]:
    made = PayloadProcess()
    yield made
    made.close()
    made.close()


def collected(process: PayloadProcess, count: int) -> list[Payload]:
    poller = select.poll()
    poller.register(process.fd, select.POLLIN)
    found: list[Payload] = []
    while len(found) < count:
        assert poller.poll(20_000), "no answer"
        found += process.collect()
    return found


def pid_of(process: PayloadProcess) -> int:
    return process._helper._pid


def test_a_payload_is_made_in_another_process(process: PayloadProcess) -> None:
    process.prepare()
    process.request(request(counts(5, topics=1000), accepted=[4]))
    (made,) = collected(process, 1)
    assert made.codec == 4 and not made.error
    assert len(Decoded(decompressed(made.codec, made.data)).values) > 6000
    assert pid_of(process) != os.getpid()
    process.request(request(counts(5)))
    assert not collected(process, 1)[0].error


def test_a_missing_library_is_reported_at_once(process: PayloadProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    process.prepare()
    (made,) = collected(process, 1)
    assert made.missing and "opentelemetry" in made.error


def test_an_error_of_the_library_is_an_answer(process: PayloadProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise ValueError("a library's error")

    monkeypatch.setattr(otlp, "payload", fail)
    process.request(request(counts(5)))
    (made,) = collected(process, 1)
    assert made.error == "ValueError: a library's error" and not made.missing


def test_the_end_of_the_process_is_an_error_if_a_payload_is_waited_for(
    process: PayloadProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "payload", lambda _: select.select([], [], [], 1000))
    process.request(request(counts(5)))
    kill9(pid_of(process))
    assert collected(process, 1)[0].error == "the process that prepares the metrics has ended"
    monkeypatch.undo()
    process.request(request(counts(5)))
    assert not collected(process, 1)[0].error


def test_after_end_no_process_is_left_and_another_one_can_be_started(process: PayloadProcess) -> None:
    process.request(request(counts(5)))
    collected(process, 1)
    before = pid_of(process)
    process.end()
    poller = select.poll()
    poller.register(process.fd, select.POLLIN)

    def is_reaped() -> bool:
        poller.poll(100)
        assert list(process.collect()) == []
        return not os.path.exists(f"/proc/{before}")

    wait_until(is_reaped, 20, "the end of the helper process")
    process.request(request(counts(5)))
    assert not collected(process, 1)[0].error
