"""Lets a call of a transactional method wait in its event loop. Only programs that use asyncio load this."""

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from cyproducer import errors
from cyproducer.producer.core.native import Batch, Session, Waiter
from cyproducer.producer.transactions.call import Call
from cyproducer.producer.transactions.native import TransactionState
from cyproducer.producer.transactions.waits import Producer
from cyproducer.producer.waiting import aio
from cyproducer.producer.waiting.loop_timers import pause, resolve, wait_for_result
from cyproducer.shm import system_clock

__all__ = ["LoopWaits"]

_LOOK_S = 1.0


class LoopWaits:
    """The waits of one call in the running loop, as in waits.Waits.

    When the loop had stopped, another call may have run meanwhile. So a wait raises IllegalStateError at its end if its
    call has lost its turn.
    """

    def __init__(self, state: TransactionState, call: Call) -> None:
        self.loop = aio.running_loop()
        self._state = state
        self._call = call

    async def pause(self, seconds: float) -> None:
        """Wait."""
        await pause(seconds)
        self._state.check_turn(self._call)

    async def readable(self, fd: int, seconds: float) -> bool:
        """Wait until a descriptor is readable or hung up. Return False if it is not after `seconds`."""
        had_turn = self._state.running is self._call
        found: asyncio.Future[bool] = self.loop.create_future()
        try:
            self.loop.add_reader(fd, resolve, found, True)
            result = await wait_for_result(found, system_clock.monotonic() + seconds)
        finally:
            if not self.loop.is_closed():
                self.loop.remove_reader(fd)
        if had_turn:
            self._state.check_turn(self._call)
        return result

    async def batches(self, batches: Iterable[Batch], deadline: float) -> bool:
        """Wait until all batches have their outcome."""
        for batch in batches:
            is_done = await aio.wait_batch(batch, deadline)
            self._state.check_turn(self._call)
            if not is_done:
                return False
        return True

    async def callbacks(self, session: Session, deadline: float) -> bool:
        """Wait until the callbacks that are ready have run."""
        delivery = session.delivery
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
                left = deadline - system_clock.monotonic()
                if left <= 0:
                    return False
                await self.readable(waiter.fd, min(left, _LOOK_S))
            return True
        finally:
            delivery.forget(waiter)
            waiter.close()

    async def attached(self, producer: Producer, deadline: float) -> Session:
        """Return an attached session."""
        while True:
            if producer._is_closed:
                raise errors.ProducerClosedError("the producer is closed")
            session = producer._session
            if session.alive:
                return session
            await aio._attach(cast(Any, producer), deadline)
            self._state.check_turn(self._call)
