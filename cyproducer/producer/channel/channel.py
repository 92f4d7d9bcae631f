"""Loses a sender and finds the next one, waits for the outcomes of all records, and ends."""

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol

from cyproducer import errors
from cyproducer.config.settings import Settings
from cyproducer.host.poll import wait_readable
from cyproducer.host.thread_start import ThreadStart
from cyproducer.producer.channel import attach
from cyproducer.producer.channel.address import Address
from cyproducer.producer.core.callbacks import Delivery, describe
from cyproducer.producer.core.native import (
    Batch,
    Session,
    Waiter,
    await_callbacks,
    deadline_after,
    wait_batch,
    wait_batches,
    wait_until,
)
from cyproducer.shm import system_clock
from cyproducer.shm.native import in_child

__all__ = ["begin", "detach", "finish", "flush", "settle", "submit", "succeed", "under_way"]


# ------------------------------------------------------------ flush
#
# Implements KafkaProducer.flush(), which waits for the outcomes of all records that were sent before, and close().


_LAST_CALLBACKS_S = 1.0
_SLOW_CALLBACKS_S = 5.0  # after this time, a wait without a limit logs which callback it waits for

_log = logging.getLogger("cyproducer")


class FlushedProducer(Protocol):
    """What these functions use of KafkaProducer."""

    @property
    def _session(self) -> Session: ...
    @property
    def _is_closed(self) -> bool: ...


def flush(producer: FlushedProducer, timeout: float | None) -> None:
    """Do the work of flush(): seal, wait and count. Raise its errors."""
    delivery = producer._session.delivery
    if producer._is_closed:
        raise errors.ProducerClosedError("the producer is closed")
    if delivery is not None and delivery.is_current_thread():
        raise errors.IllegalStateError(
            "flush() in a callback would wait for callbacks that this thread has to run; leave it out (records go "
            "out after linger_ms), or call it on another thread"
        )
    deadline = deadline_after(timeout)
    began = system_clock.monotonic_ns()
    try:
        finished = finish(producer, deadline)
    finally:
        producer._session.arena.own.add_flush(system_clock.monotonic_ns() - began)
    if not finished:
        batches = producer._session.outstanding()[0]
        if batches == 0:
            raise errors.KafkaTimeoutError(
                f"flush: all records have their outcome, but after {timeout} s {describe(producer._session.delivery)}"
            )
        raise errors.KafkaTimeoutError(
            f"flush: {batches} batches have no outcome after {timeout} s; "
            f"they are still under way{producer._session.topics.why_late}"
        )


def finish(producer: FlushedProducer, deadline: float | None) -> bool:
    """Seal all open batches, and wait for outcomes and callbacks. Return False if `deadline` comes first.

    `deadline`: time.monotonic(); None: no limit.
    """
    unfinished = submit(producer)
    remaining = None if deadline is None else deadline - system_clock.monotonic()
    if not producer._session.foreign and not wait_batches(unfinished, remaining):
        return False
    if deadline is None and not await_callbacks(producer._session, system_clock.monotonic() + _SLOW_CALLBACKS_S):
        # Not in a wait with a limit: a log handler may wait for the thread of the callback without any limit.
        _log.warning(
            "flush() or close() has waited %g s for callbacks: %s",
            _SLOW_CALLBACKS_S,
            describe(producer._session.delivery),
        )
    return await_callbacks(producer._session, deadline)


def submit(producer: FlushedProducer) -> list[Batch]:
    """Seal all open batches. Return those without an outcome."""
    producer._session.look()
    while True:
        session = producer._session
        session.arena.seal_all()
        unfinished = session.unfinished()
        if session.successor is None:
            return unfinished
        # Another thread has just moved the batches to the successor.


def detach(session: Session, has_interceptors: bool) -> None:
    """End the session of a producer that is closed: the batches without an outcome get an error. May be repeated.

    Wait until interceptors have heard of these batches.
    """
    batches, records = session.outstanding()
    try:
        if batches == 0:
            session.announce_close()
        elif not session.foreign:
            _log.warning("the producer is closed; %d records in %d batches have no outcome yet", records, batches)
    finally:
        session.end("the producer is closed", errors.OUTCOME_UNKNOWN, True)
    if has_interceptors:
        await_callbacks(session, system_clock.monotonic() + _LAST_CALLBACKS_S)


# ------------------------------------------------------------ next sender
#
# Reattaches after a sender and its supervisor are gone: creates the next session and gives it the unsent batches.
#
# A front-end whose sender is gone finds or starts the next one as it did the first (`attach.connect`). A thread that
# calls send() does that itself. For threads that wait, and for records that no thread waits for, one background thread
# does it. That thread ends when all unsent batches are in the arena of the next session or have expired.


_log = logging.getLogger("cyproducer")

# Less than the time after which connect() warns: this thread logs its own warning, once.
_ATTEMPT_S = 0.9
_ASK_AGAIN_S = 1.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0

#: Sessions with unsent batches that are not settled. They stay alive until then, even without a producer.
under_way: set[Session] = set()
_running: set[Session] = set()
_attaching: set[Session] = set()
_connecting: set[Session] = set()


class SessionHooks:
    """The functions of this package that a session and its futures call, which it must not import."""

    @staticmethod
    def wait_batch(batch: Batch, timeout: float | None) -> bool:
        """Wait until the batch has its outcome. Return False if that takes longer than `timeout` seconds."""
        return wait_batch(batch, timeout)

    @staticmethod
    async def wait_batch_async(batch: Batch) -> None:
        """Wait in the running event loop until the batch has its outcome."""
        from cyproducer.producer.channel import aio  # asyncio costs 50 ms, which other programs do not pay

        await aio.wait_batch(batch)

    @staticmethod
    def begin_recovery(session: Session) -> bool:
        """Call `begin`."""
        return begin(session)

    @staticmethod
    def make_delivery(session: Session) -> Delivery:
        """Return what calls the callbacks of a session, not started yet."""
        return Delivery(session)

    @staticmethod
    def settle(session: Session, deadline: float | None) -> bool:
        """Call `settle`."""
        return settle(session, deadline)


def _forget_in_child() -> None:
    under_way.clear()
    _running.clear()
    _attaching.clear()
    _connecting.clear()


in_child(_forget_in_child)


def succeed(
    session: Session, settings: Settings, deadline: float, wanted: Callable[[], bool], address: Address | None = None
) -> Session | None:
    """Return the successor of `session`, which has ended. Create it unless another thread has.

    `deadline`: time.monotonic(). `address`: the address of the settings, if it is known.
    Return None if `wanted()` is false after the attach. Raise the errors of attach.connect, and
    SenderUnavailableError if another thread was attaching until `deadline` or this thread is attaching already.
    """
    attempt = functools.partial(_succeed, session, settings, deadline, wanted, address)
    made: tuple[Session | None] | None = session.attach_alone(max(0.0, deadline - system_clock.monotonic()), attempt)
    if made is None:
        where = f" at {settings.sender}" if settings.sender else ""
        raise errors.SenderUnavailableError(
            session.trouble or f"no sender{where} in time: another thread of this process is still attaching; try again"
        )
    return made[0]


def _succeed(
    session: Session, settings: Settings, deadline: float, wanted: Callable[[], bool], address: Address | None
) -> tuple[Session | None]:
    """Do the work of succeed() in the only thread that attaches. Return a tuple with its result."""
    if session in _connecting:
        # The lock is reentrant: a log handler, signal handler or finalizer has called send() during this attempt.
        raise errors.SenderUnavailableError("this thread is just attaching to a sender; try again when it has attached")
    try:
        if session.unsent.filling:
            # A signal's handler or a finalizer runs while this thread ends the session.
            raise errors.SenderUnavailableError("the sender has just ended; try again")
        if session.successor is None:
            try:
                _connecting.add(session)
                attachment = attach.connect(settings, deadline, address)
            finally:
                _connecting.discard(session)
            try:
                if not wanted():
                    attachment.close()
                    return (None,)
                session.hand_over(Session(attachment, settings, SessionHooks))
            except BaseException:
                if session.successor is None:  # else a signal's handler has raised after the handover
                    attachment.close()
                raise
        return (session.successor,)
    except errors.KafkaError as error:
        session.trouble = str(error)
        raise


def begin(session: Session) -> bool:
    """Start a thread that settles the unsent batches of `session`, unless one runs.

    Return False if no thread can be started.
    """
    under_way.add(session)
    if any(running.latest is session for running in list(_running)):
        return True
    try:
        _start(_running, session, _run, session)
    except RuntimeError:  # the interpreter ends, or the limit of threads is reached: the waiting thread does it
        return session in _running
    return True


def attach_later(session: Session, settings: Settings, timeout_s: float, address: Address | None = None) -> None:
    """Attach in a background thread for up to `timeout_s` seconds, for callers that cannot wait for it."""
    if session in _attaching or session.successor is not None:
        return

    def run() -> None:
        try:
            succeed(session, settings, system_clock.monotonic() + timeout_s, lambda: True, address)
        except (errors.KafkaError, MemoryError):
            pass  # the next send() raises an error of its own
        finally:
            _attaching.discard(session)

    with contextlib.suppress(RuntimeError):
        _start(_attaching, session, run)


def _start(notes: set[Session], session: Session, function: Callable[..., None], *arguments: Any) -> None:
    """Start a thread, and note its session; it removes the note. Raise RuntimeError, and exceptions of handlers."""
    start = ThreadStart("cyproducer-attach", function, *arguments)
    try:
        notes.add(session)
        start.start()
    except BaseException:
        if not start.begun:
            notes.discard(session)
        raise


def settle_all(deadline: float) -> None:
    """Settle all unsent batches at exit, by `deadline` (time.monotonic()). Log the batches that are lost."""
    for session in {session.latest for session in list(under_way)}:
        if not settle(session, deadline):
            batches, records = session.latest.outstanding()
            _log.error("no sender was found before exit for %d records in %d batches: they are lost", records, batches)


def _run(session: Session) -> None:
    try:
        settle(session, None)
    finally:
        _running.discard(session)
    if session.latest.recovering:  # it has lost its sender after settle(), and found this thread running
        begin(session.latest)


def settle(session: Session, deadline: float | None) -> bool:
    """Move all unsent batches of `session` into the arena of a session with a sender; those that expire fail.

    Return False if some are left at `deadline` (time.monotonic(); None: until delivery_timeout_ms of the records).
    """
    pause, warned = _PAUSE_MIN_S, False
    while True:
        session = session.latest
        session.expire_unsent()
        if not session.unsent or session.foreign:
            under_way.difference_update([known for known in list(under_way) if not known.latest.unsent])
            return True
        now = system_clock.monotonic()
        if deadline is not None and now >= deadline:
            return False
        next_expiry = session.unsent.expires_in()
        limit = min(now + next_expiry, deadline or now + 3600)
        if session.alive:
            _move(session, min(limit, now + _ASK_AGAIN_S))
            continue
        try:
            until = min(limit, now + _ATTEMPT_S)
            succeed(session, session.settings, until, functools.partial(_has_unsent, session), _address_of(session))
        except (errors.KafkaError, MemoryError) as error:
            if not warned:
                _log.warning("the batches that were kept have no sender yet, trying again: %s", error)
                warned = True
            wait_readable([], min(pause, max(0.0, limit - system_clock.monotonic())))
            pause = min(2 * pause, _PAUSE_MAX_S)


def _address_of(session: Session) -> Address | None:
    address: Address | None = None if session.attachment is None else session.attachment.address
    return address


def _has_unsent(session: Session) -> bool:
    return bool(session.unsent)


def _move(session: Session, until: float) -> None:
    """Wait until `until` (time.monotonic()) for the metadata and memory that the unsent batches need."""
    waiter = Waiter()
    try:
        session.topics.add_waiter(waiter)
        for topic in session.unsent.topics():
            session.want_topic(topic)
        wait_until([session], waiter, lambda: _moved(session), until)
    finally:
        session.topics.remove_waiter(waiter)


def _moved(session: Session) -> bool:
    """Move what can be moved. Return whether no unsent batches are left or the session has ended."""
    session.topics.begin_wait()
    if session.alive:
        session.refresh_topics(None)
    return not session.alive or not session.unsent
