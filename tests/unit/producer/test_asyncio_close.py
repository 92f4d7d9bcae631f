"""Tests flush_async(), close_async(), `async with` and send_and_wait(): the event loop runs meanwhile."""

import asyncio
import threading

import pytest
from standin_sender import attach

from cyproducer import KafkaProducer, errors

pytestmark = pytest.mark.timeout(60)


async def beside(call, then):
    """Run `then()` in a callback of the loop while the awaitable waits, and return its result."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0.05)
    assert not task.done()
    then()
    return await task


def test_flush_waits_in_the_loop_for_outcomes_and_their_callbacks(sender, producer):
    seen, go_on = [], threading.Event()

    def slow_callback(error, record):
        go_on.wait(30)
        seen.append((error, record.offset))

    async def main():
        sender.hold = True
        future = producer.send("one", b"x", on_delivery=slow_callback)
        flushing = asyncio.ensure_future(producer.flush_async())
        await beside(asyncio.wait_for(future, None), sender.release)
        assert future.done()
        assert not flushing.done()
        await beside(flushing, go_on.set)
        assert seen == [(None, 0)]

    asyncio.run(main())
    assert producer.metrics()["producer-metrics"]["flush-time-ns-total"] > 0


def test_flush_seals_batches_that_linger(sender):
    async def main():
        async with KafkaProducer(sender=sender.path, linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1) as producer:
            future = producer.send("one", b"x")
            await producer.flush_async()
            assert future.done()

    sender.linger_s = 3600
    asyncio.run(main())


def test_a_flush_that_takes_too_long_says_how_many_batches_wait(sender, producer):
    async def main():
        sender.hold = True
        futures = [producer.send("t", b"x", partition=n) for n in range(2)]
        with pytest.raises(errors.KafkaTimeoutError, match=r"flush: 2 batches have no outcome after 0.05 s"):
            await producer.flush_async(0.05)
        sender.release()
        await producer.flush_async(30)
        assert all(future.done() for future in futures)

    asyncio.run(main())


def test_a_flush_that_is_cancelled_cancels_no_record(sender, producer):
    async def main():
        sender.hold = True
        future = producer.send("one", b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.flush_async(), 0.05)
        sender.release()
        return (await future).offset

    assert asyncio.run(main()) == 0


def test_flush_in_a_callback_is_refused(sender, producer):
    raised = []

    def flush(*_):
        with pytest.raises(errors.IllegalStateError, match=r"flush\(\) in a callback"):
            asyncio.run(producer.flush_async())
        raised.append(True)

    producer.send("one", b"x", on_delivery=flush)
    producer.flush(30)
    assert raised == [True]


def test_the_end_of_async_with_waits_in_the_loop_and_closes(sender):
    async def main():
        sender.hold = True
        producer = KafkaProducer(sender=sender.path)

        async def use():
            async with producer as entered:
                assert entered is producer
                return await producer.send_async("one", b"x")

        future = await beside(use(), sender.release)
        assert future.result(0).offset == 0
        with pytest.raises(errors.ProducerClosedError):
            await producer.send_async("one", b"late")
        with pytest.raises(errors.ProducerClosedError):
            await producer.flush_async()
        await producer.close_async()
        producer.close()

    asyncio.run(main())


def test_an_exception_in_async_with_is_raised_after_the_close(sender):
    async def main():
        with pytest.raises(ZeroDivisionError):
            async with KafkaProducer(sender=sender.path) as producer:
                future = producer.send("one", b"x")
                raise ZeroDivisionError
        assert future.result(0).offset == 0

    asyncio.run(main())


@pytest.mark.parametrize("how", ["timeout", "cancelled"])
def test_a_close_without_enough_time_gives_records_an_outcome_of_their_own(sender, how):
    async def main():
        producer = KafkaProducer(sender=sender.path)
        sender.hold = True
        future = await producer.send_async("one", b"x")
        if how == "timeout":
            await producer.close_async(0.05)
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.close_async(), 0.05)
            await producer.close_async()
        with pytest.raises(errors.OutcomeUnknownError):
            await future

    asyncio.run(main())
    sender.release()


def test_interceptors_hear_of_records_that_a_close_leaves(sender):
    heard = []

    class Hears:
        def on_acknowledgement(self, metadata, error):
            heard.append(type(error))

    async def main():
        producer = KafkaProducer(sender=sender.path, interceptors=[Hears()])
        await producer.send_async("one", b"x")
        await producer.close_async(0)

    sender.hold = True
    asyncio.run(main())
    assert heard == [errors.OutcomeUnknownError]
    sender.release()


def test_a_close_aborts_the_open_transaction_in_the_loop(sender, begun):
    async def main():
        sender.hold = True
        future = await begun.send_async("one", b"x")
        await beside(begun.close_async(), sender.release)
        assert future.done()

    asyncio.run(main())
    assert sender.commands.does()[-1] == "abort"


def test_send_and_wait_gives_the_place_or_raises_the_error(sender, producer):
    async def main():
        record = await producer.send_and_wait("t", b"value", b"key", {"h": "v"}, 2, 1234)
        assert (record.topic, record.partition, record.offset, record.timestamp) == ("t", 2, 0, 1234)
        sender.error = 18
        with pytest.raises(type(errors.for_code(18))):
            await producer.send_and_wait("t", b"value", partition=3)

    attach(producer)
    asyncio.run(main())
    (first, *_) = sender.log
    assert (first.key, first.value, first.headers) == (b"key", b"value", (("h", b"v"),))
