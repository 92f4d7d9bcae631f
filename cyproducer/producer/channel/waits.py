"""Waits for what a send lacks, in threads and event loops, and for the outcomes of records."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from cyproducer import errors
from cyproducer.producer.core.native import (
    PERMANENT_ERRORS,
    Batch,
    Place,
    Room,
    Session,
    SessionOwner,
    Waiter,
    await_callbacks,
    check_name,
    deadline_after,
    run_blocking,
    wait_batches,
    wait_until,
)
from cyproducer.shm import system_clock

__all__ = [
    "BlockingRetry",
    "BlockingWaiter",
    "OutcomeWaits",
    "Retry",
    "ThreadWaits",
    "count_refused",
    "partitions_of",
    "wait_metadata",
]


# ------------------------------------------------------------ errors
#
# Says whether the wait of a send for metadata is over, and makes the errors of waits for metadata and memory.


def ask_for(session: Session, topic: str, needed: int) -> None:
    """Read the published metadata and request metadata of `topic`, including partition `needed`, from the sender."""
    session.refresh_topics(topic)
    session.want_topic(topic, needed)


def metadata_over(session: Session, topic: str, needed: int) -> bool:
    """Return whether the topic has more than `needed` partitions, or the session has ended.

    If it returns False, new metadata wakes the waiter. Raise the topic's error if it is permanent: an invalid name
    or missing authorization. Raise SenderUnavailableError if the sender has no space for another topic.
    """
    session.topics.begin_wait()
    count, error = session.topics.state(topic)
    if count == 0 or not session.topics.is_read:
        # Another thread may have read this version of the metadata without looking for this topic.
        session.refresh_topics(topic)
        count, error = session.topics.state(topic)
    refusal = session.topics.take_refusal(topic) if session.alive and count <= needed else None
    if refusal is not None:
        raise errors.SenderUnavailableError(f"the sender refuses topic {topic!r}: {refusal}; nothing was queued")
    if error in PERMANENT_ERRORS:
        raise errors.for_code(error, f"topic {topic!r}: {errors.for_code(error).message}")
    return not session.alive or count > needed


def no_metadata(session: Session, topic: str, needed: int) -> errors.KafkaError:
    """Return the error for a topic or partition that is missing from the metadata after max_block_ms.

    The message is that of Kafka's Java producer, followed by the last error of the broker or the sender. The cause is
    the broker's error, or an UnknownPartitionError if the broker answers that the topic has fewer partitions.
    """
    count, error = session.topics.state(topic)
    limit = session.settings.max_block_ms
    if count == 0:
        text = f"Topic {topic} not present in metadata after {limit} ms."
    else:
        text = (
            f"Partition {needed} of topic {topic} with partition count {count} is not present in metadata "
            f"after {limit} ms."
        )
    cause = errors.for_code(error) if error else None
    if cause is not None:
        text += f" The broker's last answer: {errors.name_for_code(error)}, {cause.message}."
    elif session.topics.last_error:
        text += f" The sender's last error: {session.topics.last_error}."
        servers = ",".join(session.settings.bootstrap_servers)
        if servers:
            text += f" Check the brokers, with your security settings: cyproducer doctor --bootstrap-servers {servers}"
    elif count:
        cause = errors.UnknownPartitionError()
    late = errors.KafkaTimeoutError(text)
    late.__cause__ = cause
    return late


def auth_failed(session: Session, topic: str) -> errors.KafkaError:
    """Return the error for a topic whose metadata the sender cannot get, because authentication fails."""
    return errors.AuthenticationFailedError(
        f"Topic {topic} not present in metadata: no broker can be used. {session.topics.last_error}. Nothing was queued"
    )


def no_memory(session: Session, max_block_s: float) -> errors.KafkaError:
    """Return the error for memory that did not become free within max_block_ms: a BufferExhaustedError.

    It is a SenderUnavailableError if the sender is ending and therefore accepts no new batches.
    """
    if session.released:
        return errors.SenderUnavailableError(
            f"the sender is ending, and has not ended within max_block_ms={round(max_block_s * 1000)}; nothing was "
            "queued; send again when it has ended, or raise max_block_ms"
        )
    total = session.settings.buffer_memory
    used = total - session.arena.buffer_available
    hint = "Send less at once, or raise buffer_memory or max_block_ms"
    if session.topics.last_error:
        hint += f". The sender's last error: {session.topics.last_error}"
    return errors.BufferExhaustedError(
        f"no memory became free within max_block_ms={round(max_block_s * 1000)}: {used} of "
        f"buffer_memory={total} bytes are not acknowledged by the broker; nothing was queued. {hint}"
    )


# ------------------------------------------------------------ what a send lacks
#
# Waits for what a send lacks before it tries again: a session, the metadata of its topic, or memory.
#
# The waits are written once, as coroutines, for threads and for event loops. A thread runs them with run_blocking():
# its waiter blocks in await, so that the coroutines never suspend.


_ASK_AGAIN_S = 1.0
#: How often a call that waits for memory tries again if it is the first, or looks whether the calls before it go on.
_CHECK_S = 0.1
#: After this time, a call that waits for memory lets the batches be sent that still linger: their outcomes free memory.
#: At most half of its time limit.
_SEAL_AFTER_S = 0.01


class RetryWaiter(Protocol):
    """What BlockingWaiter and aio.LoopWaiter have in common. `registered` is what a session keeps of it."""

    @property
    def registered(self) -> Any: ...
    def reset(self) -> None: ...
    def wake(self) -> None: ...
    def notify(self) -> None: ...
    async def wait(self, session: Session, deadline: float) -> bool: ...


class BlockingWaiter:
    """The wake-up of a waiting thread. It has the methods of aio.LoopWaiter, but its wait blocks."""

    __slots__ = ("registered",)

    def __init__(self) -> None:
        self.registered = Waiter()

    def reset(self) -> None:
        """Prepare for another wait."""
        self.registered.wanted = 1

    def wake(self) -> None:
        """End the poll, so that the thread looks again."""
        self.registered.wake()

    def notify(self) -> None:
        """Report that the awaited event has happened."""
        self.registered.notify()

    async def wait(self, session: Session, deadline: float) -> bool:
        """Wait until notified or the session ends. Return False if `deadline` (time.monotonic()) comes first."""
        native = self.registered
        owner = session.owner
        return owner is None or wait_until([owner], native, lambda: native.wanted <= 0 or not session.alive, deadline)


async def wait_metadata(session: Session, waiter: RetryWaiter, topic: str, needed: int, deadline: float) -> None:
    """Wait until the topic has more than `needed` partitions or the session ends.

    waiter   a BlockingWaiter or LoopWaiter that is used for nothing else meanwhile

    Raise KafkaTimeoutError at `deadline` (time.monotonic()), or the topic's error if it is permanent. Raise
    AuthenticationFailedError if the sender can use no broker meanwhile, and authentication is the reason.
    """
    ask_at = 0.0
    began = system_clock.monotonic_ns()
    auth_failures = session.topics.auth_failures
    try:
        session.topics.add_waiter(waiter.registered)
        while True:
            waiter.reset()
            if system_clock.monotonic() >= ask_at:
                # Repeated, because a request is lost when the sender is replaced. Changes of other topics wake, too.
                ask_for(session, topic, needed)
                ask_at = system_clock.monotonic() + _ASK_AGAIN_S
            if metadata_over(session, topic, needed):
                session.arena.own.add_metadata_wait(system_clock.monotonic_ns() - began)
                return
            if session.topics.auth_failures != auth_failures:
                raise auth_failed(session, topic)
            if not await waiter.wait(session, min(deadline, ask_at)) and system_clock.monotonic() >= deadline:
                raise no_metadata(session, topic, needed)
    finally:
        session.topics.remove_waiter(waiter.registered)


def partitions_of(owner: SessionOwner, topic: str) -> set[int]:
    """Return the topic's partition numbers. Wait up to max_block_ms. Raise the errors of send()."""
    check_name(topic)
    deadline = system_clock.monotonic() + owner.settings.max_block_ms / 1000
    while True:
        session = owner.attached(deadline)
        found = session.topic_leaders(topic)
        if found:
            return set(range(len(found)))
        run_blocking(wait_metadata(session, BlockingWaiter(), topic, 0, deadline))


class Retry(ABC):
    """The waits of one call of a send method: its deadline, and its place in a session's queue for memory.

    place         the place of this call, which its owner leaves when the call ends
    max_block_s   seconds from now to the deadline, at which a wait raises an error
    """

    def __init__(self, place: Place, max_block_s: float) -> None:
        self.place = place
        self.deadline = system_clock.monotonic() + max_block_s
        self._max_block_s = max_block_s

    async def wait(self, missing: Room, owner: SessionOwner, session: Session, topic: str, needed: int) -> None:
        """Wait for what is missing; the caller then tries again.

        missing   NEED_SESSION, NEED_METADATA or NEED_MEMORY
        owner     the channel of the present process
        session   the session of the attempt
        topic     the topic's name
        needed    the topic must have more partitions than this

        Raise the error of the wait at the deadline: SenderUnavailableError, KafkaTimeoutError, BufferExhaustedError.
        """
        if missing == Room.NEED_SESSION:
            self.place.leave()
            await self.attach(owner)
        elif missing == Room.NEED_METADATA:
            await wait_metadata(session, self.new_waiter(), topic, needed, self.deadline)
        else:
            await self._wait_memory(session)

    async def _wait_memory(self, session: Session) -> None:
        """Wait until this call may look for memory again, or the session ends."""
        place, waiter = self.place, self.waiter
        began = system_clock.monotonic_ns()
        now = system_clock.monotonic()
        seal_at = now + max(0.0, min(_SEAL_AFTER_S, (self.deadline - now) / 2))
        sealed = False
        try:
            place.enter(session.memory_queue)
            waiter.reset()
            while not place.is_called and session.alive:
                now = system_clock.monotonic()
                if not sealed and now >= seal_at:
                    session.arena.seal_lingering()  # what is open is sent, which frees memory
                    sealed = True
                if now >= self.deadline:
                    raise no_memory(session, self._max_block_s)
                until = min(self.deadline, now + _CHECK_S) if sealed else seal_at
                if not await waiter.wait(session, until) and sealed and place.is_next():
                    return
                waiter.reset()
        finally:
            session.arena.add_blocked(system_clock.monotonic_ns() - began)

    @property
    @abstractmethod
    def waiter(self) -> RetryWaiter:
        """The waiter of the place."""

    @abstractmethod
    def new_waiter(self) -> RetryWaiter:
        """Return another waiter of the same kind."""

    @abstractmethod
    async def attach(self, owner: SessionOwner) -> None:
        """Attach the producer to a sender by the deadline. Raise SenderUnavailableError."""


class BlockingRetry(Retry):
    """The waits of a thread."""

    def __init__(self, max_block_s: float) -> None:
        self._waiter = BlockingWaiter()
        super().__init__(Place(self._waiter, True), max_block_s)

    @property
    def waiter(self) -> BlockingWaiter:
        """The waiter of the place."""
        return self._waiter

    def new_waiter(self) -> BlockingWaiter:
        """Return another waiter of the same kind."""
        return BlockingWaiter()

    async def attach(self, owner: SessionOwner) -> None:
        """Attach the producer to a sender by the deadline. Raise SenderUnavailableError."""
        owner.attached(self.deadline)


# ------------------------------------------------------------ outcomes
#
# Waits for the outcomes of batches and for callbacks, and implements wait() and as_completed(), which take the futures
# of records and of arrays.


class OutcomeWaits(ABC):
    """How flush(), close() and the end of a transaction wait: in their thread, or in their event loop (aio.LoopWaits).

    `deadline` is of time.monotonic(); None: no limit.
    """

    @abstractmethod
    async def outcomes(self, batches: Iterable[Batch], deadline: float | None) -> bool:
        """Wait until all batches have their outcome. Return False if `deadline` comes first."""

    @abstractmethod
    async def callbacks(self, owner: SessionOwner, deadline: float | None) -> bool:
        """Wait until the callbacks that are ready have run. Return False if `deadline` comes first."""


class ThreadWaits(OutcomeWaits):
    """Waits of a thread: its coroutines never suspend."""

    async def outcomes(self, batches: Iterable[Batch], deadline: float | None) -> bool:
        """Wait until all batches have their outcome. Return False if `deadline` comes first."""
        return wait_batches(batches, None if deadline is None else deadline - system_clock.monotonic())

    async def callbacks(self, owner: SessionOwner, deadline: float | None) -> bool:
        """Wait until the callbacks that are ready have run. Return False if `deadline` comes first."""
        return await_callbacks(owner, deadline)


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


def count_refused(owner: SessionOwner, error: errors.KafkaError) -> None:
    """Count a call that raised `error` instead of queuing its records. As in Kafka, not those of a closed producer."""
    if not isinstance(error, errors.ProducerClosedError):
        owner.own.count_refused(isinstance(error, errors.BufferExhaustedError))
