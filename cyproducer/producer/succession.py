"""After the end of a sender with its supervisor: the next session is made, and gets what the last one has left.

A front-end that finds its sender gone elects the next one as it found the first (`attach.connect`). Whoever
calls send() does that; for those who wait, and for records that nobody waits for, one thread does it and ends
when all that was left is in the next session's arena or has failed of age.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from cyproducer import errors
from cyproducer.config import Settings
from cyproducer.producer import attach
from cyproducer.producer.address import Address
from cyproducer.producer.session import Session
from cyproducer.producer.waiter import Waiter
from cyproducer.producer.waiters import wait_until
from cyproducer.shm.waiting import wait_readable

__all__ = ["begin", "settle", "succeed", "under_way"]

_log = logging.getLogger("cyproducer")

# Less than connect() waits before it warns: this thread warns by itself, once.
_ATTEMPT_S = 0.9
_ASK_AGAIN_S = 1.0
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0

#: Sessions that have left something which is not settled: they live until it is, also without a producer.
under_way: set[Session] = set()
_running: set[Session] = set()
_connecting: set[Session] = set()


def _forget_in_child() -> None:
    under_way.clear()
    _running.clear()
    _connecting.clear()


os.register_at_fork(after_in_child=_forget_in_child)


def succeed(
    session: Session, settings: Settings, deadline: float, wanted: Callable[[], bool], address: Address | None = None
) -> Session | None:
    """The session after `session`, which has ended: made here, or meanwhile by another thread.

    `address`: that of the settings, if it is known.
    None if it is not `wanted` any more once there is a sender. Raises what attach.connect raises, and
    SenderUnavailableError if another thread has been trying until `deadline`.
    """
    if not session.attach_lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
        where = f" at {settings.sender}" if settings.sender else ""
        raise errors.SenderUnavailableError(
            session.trouble or f"no sender{where} in time; another thread of this process was attaching all the while"
        )
    if session in _connecting:
        # This thread: a handler of the log, or of a signal, or a finalizer sends, while an attempt is under way.
        session.attach_lock.release()
        raise errors.SenderUnavailableError("this thread is just attaching to a sender; try again when it has")
    try:
        if session.unsettled:
            # In a signal's handler, or a finalizer, in the middle of its end.
            raise errors.SenderUnavailableError("the sender has just gone; try again")
        if session.successor is None:
            _connecting.add(session)
            try:
                attachment = attach.connect(settings, deadline, address)
            finally:
                _connecting.discard(session)
            try:
                if not wanted():
                    attachment.close()
                    return None
                session.hand_over(Session(attachment, settings))
            except BaseException:
                if session.successor is None:  # else a signal's handler has raised when all was handed over
                    attachment.close()
                raise
        return session.successor
    except errors.KafkaError as error:
        session.trouble = str(error)
        raise
    finally:
        session.attach_lock.release()


def begin(session: Session) -> bool:
    """Has a thread settle what `session` has left, unless one does. False: none can be started."""
    under_way.add(session)
    if any(running.latest is session for running in _running):
        return True
    thread = threading.Thread(target=_run, args=(session,), name="cyproducer-attach", daemon=True)
    _running.add(session)
    try:
        thread.start()
    except RuntimeError:  # at the interpreter's end, or at the limit of threads: who waits does it
        _running.discard(session)
        return False
    return True


def attach_later(session: Session, settings: Settings, patience_s: float) -> None:
    """Goes on attaching in a thread, unless one does, for callers that cannot wait for it."""
    if session in _running or session.successor is not None:
        return

    def run() -> None:
        try:
            succeed(session, settings, time.monotonic() + patience_s, lambda: True)
        except (errors.KafkaError, MemoryError):
            pass  # the next send() says what it sees
        finally:
            _running.discard(session)

    _running.add(session)
    try:
        threading.Thread(target=run, name="cyproducer-attach", daemon=True).start()
    except RuntimeError:
        _running.discard(session)


def settle_all(deadline: float) -> None:
    """At exit: what sessions have left finds another sender by `deadline`, or is reported as lost."""
    for session in {session.latest for session in under_way}:
        if not settle(session, deadline):
            batches, records = session.latest.outstanding()
            _log.error("no sender was found for %d records in %d batches: they are lost", records, batches)


def _run(session: Session) -> None:
    try:
        settle(session, None)
    finally:
        _running.discard(session)


def settle(session: Session, deadline: float | None) -> bool:
    """Brings all that `session` has left into the arena of a session with a sender, or to an error.

    False: not all of it by `deadline` (None: as long as the records' delivery_timeout_ms).
    """
    pause, warned = _PAUSE_MIN_S, False
    while True:
        session = session.latest
        session.expire_inherited()
        if not session.inherited or session.foreign:
            under_way.difference_update([known for known in under_way if not known.latest.inherited])
            return True
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return False
        next_expiry = min([estate.expires_in() for estate in list(session.inherited)], default=0.0)
        limit = min(now + next_expiry, deadline or now + 3600)
        if session.alive:
            _move(session, min(limit, now + _ASK_AGAIN_S))
            continue
        try:
            ended = session
            succeed(ended, ended.settings, min(limit, now + _ATTEMPT_S), lambda ended=ended: bool(ended.inherited))
        except (errors.KafkaError, MemoryError) as error:
            if not warned:
                _log.warning("no sender for the batches that were kept yet: %s", error)
                warned = True
            wait_readable([], min(pause, max(0.0, limit - time.monotonic())))
            pause = min(2 * pause, _PAUSE_MAX_S)


def _move(session: Session, until: float) -> None:
    """Waits until `until` for the metadata and memory that what was inherited needs."""
    waiter = Waiter()
    session.metadata_waiters.add(waiter)
    try:
        for topic in session.inherited_topics():
            session.want_topic(topic)
        wait_until([session], waiter, lambda: _moved(session), until)
    finally:
        session.metadata_waiters.discard(waiter)
        session.end_metadata_wait()


def _moved(session: Session) -> bool:
    session.sleep_for_metadata()
    if session.alive:
        session.refresh_topics(None)
    return not session.alive or not session.inherited
