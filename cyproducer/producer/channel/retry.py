"""Waits for what a send lacks before it tries again: a session, the metadata of its topic, or memory.

The waits are written once, as coroutines, for threads and for event loops. A thread runs them with run_blocking(): its
waiter blocks in await, so that the coroutines never suspend.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

from cyproducer.config.settings import Settings
from cyproducer.producer.channel import backpressure
from cyproducer.producer.core.native import (
    Future,
    Place,
    Room,
    Session,
    Waiter,
    WaitQueue,
    check_name,
    run_blocking,
    wait_until,
)
from cyproducer.shm import system_clock

__all__ = ["BlockingRetry", "BlockingWaiter", "Retry", "partitions_of", "wait_metadata"]

_ASK_AGAIN_S = 1.0
#: How often a call that waits for memory looks whether the calls before it go on.
_LOOK_S = 0.1
#: How long a call waits for memory before the batches that still linger are sent: they may have to free it. At most
#: half of its time limit.
_SEAL_AFTER_S = 0.01


class RetryWaiter(Protocol):
    """What BlockingWaiter and aio.LoopWaiter have in common. `registered` is what a session keeps of it."""

    @property
    def registered(self) -> Any: ...
    def reset(self) -> None: ...
    def wake(self) -> None: ...
    def notify(self) -> None: ...
    async def wait(self, session: Session, deadline: float) -> bool: ...


class Producer(Protocol):
    """What this package uses of KafkaProducer, which it may not import."""

    @property
    def settings(self) -> Settings: ...
    @property
    def _session(self) -> Session: ...
    @property
    def _is_closed(self) -> bool: ...
    @property
    def _lines(self) -> dict[Any, WaitQueue]: ...
    def attached(self, deadline: float) -> Any: ...
    def _attempt_prepared(self, record: Any, place: Place | None) -> tuple[Future | None, Room]: ...


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
        return wait_until([session], native, lambda: native.wanted <= 0 or not session.alive, deadline)


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
                backpressure.ask_for(session, topic, needed)
                ask_at = system_clock.monotonic() + _ASK_AGAIN_S
            if backpressure.metadata_over(session, topic, needed):
                session.arena.own.add_metadata_wait(system_clock.monotonic_ns() - began)
                return
            if session.topics.auth_failures != auth_failures:
                raise backpressure.auth_failed(session, topic)
            if not await waiter.wait(session, min(deadline, ask_at)) and system_clock.monotonic() >= deadline:
                raise backpressure.no_metadata(session, topic, needed)
    finally:
        session.topics.remove_waiter(waiter.registered)


def partitions_of(producer: Producer, topic: str) -> set[int]:
    """Return the topic's partition numbers. Wait up to max_block_ms. Raise the errors of send()."""
    check_name(topic)
    _ = producer._session  # raises an error if the producer has no settings
    deadline = system_clock.monotonic() + producer.settings.max_block_ms / 1000
    while True:
        session: Session = producer.attached(deadline)
        found = session.topic_leaders(topic)
        if found:
            return set(range(len(found)))
        run_blocking(wait_metadata(session, BlockingWaiter(), topic, 0, deadline))


class Retry(ABC):
    """The waits of one call of a send method: its deadline, and its place in a session's queue for memory.

    producer      the KafkaProducer
    place         the place of this call, which its owner leaves when the call ends
    max_block_s   seconds from now to the deadline, at which a wait raises an error
    """

    def __init__(self, producer: Producer, place: Place, max_block_s: float) -> None:
        self.producer = producer
        self.place = place
        self.deadline = system_clock.monotonic() + max_block_s
        self._max_block_s = max_block_s

    async def wait(self, missing: Room, session: Session, topic: str, needed: int) -> None:
        """Wait for what is missing; the caller then tries again.

        missing   NEED_SESSION, NEED_METADATA or NEED_MEMORY
        session   the session of the attempt
        topic     the topic's name
        needed    the topic must have more partitions than this

        Raise the error of the wait at the deadline: SenderUnavailableError, KafkaTimeoutError, BufferExhaustedError.
        """
        if missing == Room.NEED_SESSION:
            self.place.leave()
            await self.attach()
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
                    raise backpressure.no_memory(session, self._max_block_s)
                until = min(self.deadline, now + _LOOK_S) if sealed else seal_at
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
    async def attach(self) -> None:
        """Attach the producer to a sender by the deadline. Raise SenderUnavailableError."""


class BlockingRetry(Retry):
    """The waits of a thread."""

    def __init__(self, producer: Producer, max_block_s: float) -> None:
        self._waiter = BlockingWaiter()
        super().__init__(producer, Place(self._waiter, True), max_block_s)

    @property
    def waiter(self) -> BlockingWaiter:
        """The waiter of the place."""
        return self._waiter

    def new_waiter(self) -> BlockingWaiter:
        """Return another waiter of the same kind."""
        return BlockingWaiter()

    async def attach(self) -> None:
        """Attach the producer to a sender by the deadline. Raise SenderUnavailableError."""
        self.producer.attached(self.deadline)
