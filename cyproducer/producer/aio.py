"""asyncio: futures and send_async wait through the event loop's own selector, without a thread."""

import asyncio
import copy
import os
import threading
import time
import weakref
from typing import Any

from cyproducer import errors
from cyproducer.producer import waiting
from cyproducer.producer.attach import file_of, is_still

_SAME_DEADLINE_S = 0.1
_ASK_AGAIN_S = 1.0
_NO_THREAD_S = 0.1

_descriptors: dict[int, tuple[int, int]] = {}
_connecting: "dict[int, _Connecting]" = {}
_connecting_lock = threading.Lock()


def _close_in_child() -> None:
    global _connecting_lock
    _connecting_lock = threading.Lock()
    _connecting.clear()  # their threads are the parent's
    for fd, file in _descriptors.items():
        if is_still(fd, file):
            os.close(fd)
    _descriptors.clear()


os.register_at_fork(after_in_child=_close_in_child)


class LoopReader:
    """One event loop's view of a session: duplicates of its descriptors, as several loops may watch them.

    The loop must not keep the session alive: its producer may be dropped without close().
    """

    def __init__(self, session: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.files: dict[int, tuple[int, int]] = {}
        alive = weakref.ref(session)
        try:
            for fd, method in zip(session.descriptors, ("on_wake", "on_control"), strict=True):
                copied = os.dup(fd)
                self.files[copied] = _descriptors[copied] = file_of(copied)
                loop.add_reader(copied, _serve, alive, method)
        except BaseException:  # it is the limit of descriptors, for one
            self._stop()
            raise

    def close(self) -> None:
        """Ends the watch, from any thread."""
        if self.loop.is_closed():
            self._close_descriptors()
        elif asyncio._get_running_loop() is self.loop:
            self._stop()
        else:
            try:
                self.loop.call_soon_threadsafe(self._stop)
            except RuntimeError:
                self._close_descriptors()  # closed in the meantime

    def _stop(self) -> None:
        for fd in self.files:
            self.loop.remove_reader(fd)
        self._close_descriptors()

    def _close_descriptors(self) -> None:
        files, self.files = self.files, {}
        for fd, file in files.items():
            if _descriptors.get(fd) is file:  # else the program has closed it, and another reader has its number
                del _descriptors[fd]
                if is_still(fd, file):
                    os.close(fd)


def _serve(alive: "weakref.ref[Any]", method: str) -> None:
    session = alive()
    if session is not None:
        getattr(session, method)()


def _watch(session: Any, loop: asyncio.AbstractEventLoop) -> None:
    if loop in session.loops:
        return
    for closed in [known for known in session.loops if known.is_closed()]:
        session.loops.pop(closed).close()
    session.loops[loop] = LoopReader(session, loop)


class LoopWaiter:
    """A coroutine that waits. `notify()` may come from any thread."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[None] = loop.create_future()

    def reset(self) -> None:
        """Another wait begins."""
        if self.future.done():
            self.future = self.loop.create_future()

    def wake(self) -> None:
        """Ends the wait, whatever it is for."""
        self.notify()

    def notify(self) -> None:
        """What is waited for has happened."""
        if asyncio._get_running_loop() is self.loop:
            self._resolve()
        else:
            try:
                self.loop.call_soon_threadsafe(self._resolve)
            except RuntimeError:
                pass  # the loop is closed, and nobody waits in it

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)

    async def wait(self, session: Any, deadline: float | None = None) -> bool:
        """Until notified; False: `deadline` (time.monotonic()) came first."""
        session.verify()
        if not session.alive:
            return True
        _watch(session, self.loop)
        session.enter_sleep(self)
        try:
            if deadline is None:
                await self.future
            elif not self.future.done():
                await asyncio.wait([self.future], timeout=max(0.0, deadline - time.monotonic()))
            return self.future.done()
        finally:
            session.leave_sleep(self)


async def wait_batch(batch: Any) -> None:
    """Until the batch has its outcome, whichever session it comes through."""
    waiter = LoopWaiter(asyncio.get_running_loop())
    session = batch.session
    if not batch.add_waiter(waiter):
        return
    try:
        while not batch.done and not session.over:
            if session.recovering:
                await _wait_for_successor(waiter, session)
            else:
                await waiter.wait(session)
            waiter.reset()
            session = session.latest
    finally:
        batch.remove_waiter(waiter)


async def _wait_for_successor(waiter: LoopWaiter, session: Any) -> None:
    """Until there is one, or what the session has left has failed."""
    from cyproducer.producer import succession

    session.enter_sleep(waiter)
    try:
        if succession.begin(session):
            await waiter.future
        else:
            await asyncio.sleep(_NO_THREAD_S)
    finally:
        session.leave_sleep(waiter)


async def _wait_metadata(session: Any, topic: str, needed: int, deadline: float) -> None:
    """Until the topic has more than `needed` partitions; at `deadline` it raises why not."""
    waiter = LoopWaiter(asyncio.get_running_loop())
    session.metadata_waiters.add(waiter)
    try:
        waiting.ask_for(session, topic)
        while True:
            waiter.reset()
            if waiting.metadata_over(session, topic, needed):
                return
            if not await waiter.wait(session, min(deadline, time.monotonic() + _ASK_AGAIN_S)):
                if time.monotonic() >= deadline:
                    raise waiting.no_metadata(session, topic, needed)
                waiting.ask_for(session, topic)
    finally:
        session.metadata_waiters.discard(waiter)
        session.end_metadata_wait()


class _Connecting:
    """One thread that attaches a producer, for all coroutines that wait for it."""

    __slots__ = ("deadline", "producer", "waiting")

    def __init__(self, producer: Any, deadline: float) -> None:
        self.producer = producer
        self.deadline = deadline
        self.waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None], float]] = []

    def run(self) -> None:
        error: BaseException | None = None
        try:
            self.producer._attach(self.deadline)
        except BaseException as raised:
            error = raised
        with _connecting_lock:
            _connecting.pop(id(self.producer), None)
        for loop, attached, deadline in self.waiting:
            # Who has much more time than this attempt had tries again.
            given = copy.copy(error) if deadline - self.deadline < _SAME_DEADLINE_S else None
            try:
                loop.call_soon_threadsafe(_settle, attached, given)
            except RuntimeError:
                pass  # the loop is closed, and nobody waits in it


def _settle(attached: "asyncio.Future[None]", error: BaseException | None) -> None:
    if attached.done():
        return
    if error is None:
        attached.set_result(None)
    else:
        attached.set_exception(error)


async def _attach(producer: Any, deadline: float) -> None:
    """Connecting may start a process and wait for it: that is for a thread, which ends with it."""
    loop = asyncio.get_running_loop()
    attached: asyncio.Future[None] = loop.create_future()
    with _connecting_lock:
        connecting = _connecting.get(id(producer))
        if connecting is not None:
            connecting.waiting.append((loop, attached, deadline))
        else:
            connecting = _Connecting(producer, deadline)
            connecting.waiting.append((loop, attached, deadline))
            threading.Thread(target=connecting.run, name="cyproducer-attach", daemon=True).start()
            _connecting[id(producer)] = connecting
    await attached


class _Line:
    """Who waits to send to one topic from one loop, in the order of the calls.

    Only the first one stands in the session's queue for memory too: whoever gets memory opens a batch, and those
    behind him would find room in it that he who is next does not know of yet.
    """

    def __init__(self, producer: Any, topic: str, loop: asyncio.AbstractEventLoop) -> None:
        self.lines: dict[Any, list[LoopWaiter]] = producer._lines
        self.place = topic, loop

    def is_empty(self) -> bool:
        return self.place not in self.lines

    def join(self, turn: LoopWaiter) -> None:
        self.lines.setdefault(self.place, []).append(turn)

    def leave(self, turn: LoopWaiter) -> None:
        line = self.lines[self.place]
        line.remove(turn)
        if line:
            line[0].wake()
        else:
            del self.lines[self.place]

    async def wait(self, turn: LoopWaiter, deadline: float) -> bool:
        """Until `turn` is the first; False: not by `deadline`."""
        while self.lines[self.place][0] is not turn:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            turn.reset()
            await asyncio.wait([turn.future], timeout=remaining)
        return True


async def send(producer: Any, prepared: Any, max_block_s: float) -> Any:
    """Sends what KafkaProducer.send_async has prepared; waits with the event loop for whatever is missing.

    A loop's records for a topic keep the order of its calls, whatever they wait for.
    """
    loop = asyncio.get_running_loop()
    line = _Line(producer, prepared.topic_name, loop)
    if line.is_empty():
        future = producer._attempt_prepared(prepared, None)
        if not isinstance(future, int):
            return future
    deadline = time.monotonic() + max_block_s
    turn = LoopWaiter(loop)
    line.join(turn)
    queue = None
    try:
        while True:
            if not await line.wait(turn, deadline):
                raise _still_in_line(producer._session, prepared, max_block_s)
            future = producer._attempt_prepared(prepared, turn)
            if not isinstance(future, int):
                return future
            session = producer._session
            if future == waiting.NEED_MEMORY:
                if queue is not session:
                    waiting.leave_queue(queue, turn)
                    queue = session
                await _wait_memory(session, turn, deadline, max_block_s)
            elif future == waiting.NEED_SESSION:
                await _attach(producer, deadline)
            else:
                await _wait_metadata(session, prepared.topic_name, prepared.wanted_partition, deadline)
    finally:
        waiting.leave_queue(queue, turn)
        line.leave(turn)


async def _wait_memory(session: Any, turn: LoopWaiter, deadline: float, max_block_s: float) -> None:
    turn.reset()
    waiting.enter_queue(session, turn)
    started = time.monotonic_ns()
    woken = await turn.wait(session, deadline)
    session.add_blocked(time.monotonic_ns() - started)
    if not woken:
        raise waiting.no_memory(session, max_block_s)


def _still_in_line(session: Any, prepared: Any, max_block_s: float) -> errors.KafkaError:
    """The error of one whose time was over before it was the first in its line."""
    if session.alive:
        if session.topic_state(prepared.topic_name)[0] > prepared.wanted_partition:
            return waiting.no_memory(session, max_block_s)
        return waiting.no_metadata(session, prepared.topic_name, prepared.wanted_partition)
    return errors.SenderUnavailableError(session.trouble or f"no sender within {max_block_s:g} s")
