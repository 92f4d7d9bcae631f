"""Has, loses and finds the sender of one producer in one process, and waits until all records have their outcome.

A channel whose sender is gone finds or starts the next one as it did the first (`attach.connect`). A thread that calls
send() does that itself. For threads that wait, and for records that no thread waits for, one background thread does
it. That thread ends when all unsent batches are in the arena of the next session or have expired.
"""

import contextlib
import functools
import logging
import threading
from collections.abc import Awaitable, Callable

from cyproducer import errors
from cyproducer.config.settings import Settings
from cyproducer.host.poll import wait_readable
from cyproducer.host.thread_start import ThreadStart
from cyproducer.producer.channel import attach
from cyproducer.producer.channel.address import Address
from cyproducer.producer.channel.delivery import Delivery, describe
from cyproducer.producer.channel.waits import OutcomeWaits, ThreadWaits
from cyproducer.producer.core.attachment import Attachment
from cyproducer.producer.core.native import (
    Batch,
    Session,
    SessionOwner,
    Waiter,
    deadline_after,
    run_blocking,
    wait_until,
)
from cyproducer.shm import system_clock

__all__ = ["Channel"]

_log = logging.getLogger("cyproducer")

_ATTACH_S = 10.0  # longer than starting a sender and attaching to it takes
# Less than the time after which connect() warns: the thread that recovers logs its own warning, once.
_ATTEMPT_S = 0.9
_ASK_AGAIN_S = 1.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0
_LAST_CALLBACKS_S = 1.0
_SLOW_CALLBACKS_S = 5.0  # after this time, a wait without a limit logs which callback it waits for

_Told = Callable[[BaseException | None, float], None]


class _Attempt:
    """An attempt to attach in a thread, for all calls that wait for it."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.waiting: list[_Told] = []


class Channel(SessionOwner):
    """The way to the sender, for one producer in one process."""

    def __init__(self, settings: Settings, address: Address) -> None:
        self.address = address
        self._recovery: ThreadStart | None = None
        self._later: ThreadStart | None = None
        self._attempt: _Attempt | None = None
        self._attempt_lock = threading.Lock()

    # ---------------------------------------------------------------- attaching

    def attached(self, deadline: float) -> Session:
        """Return an attached session. One thread attaches, other threads wait for it, up to `deadline`.

        Raise the errors of attach.connect, and ProducerClosedError.
        """
        while True:
            if self.closing:
                raise errors.ProducerClosedError("the producer is closed")
            session = self.session
            if session.alive:
                return session
            try:
                self._attach(session, deadline, lambda: not self.closing)
            except errors.SenderUnavailableError as error:
                if self.settings.max_block_ms < _ATTACH_S * 1000 and (
                    not self.settings.sender or isinstance(error, attach.SlowSenderError)
                ):
                    # If a sender takes longer to start or to answer than send() may wait, send() would never succeed.
                    self.attach_later(session, _ATTACH_S)
                raise
            if self.closing:
                self.session.end("the producer is closed", errors.OUTCOME_UNKNOWN, True)

    def _attach(self, ended: Session, deadline: float, wanted: Callable[[], bool]) -> None:
        """Make the session that follows `ended`, unless another thread has, or `wanted()` is false after the attach.

        Raise the errors of attach.connect, and SenderUnavailableError if another thread was attaching until `deadline`
        or this thread is attaching already.
        """
        timeout = max(0.0, deadline - system_clock.monotonic())
        connect = functools.partial(self._connect, deadline)
        if not self.attach_alone(ended, timeout, connect, wanted):
            where = f" at {self.settings.sender}" if self.settings.sender else ""
            raise errors.SenderUnavailableError(
                self.trouble
                or f"no sender{where} in time: another thread of this process is still attaching; try again"
            )

    def _connect(self, deadline: float) -> Attachment:
        try:
            return attach.connect(self.settings, deadline, self.address)
        except errors.KafkaError as error:
            self.trouble = str(error)
            raise

    def attach_later(self, ended: Session, timeout_s: float) -> None:
        """Make the session that follows `ended` in a thread, for callers that cannot wait. Try for `timeout_s`."""
        if self._later is not None or self.session is not ended:
            return
        start = ThreadStart("cyproducer-attach", self._run_later, ended, timeout_s)
        with contextlib.suppress(RuntimeError):
            try:
                self._later = start
                start.start()
            except BaseException:
                if not start.begun:
                    self._later = None
                raise

    def _run_later(self, ended: Session, timeout_s: float) -> None:
        try:
            self._attach(ended, system_clock.monotonic() + timeout_s, lambda: True)
        except (errors.KafkaError, MemoryError):
            pass  # the next send() raises an error of its own
        finally:
            self._later = None

    def attach_in_background(self, deadline: float, told: _Told) -> None:
        """Attach in a thread that all callers share. When it ends, it calls `told(error, its deadline)` of each."""
        with self._attempt_lock:
            attempt = self._attempt
            if attempt is not None:
                attempt.waiting.append(told)
                return
            attempt = _Attempt(deadline)
            attempt.waiting.append(told)
            threading.Thread(target=self._run_attempt, args=(attempt,), name="cyproducer-attach", daemon=True).start()
            self._attempt = attempt

    def _run_attempt(self, attempt: _Attempt) -> None:
        error: BaseException | None = None
        try:
            self.attached(attempt.deadline)
        except BaseException as raised:
            error = raised
        with self._attempt_lock:
            self._attempt = None
        for told in attempt.waiting:
            told(error, attempt.deadline)

    # ---------------------------------------------------------------- after the loss of the sender

    def begin_recovery(self) -> bool:
        """Let a thread recover, unless one does. Return False if no thread can be started."""
        if self._recovery is not None:
            return True
        start = ThreadStart("cyproducer-attach", self._run_recovery)
        try:
            self._recovery = start
            start.start()
        except BaseException as error:
            if not start.begun:
                self._recovery = None
            if isinstance(error, RuntimeError):  # the interpreter ends, or the limit of threads is reached
                return start.begun
            raise
        return True

    def _run_recovery(self) -> None:
        try:
            self.recover(None)
        finally:
            self._recovery = None
        if self.recovering:  # it has lost its sender after recover(), and found this thread running
            self.begin_recovery()

    def recover(self, deadline: float | None) -> bool:
        """Move all unsent batches into the arena of a session with a sender; those that expire fail.

        Return False if some are left at `deadline` (time.monotonic(); None: until delivery_timeout_ms of the records).
        """
        pause, warned = _PAUSE_MIN_S, False
        while True:
            self.expire_unsent()
            if not self.unsent or self.foreign:
                return True
            now = system_clock.monotonic()
            if deadline is not None and now >= deadline:
                return False
            limit = min(now + self.unsent.expires_in(), deadline or now + 3600)
            session = self.session
            if session.alive:
                self._move(session, min(limit, now + _ASK_AGAIN_S))
                continue
            try:
                self._attach(session, min(limit, now + _ATTEMPT_S), lambda: bool(self.unsent))
            except (errors.KafkaError, MemoryError) as error:
                if not warned:
                    _log.warning("the batches that were kept have no sender yet, trying again: %s", error)
                    warned = True
                wait_readable([], min(pause, max(0.0, limit - system_clock.monotonic())))
                pause = min(2 * pause, _PAUSE_MAX_S)

    def _move(self, session: Session, until: float) -> None:
        """Wait until `until` (time.monotonic()) for the metadata and memory that the unsent batches need."""
        waiter = Waiter()
        try:
            session.topics.add_waiter(waiter)
            for topic in self.unsent.topics():
                session.want_topic(topic)
            wait_until([self], waiter, lambda: self._moved(session), until)
        finally:
            session.topics.remove_waiter(waiter)

    def _moved(self, session: Session) -> bool:
        """Move what can be moved. Return whether no unsent batches are left or the session has ended."""
        session.topics.begin_wait()
        if session.alive:
            session.refresh_topics(None)
        return not session.alive or not self.unsent

    # ---------------------------------------------------------------- outcomes and callbacks

    def wait_async(self, batch: Batch) -> Awaitable[bool]:
        """Return a coroutine that waits in the running event loop until the batch has its outcome."""
        from cyproducer.producer.channel import aio  # loads asyncio: 50 ms that other programs save

        return aio.wait_batch(batch)

    def make_delivery(self) -> Delivery:
        """Return what calls the callbacks, not started yet."""
        return Delivery(self)

    async def flush(self, waits: OutcomeWaits, timeout: float | None) -> None:
        """Do the work of KafkaProducer.flush(): seal, wait and count. Raise its errors."""
        delivery = self.delivery
        if self.closing:
            raise errors.ProducerClosedError("the producer is closed")
        if delivery is not None and delivery.is_current_thread():
            raise errors.IllegalStateError(
                "flush() in a callback would wait for callbacks that this thread has to run; leave it out (records go "
                "out after linger_ms), or call it on another thread"
            )
        deadline = deadline_after(timeout)
        began = system_clock.monotonic_ns()
        try:
            finished = await self.finish(waits, deadline)
        finally:
            self.own.add_flush(system_clock.monotonic_ns() - began)
        if not finished:
            batches = self.outstanding()[0]
            if batches == 0:
                raise errors.KafkaTimeoutError(
                    f"flush: all records have their outcome, but after {timeout} s {describe(self.delivery)}"
                )
            raise errors.KafkaTimeoutError(
                f"flush: {batches} batches have no outcome after {timeout} s; they are still under way{self.why_late}"
            )

    async def finish(self, waits: OutcomeWaits, deadline: float | None) -> bool:
        """Seal all open batches, and wait for outcomes and callbacks. Return False if `deadline` comes first.

        `deadline`: time.monotonic(); None: no limit.
        """
        unfinished = self.submit()
        if not self.foreign and not await waits.outcomes(unfinished, deadline):
            return False
        if deadline is None and not await waits.callbacks(self, system_clock.monotonic() + _SLOW_CALLBACKS_S):
            # Not in a wait with a limit: a log handler may wait for the thread of the callback without any limit.
            _log.warning(
                "flush() or close() has waited %g s for callbacks: %s", _SLOW_CALLBACKS_S, describe(self.delivery)
            )
        return await waits.callbacks(self, deadline)

    def finish_at_exit(self, deadline: float) -> bool:
        """Do what finish() does, in this thread."""
        return run_blocking(self.finish(ThreadWaits(), deadline))

    def submit(self) -> list[Batch]:
        """Seal all open batches. Return those without an outcome."""
        self.poll()
        while True:
            session = self.session
            session.arena.seal_all()
            unfinished = self.unfinished()
            if self.session is session:
                return unfinished
            # Another thread has just attached, and may have moved batches.

    async def detach(self, waits: OutcomeWaits, has_interceptors: bool) -> None:
        """End the session of a closed producer: the batches without an outcome get an error. May be repeated.

        Wait until interceptors have heard of these batches.
        """
        batches, records = self.outstanding()
        try:
            if batches == 0:
                self.session.announce_close()
            elif not self.foreign:
                _log.warning("the producer is closed; %d records in %d batches have no outcome yet", records, batches)
        finally:
            self.session.end("the producer is closed", errors.OUTCOME_UNKNOWN, True)
        if has_interceptors:
            await waits.callbacks(self, system_clock.monotonic() + _LAST_CALLBACKS_S)
