"""Implements KafkaProducer.flush(), which waits for the outcomes of all records that were sent before, and close()."""

import logging
from typing import Protocol

from cyproducer import errors
from cyproducer.producer.channel.slow_callback import describe
from cyproducer.producer.core.native import Batch, Session, await_callbacks, deadline_after, wait_batches
from cyproducer.shm import system_clock

__all__ = ["detach", "finish", "flush", "submit"]

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
