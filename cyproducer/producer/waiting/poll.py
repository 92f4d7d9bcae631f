"""Lets threads wait for outcomes, metadata and memory.

A waiting thread polls the session's wake-up (which the sender writes) and an eventfd of its own. The thread that
finds the session's wake-up readable serves all waiting threads: it reads the wake-up, tells the sender again that a
thread sleeps, takes all outcomes, and writes the eventfds of the threads whose wait is over. So it does not
matter which thread the kernel wakes.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from cyproducer import errors
from cyproducer.host.poll import wait_readable
from cyproducer.producer.results.futures import Batch
from cyproducer.producer.results.waiter import Waiter
from cyproducer.producer.session.session import Session
from cyproducer.producer.waiting.wait_for_batch import await_batch


class _AnyFuture(Protocol):
    """What the futures of one record (`Future`) and of many rows (`BulkFuture`) have in common."""

    def done(self) -> bool: ...
    def failed(self) -> bool: ...
    def _pending_batches(self, first_only: bool = False) -> list[Batch]: ...


AnyFuture = TypeVar("AnyFuture", bound=_AnyFuture)

ALL_COMPLETED = "ALL_COMPLETED"
FIRST_COMPLETED = "FIRST_COMPLETED"
FIRST_EXCEPTION = "FIRST_EXCEPTION"

_INLINE_S = 1.0


class DoneAndNotDone(NamedTuple, Generic[AnyFuture]):
    """The result of `wait`."""

    done: set[AnyFuture]
    not_done: set[AnyFuture]


def deadline_after(timeout: float | None) -> float | None:
    """Return the time.monotonic() that is `timeout` seconds from now, or None for None.

    Raise TypeError if `timeout` is not a number.
    """
    if timeout is None:
        return None
    if isinstance(timeout, str | bytes) or not hasattr(timeout, "__float__"):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    return time.monotonic() + float(timeout)


def wait_until(sessions: Iterable[Session], waiter: Waiter, over: Callable[[], bool], deadline: float | None) -> bool:
    """Wait until `over()` is true. Return False if `deadline` (time.monotonic()) comes first.

    The caller has registered `waiter` with everything that can make `over()` true. Signals are handled; exceptions
    of their handlers are raised here.
    """
    waiter.open()
    entered: list[Session] = []
    try:
        for session in sessions:
            session.verify()
            _enter(entered, session.latest, waiter)
        while not over():
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                return False
            if not _follow(entered, waiter, remaining):
                _poll(entered, waiter, remaining)
        return True
    finally:
        for session in entered:
            session.leave_sleep(waiter)
        waiter.close()


def _enter(entered: list[Session], session: Session, waiter: Waiter) -> None:
    if session not in entered:
        session.enter_sleep(waiter)
        entered.append(session)


def _follow(entered: list[Session], waiter: Waiter, remaining: float | None) -> bool:
    """Replace sessions that have ended by their successors. Return whether the caller has to check again.

    A background thread creates the successor and wakes `waiter`. If no thread can be started, this one does its work.
    """
    changed = False
    for session in [session for session in entered if not session.alive]:
        if session.latest is not session:
            entered.remove(session)
            session.leave_sleep(waiter)
            _enter(entered, session.latest, waiter)
            changed = True
        elif session.recovering and not session.hooks.begin_recovery(session):
            slice_s = _INLINE_S if remaining is None else min(_INLINE_S, remaining)
            session.hooks.settle(session, time.monotonic() + slice_s)
            changed = True
    return changed


def _poll(sessions: list[Session], waiter: Waiter, timeout: float | None) -> None:
    polled = [waiter.fd]
    for session in sessions:
        if session.alive:
            polled.extend(session.descriptors)
    ready = set(wait_readable(polled, timeout))
    if waiter.fd in ready:
        waiter.clear()
    for session in sessions:
        if session.alive:
            wake, control = session.descriptors
            if control in ready:
                session.on_control()
            if wake in ready:
                session.on_wake()


def wait_batch(batch: Batch, timeout: float | None) -> bool:
    """Wait until the batch has its outcome. Return False if it has none after `timeout` seconds."""
    deadline = deadline_after(timeout)
    if await_batch(batch, timeout):
        return True
    return wait_batches([batch], None if deadline is None else deadline - time.monotonic())


def wait_batches(batches: Iterable[Batch], timeout: float | None, any_of: bool = False) -> bool:
    """Wait until all batches have their outcome; with `any_of`, until one has.

    Return False if they have not after `timeout` seconds (None: wait without limit).
    """
    deadline = deadline_after(timeout)
    waiter = Waiter()
    sessions: list[Session] = []
    pending: list[Batch] = []
    try:
        for batch in batches:
            session: Session = batch.session  # before add_waiter: a batch that another thread finishes has no session
            if batch.add_waiter(waiter):
                pending.append(batch)
                if session not in sessions:
                    sessions.append(session)
            elif any_of:
                return True
        if not pending:
            return True
        waiter.wanted = 1 if any_of else len(pending)
        left = list(pending)

        def over() -> bool:
            if any(session.foreign for session in sessions):
                # A signal's handler or another greenlet has forked.
                raise errors.ForkedFutureError(
                    "this process was forked while it waited: the records belong to the parent process, and only that "
                    "process gets their outcome; wait for them there, or send the records from this process"
                )
            if any_of:
                return any(batch.done for batch in left)
            while left and left[-1].done:
                left.pop()
            return not left

        return wait_until(sessions, waiter, over, deadline)
    finally:
        for batch in pending:
            batch.remove_waiter(waiter)


def await_callbacks(session: Session, deadline: float | None) -> bool:
    """Wait until the callbacks that are ready have run. Return False if `deadline` (time.monotonic()) comes first.

    Do not wait on the thread that runs them.
    """
    delivery = session.delivery
    if delivery is None or delivery.is_current_thread():
        return True
    waiter = Waiter()
    delivery.waiting.append(waiter)  # before is_busy(): a busy thread notifies this waiter when it has finished
    if not delivery.is_busy():
        delivery.forget(waiter)
        return True
    delivery.poke()
    return wait_until([], waiter, lambda: waiter.wanted <= 0 or session.foreign, deadline)


def _ours(fs: Iterable[AnyFuture]) -> set[AnyFuture]:
    """Return the futures as a set. Raise TypeError if one of the objects is not a future of this package."""
    futures = set(fs)
    for future in futures:
        if not hasattr(type(future), "_pending_batches"):
            raise TypeError(f"expected a future of KafkaProducer, not {type(future).__name__}")
    return futures


def wait(
    fs: Iterable[AnyFuture], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone[AnyFuture]:
    """Wait as concurrent.futures.wait does, for futures of KafkaProducer's send methods.

    Return (done, not_done), two sets. `timeout` is in seconds; None waits without limit. FIRST_EXCEPTION returns
    when one future has failed or all are done. A future of many rows (`send_array`, `send_arrow`) is done when all
    of its rows are. Raise TypeError for other objects and ValueError for an unknown `return_when`.
    """
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(f"return_when={return_when!r} is not one of ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION")
    futures = _ours(fs)
    any_of = return_when != ALL_COMPLETED
    deadline = deadline_after(timeout)
    while True:
        not_done = {future for future in futures if not future.done()}
        done = futures - not_done
        if not not_done or (return_when == FIRST_COMPLETED and done):
            break
        if return_when == FIRST_EXCEPTION and any(future.failed() for future in done):
            break
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            break
        batches = {id(batch): batch for future in not_done for batch in future._pending_batches(any_of)}
        wait_batches(batches.values(), remaining, any_of)
    return DoneAndNotDone(done, not_done)


def as_completed(fs: Iterable[AnyFuture], timeout: float | None = None) -> Iterator[AnyFuture]:
    """Yield each future once, when its outcome is known. Raise KafkaTimeoutError after `timeout` seconds."""
    pending = _ours(fs)
    total = len(pending)
    deadline = deadline_after(timeout)
    while pending:
        done = wait(pending, None if deadline is None else deadline - time.monotonic(), FIRST_COMPLETED).done
        if not done:
            raise errors.KafkaTimeoutError(f"{len(pending)} of {total} futures have no outcome within {timeout} s")
        pending -= done
        yield from done
