"""Lets a call of a transactional method wait in its event loop. Only programs that use asyncio load this."""

from cyproducer import errors
from cyproducer.producer.channel import aio
from cyproducer.producer.core.native import Session
from cyproducer.producer.transactions.transaction_manager import PendingCall
from cyproducer.shm import system_clock

__all__ = ["LoopCall"]


class LoopCall(PendingCall):
    """A call that waits in the running loop.

    When the loop had stopped, another call may have run meanwhile. So a wait raises IllegalStateError at its end if its
    call has lost its turn.
    """

    is_async = True
    waits = aio.LoopWaits()

    def start(self) -> None:
        """Begin to count the time, in the loop that runs the call. Raise RuntimeError without one."""
        self._loop = aio.running_loop()
        super().start()

    def is_stranded(self) -> bool:
        """Return whether the event loop does not run any more."""
        return not self._loop.is_running()

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await aio.pause(seconds)
        self.monitor.check_turn(self)

    async def readable(self, fd: int, seconds: float) -> bool:
        """Wait until a descriptor is readable or hung up. Return False if it is not after `seconds`."""
        had_turn = self.monitor.running is self
        result = await aio.readable(fd, system_clock.monotonic() + seconds)
        if had_turn:
            self.monitor.check_turn(self)
        return result

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
