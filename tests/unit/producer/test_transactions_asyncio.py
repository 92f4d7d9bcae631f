"""Tests transactions in asyncio: nothing blocks the loop, and a call whose task was cancelled can be repeated."""

import asyncio
import time

import pytest
from standin_transactions import HOLD, failed

from cyproducer import KafkaProducer, errors


@pytest.fixture
def producer(sender):
    with KafkaProducer(sender=sender.path, transactional_id="x") as made:
        yield made


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


def test_a_transaction_of_a_loop(sender, producer):
    async def main():
        await producer.init_transactions_async()
        async with producer.transaction():
            future = await producer.send_async("t", b"x")
            await producer.send_offsets_to_transaction_async({("t", 0): 5}, "g")
        assert future.done()
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                raise ZeroDivisionError
        producer.begin_transaction()
        await producer.abort_transaction_async(5)
        producer.begin_transaction()
        await producer.commit_transaction_async(timeout=5)

    run(main())
    assert sender.commands.does() == ["init", "offsets", "commit", "fail", "abort", "fail", "abort", "commit"]


def test_errors_are_those_of_the_other_methods(sender, producer):
    async def main():
        with pytest.raises(errors.IllegalStateError, match=r"^commit_transaction\(\) is not possible"):
            await producer.commit_transaction_async()
        with pytest.raises(ValueError, match="timeout=-1"):
            await producer.init_transactions_async(-1)
        sender.commands.script["init"] = [HOLD]
        with pytest.raises(errors.KafkaTimeoutError):
            await producer.init_transactions_async(0.1)
        sender.commands.release()
        await producer.init_transactions_async()
        sender.commands.script["commit"] = [failed("abortable", 120)]
        with pytest.raises(errors.TransactionAbortableError):
            async with producer.transaction():
                pass
        sender.commands.script["fail"] = [failed("fatal", 90)]
        with pytest.raises(ZeroDivisionError) as caught:
            async with producer.transaction():
                raise ZeroDivisionError
        assert caught.value.__notes__
        with pytest.raises(errors.ProducerFencedError):
            async with producer.transaction():
                pass

    run(main())


def test_the_loop_runs_while_a_call_waits(sender, producer):
    async def main():
        ticks = 0
        sender.commands.script["init"] = [HOLD]
        task = asyncio.create_task(producer.init_transactions_async())
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            await asyncio.sleep(0.01)
            ticks += 1
        assert not task.done()
        sender.commands.release()
        await task
        return ticks

    assert run(main()) > 5


@pytest.mark.parametrize("what", ["init", "commit", "abort"])
@pytest.mark.parametrize("answered", ["before", "after", "never"])
def test_a_call_whose_task_was_cancelled_can_be_repeated(sender, producer, what, answered):
    """`answered`: whether the answer comes before or after the thread of the call has noticed the end of its task."""

    async def main():
        if what != "init":
            await producer.init_transactions_async()
            producer.begin_transaction()
        call = getattr(producer, f"{what}_transaction{'s' * (what == 'init')}_async")
        sender.commands.script[what] = [HOLD] * 2
        task = asyncio.create_task(call())
        while not any(message["do"] == what for message in sender.commands.log):
            await asyncio.sleep(0.01)
        task.cancel()
        if answered == "before":
            sender.commands.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        if answered == "after":
            await asyncio.sleep(0.3)
            sender.commands.release()
        with pytest.raises(errors.IllegalStateError, match=rf"{what}_transactions?\(\) (is running|has no result yet)"):
            producer.send("t", b"x")
        sender.commands.script[what] = []
        if answered == "never":
            asyncio.get_running_loop().call_later(0.3, sender.commands.release)
        await call(10)
        if what == "init":
            producer.begin_transaction()
            await producer.commit_transaction_async()
        producer.begin_transaction()
        await producer.commit_transaction_async()

    run(main())
    assert sender.commands.does().count(what) == {"init": 1, "commit": 2, "abort": 1}[what]


def test_a_result_that_came_together_with_the_cancellation_is_kept(sender, producer):
    """The call has succeeded, but its task is cancelled before it runs on."""

    async def main():
        await producer.init_transactions_async()
        producer.begin_transaction()
        task = asyncio.create_task(producer.commit_transaction_async())
        while "commit" not in sender.commands.does():
            time.sleep(0.01)  # blocks the loop, so that the task cannot run on
            await asyncio.sleep(0)
        time.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(errors.IllegalStateError, match=r"commit_transaction\(\) has no result yet"):
            producer.begin_transaction()
        await producer.commit_transaction_async()
        producer.begin_transaction()

    run(main())
    assert sender.commands.does() == ["init", "commit"]


def test_the_end_of_the_program_does_not_wait_for_a_cancelled_call(sender, producer):
    async def main():
        sender.commands.script["init"] = [HOLD]
        task = asyncio.create_task(producer.init_transactions_async(60))
        while not sender.commands.holds:
            await asyncio.sleep(0.01)
        task.cancel()

    run(main())
    assert sender.commands.holds


def test_a_task_that_is_cancelled_in_its_block_aborts(sender, producer):
    async def work():
        async with producer.transaction():
            await producer.send_async("t", b"x")
            await asyncio.sleep(60)

    async def main():
        await producer.init_transactions_async()
        task = asyncio.create_task(work())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with producer.transaction():
            pass

    run(main())
    assert sender.commands.does() == ["init", "fail", "abort", "commit"]


def test_a_begin_whose_task_was_cancelled_has_begun_nothing(sender, producer):
    async def main():
        await producer.init_transactions_async()
        async with producer.transaction():
            sender.commands.script["offsets"] = [HOLD]
            offsets = asyncio.create_task(producer.send_offsets_to_transaction_async({("t", 0): 5}, "g"))
            await asyncio.sleep(0)
            task = asyncio.create_task(producer.transaction().__aenter__())  # waits for its turn
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            sender.commands.release()
            await offsets
        with pytest.raises(errors.IllegalStateError, match="in the state READY"):
            producer.send("t", b"x")
        async with producer.transaction():
            await producer.send_async("t", b"x")

    run(main())
    assert sender.commands.does() == ["init", "offsets", "commit", "commit"]
