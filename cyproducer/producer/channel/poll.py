"""Implements wait() and as_completed(), which take the futures of records and of arrays."""

from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

from cyproducer import errors
from cyproducer.producer.core.native import Batch, deadline_after, wait_batches
from cyproducer.shm import system_clock


class _AnyFuture(Protocol):
    """What the futures of one record (`Future`) and of many rows (`BulkFuture`) have in common."""

    def done(self) -> bool: ...
    def failed(self) -> bool: ...
    def _pending_batches(self, first_only: bool = False) -> list[Batch]: ...


AnyFuture = TypeVar("AnyFuture", bound=_AnyFuture)

ALL_COMPLETED = "ALL_COMPLETED"
FIRST_COMPLETED = "FIRST_COMPLETED"
FIRST_EXCEPTION = "FIRST_EXCEPTION"


class DoneAndNotDone(NamedTuple, Generic[AnyFuture]):
    """The result of `wait`."""

    done: set[AnyFuture]
    not_done: set[AnyFuture]


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
        remaining = None if deadline is None else deadline - system_clock.monotonic()
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
        done = wait(pending, None if deadline is None else deadline - system_clock.monotonic(), FIRST_COMPLETED).done
        if not done:
            raise errors.KafkaTimeoutError(f"{len(pending)} of {total} futures have no outcome within {timeout} s")
        pending -= done
        yield from done
