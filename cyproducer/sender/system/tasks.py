"""Runs coroutines of the control plane between two iterations of the native loop.

A coroutine runs until it awaits a pause or a signal. Only one runs at a time, and none is interrupted. A forked child
drops them where they wait, so their code must have no effect in `finally`.
"""

import heapq
import itertools
import logging
import types
from collections import deque
from collections.abc import Coroutine, Generator
from typing import Any, Generic, Protocol, TypeVar

__all__ = ["NOTHING_DUE_MS", "Reply", "Signal", "Task", "Tasks", "TimeLimitError", "sleep"]

NOTHING_DUE_MS = 60_000  # nothing is scheduled: run() is called again after this time at the latest
TIMERS_KEPT = 64  # with more, those that are over are removed each time that the number has doubled


_Result = TypeVar("_Result")


class TimeLimitError(Exception):
    """The time limit of a task is over."""


class _Timer(Protocol):
    @property
    def is_over(self) -> bool: ...
    def expire(self) -> None: ...


class _Wait:
    """What a task waits for: a signal, a time, or the first of both."""

    def __init__(self, signal: "Signal | None", limit_ms: int | None) -> None:
        self.signal = signal
        self.limit_ms = limit_ms
        self.task: Task | None = None

    @property
    def is_over(self) -> bool:
        return self.task is None

    def expire(self) -> None:
        self.end(is_set=False)

    def end(self, *, is_set: bool) -> None:
        if self.task is not None:
            self.task.go_on(is_set)


@types.coroutine
def _wait(signal: "Signal | None", limit_ms: int | None) -> Generator[_Wait, bool, bool]:
    return (yield _Wait(signal, limit_ms))


async def sleep(pause_ms: int) -> None:
    """Let other tasks and the native loop run for so many milliseconds; 0: for one iteration."""
    await _wait(None, pause_ms)


class Signal:
    """Lets tasks wait for something that another part of the control plane reports."""

    def __init__(self) -> None:
        self._waits: list[_Wait] = []

    def set(self) -> None:
        """Let all tasks that wait now go on."""
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.end(is_set=True)

    async def wait(self, limit_ms: int | None = None) -> bool:
        """Return when it is set, or after `limit_ms`. Return whether it was set."""
        return await _wait(self, limit_ms)

    def add(self, wait: _Wait) -> None:
        """Keep a wait that begins, and forget those that are over."""
        self._waits = [each for each in self._waits if not each.is_over]
        self._waits.append(wait)


class Reply(Generic[_Result]):
    """What a task gets once, from a part of the control plane that is no task: a result, or an exception."""

    def __init__(self) -> None:
        self.is_set = False
        self._came = Signal()
        self._result: _Result | None = None
        self._error: Exception | None = None

    def set(self, result: _Result) -> None:
        """Give the result, unless there is one."""
        if not self.is_set:
            self.is_set, self._result = True, result
            self._came.set()

    def fail(self, error: Exception) -> None:
        """Give an exception, unless there is a result."""
        if not self.is_set:
            self.is_set, self._error = True, error
            self._came.set()

    async def wait(self, limit_ms: int | None = None) -> bool:
        """Wait until it is set. Return whether it is set after `limit_ms`."""
        return self.is_set or await self._came.wait(limit_ms)

    async def get(self) -> _Result:
        """Return the result, or raise the exception."""
        await self.wait()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class Task:
    """A coroutine that is being run. `is_over`: it has returned, or has raised an exception."""

    def __init__(self, tasks: "Tasks", coroutine: Coroutine[_Wait, Any, None]) -> None:
        self._tasks = tasks
        self._coroutine = coroutine
        self._wait: _Wait | None = None
        self._got: bool | Exception | None = None
        self._limit: _Limit | None = None
        self.is_over = False

    def limit(self, limit_ms: int | None) -> None:
        """Raise a TimeLimitError in the coroutine `limit_ms` from now, where it waits then. None: do not."""
        if self._limit is not None:
            self._limit.is_over = True
        self._limit = None if limit_ms is None else _Limit(self)
        if self._limit is not None and limit_ms is not None:
            self._tasks.add_timer(limit_ms, self._limit)

    def stop(self, error: Exception) -> None:
        """Raise an exception in the coroutine, where it waits."""
        if self._wait is not None:
            self.go_on(False)
        self._got = error

    def close(self) -> None:
        """End a coroutine that has not begun."""
        self._coroutine.close()

    def go_on(self, is_set: bool) -> None:
        """End the wait that goes on now."""
        assert self._wait is not None
        self._wait.task = None
        self._wait = None
        self._got = is_set
        self._tasks.make_ready(self)

    def step(self) -> _Wait | None:
        """Run the coroutine up to its next wait, and return that; None: it has returned. Raise what it raises."""
        got, self._got = self._got, None
        self.is_over = True
        try:
            wait = self._coroutine.throw(got) if isinstance(got, Exception) else self._coroutine.send(got)
        except StopIteration:
            self.limit(None)
            return None
        except Exception as error:
            self.limit(None)
            if error is got:
                return None
            raise
        self.is_over = False
        wait.task = self
        self._wait = wait
        return wait


class _Limit:
    """The time limit of a task."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.is_over = False

    def expire(self) -> None:
        if not self._task.is_over:
            self._task.stop(TimeLimitError())


class Tasks:
    """The coroutines. `now_ms`: the time of the present run(), by the monotonic clock."""

    def __init__(self, now_ms: int, log: logging.Logger) -> None:
        self.now_ms = now_ms
        self._log = log
        self._started: list[Task] = []
        self._ready: deque[Task] = deque()
        self._timers: list[tuple[int, int, _Timer]] = []
        self._timers_max = TIMERS_KEPT
        self._numbers = itertools.count()

    def start(self, coroutine: Coroutine[Any, Any, None], limit_ms: int | None = None) -> Task:
        """Begin to run a coroutine, in the next run(). After `limit_ms` it gets a TimeLimitError where it waits."""
        task = Task(self, coroutine)
        self._started.append(task)
        task.limit(limit_ms)
        return task

    def abandon(self) -> None:
        """Drop all coroutines: this is a forked child, and they belong to its parent."""
        for task in self._started:
            task.close()
        self._started.clear()
        self._ready.clear()
        self._timers.clear()

    def make_ready(self, task: Task) -> None:
        """Let a task go on in this run(), or in the next one."""
        self._ready.append(task)

    def run(self, now_ms: int) -> int:
        """Run what is due. Return in how many ms something is due again."""
        self.now_ms = now_ms
        self._ready.extend(self._started)
        self._started.clear()
        due = []
        while self._timers and self._timers[0][0] <= now_ms:
            due.append(heapq.heappop(self._timers)[2])
        self.run_ready()  # what has come in time counts before a time limit
        for timer in due:
            if not timer.is_over:
                timer.expire()
        self.run_ready()
        self._remove_ended_timers()
        if self._started:
            return 0
        return max(self._timers[0][0] - now_ms, 0) if self._timers else NOTHING_DUE_MS

    def run_ready(self) -> None:
        """Run only what waits for nothing any more."""
        while self._ready:
            self._step(self._ready.popleft())

    def _step(self, task: Task) -> None:
        try:
            wait = task.step()
        except Exception:  # it must not end the sender: each restarted sender would end, too
            self._log.exception("a task of the sender has failed")
            return
        if wait is None:
            return
        if wait.signal is not None:
            wait.signal.add(wait)
        if wait.limit_ms is not None:
            self.add_timer(wait.limit_ms, wait)

    def add_timer(self, limit_ms: int, timer: _Timer) -> None:
        """Let a timer expire, unless it is over before."""
        heapq.heappush(self._timers, (self.now_ms + limit_ms, next(self._numbers), timer))

    def _remove_ended_timers(self) -> None:
        while self._timers and self._timers[0][2].is_over:
            heapq.heappop(self._timers)
        if len(self._timers) > self._timers_max:
            self._timers = [row for row in self._timers if not row[2].is_over]
            heapq.heapify(self._timers)
            self._timers_max = max(TIMERS_KEPT, 2 * len(self._timers))
