"""Lets a call of a transactional method wait in its thread. The waits are coroutines that never suspend.

loop_waits.py has the same waits for event loops.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from cyproducer.config.settings import Settings
from cyproducer.host.poll import wait_readable
from cyproducer.producer.core.native import Batch, Session, await_callbacks, wait_batches
from cyproducer.shm import system_clock

if TYPE_CHECKING:
    import asyncio

__all__ = ["Producer", "ThreadWaits", "Waits"]


class Producer(Protocol):
    """What this package uses of KafkaProducer, which it may not import."""

    @property
    def settings(self) -> Settings: ...
    @property
    def _session(self) -> Session: ...
    @property
    def _is_closed(self) -> bool: ...
    def attached(self, deadline: float) -> Session: ...


class Waits(Protocol):
    """The waits of one call. A `deadline` is a time.monotonic(); at it, a wait returns False."""

    @property
    def loop(self) -> "asyncio.AbstractEventLoop | None":
        """The event loop of the call; None: its thread waits."""

    async def pause(self, seconds: float) -> None:
        """Wait."""

    async def readable(self, fd: int, seconds: float) -> bool:
        """Wait until a descriptor is readable or hung up. Return False if it is not after `seconds`."""

    async def batches(self, batches: Iterable[Batch], deadline: float) -> bool:
        """Wait until all batches have their outcome."""

    async def callbacks(self, session: Session, deadline: float) -> bool:
        """Wait until the callbacks that are ready have run."""

    async def attached(self, producer: Producer, deadline: float) -> Session:
        """Return an attached session. Raise SenderUnavailableError and ProducerClosedError."""


class ThreadWaits:
    """The waits of a thread."""

    loop = None

    async def pause(self, seconds: float) -> None:
        """Wait."""
        wait_readable([], seconds)

    async def readable(self, fd: int, seconds: float) -> bool:
        """Wait until a descriptor is readable or hung up. Return False if it is not after `seconds`."""
        return bool(wait_readable([fd], seconds))

    async def batches(self, batches: Iterable[Batch], deadline: float) -> bool:
        """Wait until all batches have their outcome."""
        return wait_batches(batches, deadline - system_clock.monotonic())

    async def callbacks(self, session: Session, deadline: float) -> bool:
        """Wait until the callbacks that are ready have run."""
        return await_callbacks(session, deadline)

    async def attached(self, producer: Producer, deadline: float) -> Session:
        """Return an attached session."""
        return producer.attached(deadline)
