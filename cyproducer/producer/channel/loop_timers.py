"""Ends waits in event loops at their deadline, by a timer of the kernel for each loop that has such waits.

The timers of a loop follow `loop.time()`. Tests of applications freeze that clock (freezegun), and then no timer of
the loop ends.
"""

import asyncio
import functools
import heapq
import itertools
import weakref

from cyproducer.host.interrupts import pass_on
from cyproducer.shm import system_clock
from cyproducer.shm.native import Timer, in_child

__all__ = ["pause", "resolve", "wait_for_result"]

_FEW = 64  # waits that are over may stay in a heap of this size

_Result = asyncio.Future[bool]
_Wait = tuple[float, int, "weakref.ref[_Result]"]
_numbers = itertools.count()


async def wait_for_result(future: _Result, deadline: float | None) -> bool:
    """Return the result of a future of the running loop. At `deadline` (time.monotonic()), set it to False."""
    if deadline is None or future.done():
        return await future
    loop = future.get_loop()
    timers = _timers_of(loop)
    try:
        timers.add(loop, deadline, future)
        return await future
    finally:
        if asyncio._get_running_loop() is loop:  # else the coroutine is freed
            timers.tidy(loop)


async def pause(seconds: float) -> None:
    """Wait."""
    await wait_for_result(asyncio.get_running_loop().create_future(), system_clock.monotonic() + seconds)


def resolve(future: _Result, result: bool) -> None:
    """Set the result of a future, unless it has one or was cancelled."""
    if not future.done():
        future.set_result(result)


class _LoopTimers:
    """The waits of one loop that have a deadline. It keeps neither the loop nor a future alive."""

    def __init__(self) -> None:
        self._timer: Timer | None = None
        self._heap: list[_Wait] = []
        self._tidy_at = _FEW

    def add(self, loop: asyncio.AbstractEventLoop, deadline: float, future: _Result) -> None:
        """Let a wait end at its deadline."""
        if len(self._heap) >= self._tidy_at:
            self._heap = [wait for wait in self._heap if _is_open(wait)]
            heapq.heapify(self._heap)
            self._tidy_at = max(_FEW, 2 * len(self._heap))
        wait = (deadline, next(_numbers), weakref.ref(future))
        heapq.heappush(self._heap, wait)
        if self._heap[0] is wait:
            self._set(loop)

    def tidy(self, loop: asyncio.AbstractEventLoop) -> None:
        """Forget waits that are over. Without waits, there is no timer."""
        while self._heap and not _is_open(self._heap[0]):
            heapq.heappop(self._heap)
        if not self._heap and self._timer is not None:
            timer, self._timer = self._timer, None
            loop.remove_reader(timer.fd)
            timer.close()

    def end_waits(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the waits whose deadline has come, and set the timer for the next one."""
        if self._timer is not None:
            self._timer.clear()
        now = system_clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            future = heapq.heappop(self._heap)[2]()
            if future is not None:
                resolve(future, False)
        self.tidy(loop)
        if self._heap:
            self._set(loop)

    def _set(self, loop: asyncio.AbstractEventLoop) -> None:
        deadline = self._heap[0][0]
        end = functools.partial(_end_waits, weakref.ref(self), weakref.ref(loop))
        try:
            if self._timer is None:
                timer = Timer()
                loop.add_reader(timer.fd, end)
                self._timer = timer
            self._timer.set(deadline)
        except OSError as error:  # the limit of descriptors, or the program has closed this one
            pass_on(error)
            loop.call_later(max(0.0, deadline - system_clock.monotonic()), end)


def _is_open(wait: _Wait) -> bool:
    future = wait[2]()
    return future is not None and not future.done()


def _end_waits(timers_ref: "weakref.ref[_LoopTimers]", loop_ref: "weakref.ref[asyncio.AbstractEventLoop]") -> None:
    timers, loop = timers_ref(), loop_ref()
    if timers is not None and loop is not None:
        timers.end_waits(loop)


_of_loops: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopTimers]" = weakref.WeakKeyDictionary()


def _timers_of(loop: asyncio.AbstractEventLoop) -> _LoopTimers:
    timers = _of_loops.get(loop)
    if timers is None:
        timers = _of_loops[loop] = _LoopTimers()
    return timers


in_child(_of_loops.clear)  # their descriptors are closed there
