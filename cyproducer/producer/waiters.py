"""How threads wait for outcomes, metadata and memory.

A thread that waits polls the session's wake-up (the sender writes it) and an eventfd of its own. Whoever finds the
session's readable serves everybody: it reads it, says again that somebody sleeps, takes all outcomes, and
those whose wait is over find their own eventfd written. So nobody depends on the thread that was woken.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, Union

from cyproducer import errors
from cyproducer.producer.awaiting import await_batch
from cyproducer.producer.futures import Future, batch_of
from cyproducer.producer.waiter import Waiter
from cyproducer.shm.waiting import wait_readable

if TYPE_CHECKING:
    from cyproducer.producer.bulk_future import BulkFuture

AnyFuture = TypeVar("AnyFuture", bound=Union[Future, "BulkFuture"])

ALL_COMPLETED = "ALL_COMPLETED"
FIRST_COMPLETED = "FIRST_COMPLETED"
FIRST_EXCEPTION = "FIRST_EXCEPTION"

_INLINE_S = 1.0


class DoneAndNotDone(NamedTuple, Generic[AnyFuture]):
    """What `wait` returns."""

    done: set[AnyFuture]
    not_done: set[AnyFuture]


def wait_until(
    sessions: Iterable[Any], waiter: Waiter, over: Callable[[], bool], deadline: float | None
) -> bool:
    """Waits until `over()` or `deadline` (time.monotonic()); False: the time was over first.

    `waiter` was made known to whatever makes `over()` true. Signals are handled; what they raise comes out.
    """
    waiter.open()
    entered: list[Any] = []
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


def _enter(entered: list[Any], session: Any, waiter: Waiter) -> None:
    if session not in entered:
        session.enter_sleep(waiter)
        entered.append(session)


def _follow(entered: list[Any], waiter: Waiter, remaining: float | None) -> bool:
    """Waits with the successors of sessions that have ended; False: with none, nothing has changed.

    The thread that makes a successor wakes `waiter`. Where none can be started, this one does its work.
    """
    changed = False
    for session in [session for session in entered if not session.alive]:
        if session.latest is not session:
            entered.remove(session)
            session.leave_sleep(waiter)
            _enter(entered, session.latest, waiter)
            changed = True
        elif session.recovering:
            from cyproducer.producer import succession

            if not succession.begin(session):
                slice_s = _INLINE_S if remaining is None else min(_INLINE_S, remaining)
                succession.settle(session, time.monotonic() + slice_s)
                changed = True
    return changed


def _poll(sessions: list[Any], waiter: Waiter, timeout: float | None) -> None:
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


def wait_batch(batch: Any, timeout: float | None) -> bool:
    """Waits until the batch has its outcome; False: not within `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    if await_batch(batch, timeout):
        return True
    return wait_batches([batch], None if deadline is None else deadline - time.monotonic())


def wait_batches(batches: Iterable[Any], timeout: float | None, any_of: bool = False) -> bool:
    """Waits until all (or any) of the batches have their outcome; False: not within `timeout` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    waiter = Waiter()
    sessions = []
    pending = []
    try:
        for batch in batches:
            session = batch.session  # before: another thread may finish the batch at once, which then has none
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
                # A signal's handler has forked, or another greenlet.
                raise errors.ForkedFutureError(
                    "this process was forked while it waited: what it waited for belongs to the parent process"
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


def _ours(fs: Iterable[AnyFuture]) -> set[AnyFuture]:
    """The futures as a set; TypeError if there is another object among them."""
    futures = set(fs)
    for future in futures:
        if type(future) is not Future:
            from cyproducer.producer.bulk_future import BulkFuture

            if type(future) is not BulkFuture:
                raise TypeError(f"a future of KafkaProducer is needed, not {type(future).__name__}")
    return futures


def _waited_for(future: Any, any_of: bool) -> list[Any]:
    """The batches that have to be done before the future, which is not, can be. `any_of`: the first one will do."""
    if type(future) is Future:
        return [batch_of(future)]
    batches: list[Any] = future._pending(any_of)
    return batches


def wait(
    fs: Iterable[AnyFuture], timeout: float | None = None, return_when: str = ALL_COMPLETED
) -> DoneAndNotDone[AnyFuture]:
    """concurrent.futures.wait for futures of KafkaProducer's send methods: (done, not_done), two sets.

    `timeout` in seconds. FIRST_EXCEPTION returns when one has failed or all are done. A future of many rows
    (`send_array`, `send_arrow`) is done when all of its rows are.
    """
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(f"return_when={return_when!r} is none of ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION")
    futures = _ours(fs)
    any_of = return_when != ALL_COMPLETED
    deadline = None if timeout is None else time.monotonic() + timeout
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
        batches = {id(batch): batch for future in not_done for batch in _waited_for(future, any_of)}
        wait_batches(batches.values(), remaining, any_of)
    return DoneAndNotDone(done, not_done)


def as_completed(fs: Iterable[AnyFuture], timeout: float | None = None) -> Iterator[AnyFuture]:
    """Yields each future once, as soon as its outcome is known. Raises KafkaTimeoutError after `timeout` seconds."""
    pending = _ours(fs)
    total = len(pending)
    deadline = None if timeout is None else time.monotonic() + timeout
    while pending:
        done = wait(pending, None if deadline is None else deadline - time.monotonic(), FIRST_COMPLETED).done
        if not done:
            raise errors.KafkaTimeoutError(f"{len(pending)} of {total} futures have no outcome within {timeout} s")
        pending -= done
        yield from done
