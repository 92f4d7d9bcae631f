"""Lets a call of a transactional method wait in its event loop. Only programs that use asyncio load this."""

import asyncio
from collections.abc import Iterable

from cyproducer import errors
from cyproducer.producer.channel import aio
from cyproducer.producer.channel.aio import pause, resolve, wait_for_result
from cyproducer.producer.core.native import Batch, Session, Waiter
from cyproducer.producer.transactions.transaction_manager import PendingCall
from cyproducer.shm import system_clock

__all__ = ["LoopCall"]

_RECHECK_S = 1.0


class LoopCall(PendingCall):
    """A call that waits in the running loop.

    When the loop had stopped, another call may have run meanwhile. So a wait raises IllegalStateError at its end if its
    call has lost its turn.
    """

    is_async = True

    def start(self) -> None:
        """Begin to count the time, in the loop that runs the call. Raise RuntimeError without one."""
        self._loop = aio.running_loop()
        super().start()

    def is_stranded(self) -> bool:
        """Return whether the event loop does not run any more."""
        return not self._loop.is_running()

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await pause(seconds)
        self.monitor.check_turn(self)

    async def readable(self, fd: int, seconds: float) -> bool:
        """Wait until a descriptor is readable or hung up. Return False if it is not after `seconds`."""
        had_turn = self.monitor.running is self
        found: asyncio.Future[bool] = self._loop.create_future()
        try:
            self._loop.add_reader(fd, resolve, found, True)
            result = await wait_for_result(found, system_clock.monotonic() + seconds)
        finally:
            if not self._loop.is_closed():
                self._loop.remove_reader(fd)
        if had_turn:
            self.monitor.check_turn(self)
        return result

    async def outcomes(self, batches: Iterable[Batch]) -> bool:
        """Wait until all batches have their outcome. Return False at the deadline."""
        for batch in batches:
            is_done = await aio.wait_batch(batch, self.deadline)
            self.monitor.check_turn(self)
            if not is_done:
                return False
        return True

    async def callbacks(self) -> bool:
        """Wait until the callbacks that are ready have run. Return False at the deadline."""
        delivery = self.channel.delivery
        if delivery is None:
            return True
        waiter = Waiter()
        waiter.open()
        try:
            delivery.waiting.append(waiter)  # before is_busy(): a busy thread notifies this waiter when it has finished
            if not delivery.is_busy():
                return True
            delivery.poke()
            while waiter.wanted > 0:
                left = self.left(_RECHECK_S)
                if left <= 0:
                    return False
                await self.readable(waiter.fd, left)
            return True
        finally:
            delivery.forget(waiter)
            waiter.close()

    async def attached(self) -> Session:
        """Return an attached session. Raise SenderUnavailableError and ProducerClosedError."""
        while True:
            if self.channel.closing:
                raise errors.ProducerClosedError("the producer is closed")
            session = self.channel.session
            if session.alive:
                return session
            await aio.attach(self.channel, self.deadline)
            self.monitor.check_turn(self)
