"""Tests what is left of awaits that time out."""

import asyncio
import gc

import pytest

from cyproducer.producer.channel import aio


async def _await(future):
    return await future


def test_awaits_that_time_out_leave_no_waiter(sender, producer):
    async def main(future):
        for _ in range(5):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(_await(future), 0.01)
        return waiters()

    def waiters():
        gc.collect()
        return sum(type(each) is aio.LoopWaiter for each in gc.get_objects())

    before = waiters()  # of earlier tests, for example in the traceback of an exception
    sender.hold = True
    future = producer.send("one", b"1")
    assert asyncio.run(main(future)) <= before
    sender.release()
    assert future.result(10).offset == 0
