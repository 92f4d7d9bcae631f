"""Tests the coroutines of the sender's control plane: pauses, signals, time limits and errors."""

import gc
import logging
from typing import Any

import pytest

from cyproducer.sender.system.tasks import NOTHING_DUE_MS, TIMERS_KEPT, Reply, Signal, Tasks, TimeLimitError, sleep


@pytest.fixture
def tasks() -> Tasks:
    return Tasks(1000, logging.getLogger("cyproducer.sender"))


def test_a_coroutine_begins_in_the_next_run_and_goes_on_after_its_pause(tasks: Tasks) -> None:
    seen: list[int] = []

    async def work() -> None:
        seen.append(tasks.now_ms)
        await sleep(30)
        seen.append(tasks.now_ms)

    task = tasks.start(work())
    assert seen == []
    assert tasks.run(1000) == 30
    assert tasks.run(1029) == 1
    assert seen == [1000]
    assert not task.is_over
    assert tasks.run(1031) == NOTHING_DUE_MS
    assert seen == [1000, 1031]
    assert task.is_over


def test_a_coroutine_that_starts_others_without_end_does_not_hold_up_the_loop(tasks: Tasks) -> None:
    begun: list[int] = []

    async def work() -> None:
        begun.append(tasks.now_ms)
        if len(begun) < 3:
            tasks.start(work())

    tasks.start(work())
    for count in (1, 2):
        assert tasks.run(1000) == 0
        assert len(begun) == count
    assert tasks.run(1000) == NOTHING_DUE_MS
    assert len(begun) == 3


def test_a_pause_of_nothing_ends_in_the_next_run(tasks: Tasks) -> None:
    seen: list[int] = []

    async def work() -> None:
        for number in range(3):
            seen.append(number)
            await sleep(0)

    tasks.start(work())
    for count in (1, 2, 3):
        assert tasks.run(1000) == 0
        assert len(seen) == count
    assert tasks.run(1000) == NOTHING_DUE_MS


@pytest.mark.parametrize("limit_ms", [None, 50])
def test_a_signal_lets_all_that_wait_go_on_in_the_same_run(tasks: Tasks, limit_ms: int | None) -> None:
    signal, seen = Signal(), []

    async def work(name: str) -> None:
        seen.append((name, await signal.wait(limit_ms)))

    async def set_it() -> None:
        signal.set()

    tasks.start(work("a"))
    tasks.start(work("b"))
    assert tasks.run(1000) == (limit_ms or NOTHING_DUE_MS)
    tasks.start(set_it())
    assert tasks.run(1010) == NOTHING_DUE_MS
    assert seen == [("a", True), ("b", True)]
    assert tasks.run(2000) == NOTHING_DUE_MS


def test_a_signal_that_does_not_come_in_time(tasks: Tasks) -> None:
    signal, seen = Signal(), []

    async def work() -> None:
        for _ in range(2):
            seen.append(await signal.wait(50))

    tasks.start(work())
    tasks.run(1000)
    tasks.run(1050)
    signal.set()
    tasks.run(1060)
    assert seen == [False, True]


def test_a_set_signal_is_not_kept(tasks: Tasks) -> None:
    signal, seen = Signal(), []

    async def work() -> None:
        seen.append(await signal.wait(50))

    signal.set()
    tasks.start(work())
    tasks.run(1000)
    assert seen == []


def test_after_its_time_limit_a_coroutine_gets_an_error_where_it_waits(tasks: Tasks) -> None:
    seen: list[Any] = []

    async def patient() -> None:
        try:
            await Signal().wait()
        except TimeLimitError:
            seen.append(tasks.now_ms)

    async def quick() -> None:
        await sleep(1)

    tasks.start(patient(), limit_ms=200)
    tasks.start(quick(), limit_ms=100)
    assert tasks.run(1000) == 1
    assert tasks.run(1001) == 199
    assert tasks.run(1200) == NOTHING_DUE_MS
    assert seen == [1200]


def test_what_has_come_in_time_counts_before_a_time_limit(tasks: Tasks) -> None:
    reply: Reply[str] = Reply()
    seen: list[str] = []

    async def work() -> None:
        try:
            seen.append(await reply.get())
        except TimeLimitError:
            seen.append("too late")

    tasks.start(work(), limit_ms=100)
    tasks.run(1000)
    reply.set("in time")
    tasks.run(1200)  # the process was stopped meanwhile
    assert seen == ["in time"]


def test_a_reply_is_a_result_or_an_error_and_the_first_one_counts(tasks: Tasks) -> None:
    given, failed, seen = Reply[str](), Reply[str](), []

    async def work(reply: Reply[str]) -> None:
        try:
            seen.append(await reply.get())
        except KeyError as error:
            seen.append(repr(error))

    for reply in (given, failed):
        tasks.start(work(reply))
    tasks.run(1000)
    given.set("one")
    given.fail(KeyError("two"))
    failed.fail(KeyError("three"))
    failed.set("four")
    tasks.run_ready()
    assert seen == ["one", "KeyError('three')"]


def test_a_forked_child_drops_what_has_not_begun(tasks: Tasks, recwarn: pytest.WarningsRecorder) -> None:
    async def work() -> None:
        raise AssertionError("it must not run")

    tasks.start(work())
    tasks.abandon()
    assert tasks.run(1000) == NOTHING_DUE_MS
    gc.collect()
    assert not recwarn.list


def test_a_coroutine_that_is_stopped_before_it_has_begun_does_not_run(
    tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        raise AssertionError("it must not run")

    task = tasks.start(work())
    task.stop(TimeLimitError())
    tasks.run(1000)
    assert task.is_over
    assert caplog.records == []


def test_an_error_is_logged_and_ends_only_its_coroutine(tasks: Tasks, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[str] = []

    async def fail() -> None:
        await sleep(1)
        raise KeyError("unexpected")

    async def work() -> None:
        await sleep(2)
        seen.append("done")

    failed = tasks.start(fail())
    tasks.start(work())
    for now_ms in (1000, 1001, 1002):
        tasks.run(now_ms)
    assert seen == ["done"]
    assert failed.is_over
    assert "a task of the sender has failed" in caplog.text and "KeyError: 'unexpected'" in caplog.text


def test_waits_that_were_ended_early_leave_nothing_behind(tasks: Tasks) -> None:
    signal, other = Signal(), Signal()

    async def work() -> None:
        while True:
            await signal.wait(30_000)
            await other.wait(0)

    tasks.start(work())
    for step in range(10 * TIMERS_KEPT):
        tasks.run(1000 + step)
        signal.set()
    assert len(tasks._timers) <= TIMERS_KEPT + 1
    assert len(other._waits) <= 1
