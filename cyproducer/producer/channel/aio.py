"""Waits in asyncio: futures and send_async wait through the event loop's own selector, without a thread."""

import asyncio
import copy
import functools
import heapq
import itertools
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, NamedTuple

from cyproducer import errors
from cyproducer.host.interrupts import pass_on
from cyproducer.producer.channel.waits import OutcomeWaits, Retry, count_refused, no_memory, no_metadata
from cyproducer.producer.core.native import (
    Batch,
    Future,
    Place,
    Prepared,
    RecordMetadata,
    Room,
    Session,
    SessionOwner,
    Waiter,
    WaitQueue,
    leave_all,
)
from cyproducer.shm import system_clock
from cyproducer.shm.native import Duplicate, Timer, in_child

__all__ = [
    "LoopWaits",
    "Sending",
    "attach",
    "pause",
    "readable",
    "running_loop",
    "send",
    "send_and_wait",
    "wait_batch",
]


# ------------------------------------------------------------ timers
#
# Ends waits in event loops at their deadline, by a timer of the kernel for each loop that has such waits.
#
# The timers of a loop follow `loop.time()`. Tests of applications freeze that clock (freezegun), and then no timer of
# the loop ends.


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


async def readable(fd: int, deadline: float) -> bool:
    """Wait until a descriptor is readable or hung up. Return False if `deadline` (time.monotonic()) comes first."""
    loop = asyncio.get_running_loop()
    found: _Result = loop.create_future()
    try:
        loop.add_reader(fd, resolve, found, True)
        return await wait_for_result(found, deadline)
    finally:
        if not loop.is_closed():
            loop.remove_reader(fd)


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


# ------------------------------------------------------------ waits
#
# Waits in asyncio: futures and send_async wait through the event loop's own selector, without a thread.


_SAME_DEADLINE_S = 0.1
_NO_THREAD_S = 0.1
_CHECK_S, _SELDOM_S = 0.1, 5.0
_RECHECK_S = 1.0


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running loop. Raise RuntimeError, for example in trio, that names other ways to wait."""
    loop = asyncio._get_running_loop()
    if loop is None:
        raise RuntimeError(
            "no asyncio event loop runs in this thread, and `await` needs one. In trio, wait in a thread: `future = "
            "await trio.to_thread.run_sync(producer.send, topic, value)` and `record = await "
            "trio.to_thread.run_sync(future.result)`. Without an event loop, call send() and future.result()"
        )
    return loop


class LoopReader:
    """Watches a session's descriptors in one event loop, through duplicates: several loops may watch them.

    The loop must not keep the session alive, because the producer may be dropped without close().
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.copies: list[Duplicate] = []
        self._thread = threading.get_ident()

    def watch(self, session: Session) -> None:
        """Begin to watch the descriptors of a session. Raise OSError, for example at the limit of descriptors."""
        session_ref = weakref.ref(session)
        for fd, method in zip(session.descriptors, ("on_wake", "on_control"), strict=True):
            self.copies.append(Duplicate(fd))
            self.loop.add_reader(self.copies[-1].fd, _serve, session_ref, method)

    def close(self) -> None:
        """Stop watching. May be called from any thread, and again after an exception of a signal's handler.

        The loop of another thread does it itself. If that loop runs no more, the duplicates are closed with it.
        """
        is_stopped_here = not self.loop.is_running() and self._thread == threading.get_ident()
        if is_stopped_here or asyncio._get_running_loop() is self.loop:
            _stop(self.loop, self.copies)
        else:
            try:
                self.loop.call_soon_threadsafe(_stop, self.loop, self.copies)
            except RuntimeError:  # the loop is closed
                _stop(self.loop, self.copies)


def _stop(loop: asyncio.AbstractEventLoop, copies: list[Duplicate]) -> None:
    """Stop watching, and close the duplicates. A loop must not watch a number that is closed."""
    while copies:
        if not loop.is_closed():
            loop.remove_reader(copies[-1].fd)
        copies.pop().close()


def _serve(session_ref: "weakref.ref[Session]", method: str) -> None:
    session = session_ref()
    if session is not None:
        getattr(session, method)()


def _watch(session: Session, loop: asyncio.AbstractEventLoop) -> None:
    """Let a loop watch the descriptors of a session, unless it does. Other threads do the same with other loops."""
    if loop in session.loops:
        return
    for known in list(session.loops):
        if known.is_closed() and (reader := session.loops.pop(known, None)) is not None:
            reader.close()
    reader = LoopReader(loop)
    is_kept = False
    try:
        reader.watch(session)
        is_kept = session.watch_in(loop, reader)
    except OSError as error:
        pass_on(error)
        if session.alive:
            raise
        # Another thread has ended the session meanwhile, and its descriptors are closed.
    finally:
        if not is_kept:
            reader.close()


class WeakWaiter:
    """Passes calls on to a LoopWaiter. A session keeps this one, so that it keeps no coroutine of a lost loop alive."""

    __slots__ = ("_waiter",)

    def __init__(self, waiter: "LoopWaiter") -> None:
        self._waiter = weakref.ref(waiter)

    def notify(self) -> None:
        """Call the waiter's notify()."""
        waiter = self._waiter()
        if waiter is not None:
            waiter.notify()

    def wake(self) -> None:
        """Call the waiter's wake()."""
        self.notify()


class LoopWaiter:
    """The wake-up of one waiting coroutine. `notify()` may be called from any thread.

    registered   what a session keeps of it
    """

    __slots__ = ("__weakref__", "future", "loop", "registered")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[bool] = loop.create_future()
        self.registered = WeakWaiter(self)

    def reset(self) -> None:
        """Prepare for another wait."""
        if self.future.done():
            self.future = self.loop.create_future()

    def wake(self) -> None:
        """End the wait for any reason."""
        self.notify()

    def notify(self) -> None:
        """Report that the awaited event has happened."""
        if asyncio._get_running_loop() is self.loop:
            resolve(self.future, True)
        else:
            try:
                self.loop.call_soon_threadsafe(resolve, self.future, True)
            except RuntimeError:
                pass  # the loop is closed: no coroutine waits in it

    async def wait(self, session: Session, deadline: float | None = None) -> bool:
        """Wait for notify() or the end of the session. Return False if `deadline` (time.monotonic()) comes first."""
        session.verify()
        if not session.alive:
            return True
        _watch(session, self.loop)
        try:
            session.enter_sleep(self.registered)
            if not session.alive:  # another thread has ended it, and has woken those that had entered
                return True
            return await wait_for_result(self.future, deadline)
        finally:
            session.leave_sleep(self.registered)


async def wait_batch(batch: Batch, deadline: float | None = None) -> bool:
    """Wait until the batch has its outcome, also if a later session delivers the batch.

    Return False if `deadline` (time.monotonic(); None: no limit) comes first.
    """
    waiter = LoopWaiter(running_loop())
    owner = batch.owner
    if owner is None or not batch.add_waiter(waiter):
        return True
    try:
        while not batch.done and not owner.over:
            if deadline is not None and system_clock.monotonic() >= deadline:
                return False
            if owner.recovering:
                await _wait_for_recovery(waiter, owner, deadline)
            else:
                await waiter.wait(owner.session, deadline)
            waiter.reset()
        return True
    finally:
        batch.remove_waiter(waiter)


async def _wait_for_recovery(waiter: LoopWaiter, owner: SessionOwner, deadline: float | None) -> None:
    """Wait until the owner has another session, its unsent batches have failed, or `deadline` comes."""
    session = owner.session
    try:
        session.enter_sleep(waiter.registered)
        if not owner.recovering or owner.session is not session:  # another thread has woken those that had entered
            return
        if owner.begin_recovery():
            await wait_for_result(waiter.future, deadline)
        else:
            await pause(_NO_THREAD_S)
    finally:
        session.leave_sleep(waiter.registered)


class LoopWaits(OutcomeWaits):
    """Waits in the running loop. Raise RuntimeError without one."""

    async def outcomes(self, batches: Iterable[Batch], deadline: float | None) -> bool:
        """Wait until all batches have their outcome. Return False if `deadline` comes first."""
        running_loop()
        for batch in batches:
            if not await wait_batch(batch, deadline):
                return False
        return True

    async def callbacks(self, owner: SessionOwner, deadline: float | None) -> bool:
        """Wait until the callbacks that are ready have run. Return False if `deadline` comes first."""
        delivery = owner.delivery
        if delivery is None:
            return True
        waiter = Waiter()
        waiter.open()
        try:
            delivery.waiting.append(waiter)  # before is_busy(): a busy thread notifies this waiter when it has finished
            if not delivery.is_busy():
                return True
            delivery.poke()
            while waiter.wanted > 0:
                now = system_clock.monotonic()
                if deadline is not None and now >= deadline:
                    return False
                await readable(waiter.fd, now + _RECHECK_S if deadline is None else min(deadline, now + _RECHECK_S))
            return True
        finally:
            delivery.forget(waiter)
            waiter.close()


async def attach(owner: SessionOwner, deadline: float) -> None:
    """Attach in a thread, because attaching may start a process and wait for it. Raise its error."""
    loop = asyncio.get_running_loop()
    attached: asyncio.Future[bool] = loop.create_future()

    def told(error: BaseException | None, attempted: float) -> None:
        # A coroutine with a much later deadline than this attempt gets no error: it tries again.
        given = copy.copy(error) if deadline - attempted < _SAME_DEADLINE_S else None
        try:
            loop.call_soon_threadsafe(_end_attach, attached, given)
        except RuntimeError:
            pass  # the loop is closed: no coroutine waits in it

    owner.attach_in_background(deadline, told)
    # The attempt may be that of a call with a later deadline.
    if not await wait_for_result(attached, deadline + _SAME_DEADLINE_S):
        raise errors.SenderUnavailableError("no sender in time: another call is still attaching; try again")


def _end_attach(attached: "asyncio.Future[bool]", error: BaseException | None) -> None:
    if attached.done():
        return
    if error is None:
        attached.set_result(True)
    else:
        attached.set_exception(error)


def _enter_line(place: Place, lines: dict[Any, WaitQueue], key: tuple[str, asyncio.AbstractEventLoop]) -> None:
    """Enter the queue of the coroutines of one loop that wait to send to one topic, in the order of their calls.

    Only the first one is also in the session's queue for memory. A coroutine that gets memory opens a batch. Without
    this queue, a later coroutine could find space in that batch before the next one in order is scheduled, and would
    overtake it.
    """
    if key not in lines:
        lines[key] = WaitQueue(lines, key)  # it removes itself when it is empty
    place.enter(lines[key])


async def _be_first(place: Place, waiter: LoopWaiter, deadline: float) -> bool:
    """Wait until the place is the first of its queue. Return False if `deadline` (time.monotonic()) comes first."""
    while not place.is_first:
        now = system_clock.monotonic()
        if now >= deadline:
            return False
        waiter.reset()
        # The first one calls the second. A look of its own helps if an exception of a handler has kept it from that.
        check_at = now + (_CHECK_S if place.is_second else _SELDOM_S)
        await wait_for_result(waiter.future, min(deadline, check_at))
    return True


class _LoopRetry(Retry):
    """The waits of a coroutine."""

    def __init__(self, loop: asyncio.AbstractEventLoop, max_block_s: float) -> None:
        self._waiter = LoopWaiter(loop)
        super().__init__(Place(self._waiter, False), max_block_s)

    @property
    def waiter(self) -> LoopWaiter:
        """The waiter of the place."""
        return self._waiter

    def new_waiter(self) -> LoopWaiter:
        """Return another waiter of the same kind."""
        return LoopWaiter(self._waiter.loop)

    async def attach(self, owner: SessionOwner) -> None:
        """Attach to a sender by the deadline, in a thread. Raise SenderUnavailableError."""
        await attach(owner, self.deadline)


class Sending(NamedTuple):
    """A record that a call of send_async() is to send.

    channel_of   returns the channel of the present process
    attempt      appends the record, or returns None and what it needs before the next attempt
    """

    channel_of: Callable[[], SessionOwner]
    attempt: Callable[[Prepared, Place | None], tuple[Future | None, Room]]
    record: Prepared
    max_block_s: float


async def send(sending: Sending) -> Future:
    """Send the record that KafkaProducer.send_async has prepared, and return its future.

    Wait in the event loop for a session, metadata or memory, up to `max_block_s` seconds; then raise the error of
    the missing one. The records that one loop sends to a topic keep the order of the calls, whatever they wait for.
    """
    try:
        loop = running_loop()
        if (sending.record.topic_name, loop) not in sending.channel_of().lines:
            future, _ = sending.attempt(sending.record, None)
            if future is not None:
                return future
        return await _send_in_turn(sending, _LoopRetry(loop, sending.max_block_s))
    except errors.KafkaError as error:
        count_refused(sending.channel_of(), error)
        raise


async def send_and_wait(sending: Coroutine[Any, Any, Future]) -> RecordMetadata:
    """Await a call of send_async(), and then the outcome of its record."""
    return await (await sending)


async def _send_in_turn(sending: Sending, retry: _LoopRetry) -> Future:
    """Send the record when those before it in its line are sent, and wait for what it lacks."""
    place, record = Place(retry.waiter, False), sending.record
    try:
        _enter_line(place, sending.channel_of().lines, (record.topic_name, retry.waiter.loop))
        while True:
            if not await _be_first(place, retry.waiter, retry.deadline):
                raise _queue_timeout(sending.channel_of(), record, sending.max_block_s)
            future, missing = sending.attempt(record, retry.place)
            if future is not None:
                return future
            owner = sending.channel_of()
            await retry.wait(missing, owner, owner.session, record.topic_name, record.wanted_partition)
    finally:
        leave_all(retry.place, place)


def _queue_timeout(owner: SessionOwner, record: Prepared, max_block_s: float) -> errors.KafkaError:
    """Return the error for a send whose time is over before it is the first in its queue."""
    session = owner.session
    if session.alive:
        if session.topics.state(record.topic_name)[0] > record.wanted_partition:
            return no_memory(session, max_block_s)
        return no_metadata(session, record.topic_name, record.wanted_partition)
    return errors.SenderUnavailableError(owner.trouble or f"no sender within max_block_ms={round(max_block_s * 1000)}")
