"""Tests transactions in asyncio: nothing blocks the loop, and a call whose task was cancelled can be repeated."""

import asyncio
import time

import pytest
from standin_transactions import HOLD, failed

from cyproducer import KafkaProducer, errors


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


def test_a_transaction_of_a_loop(sender, made):
    async def main():
        await made.init_transactions_async()
        async with made.transaction():
            future = await made.send_async("t", b"x")
            await made.send_offsets_to_transaction_async({("t", 0): 5}, "g")
        assert future.done()
        with pytest.raises(ZeroDivisionError):
            async with made.transaction():
                raise ZeroDivisionError
        made.begin_transaction()
        await made.abort_transaction_async(5)
        made.begin_transaction()
        await made.commit_transaction_async(timeout=5)

    run(main())
    assert sender.commands.does() == ["init", "offsets", "commit", "fail", "abort", "fail", "abort", "commit"]


def test_errors_are_those_of_the_other_methods(sender, made):
    async def main():
        with pytest.raises(errors.IllegalStateError, match=r"^commit_transaction\(\) is not possible"):
            await made.commit_transaction_async()
        with pytest.raises(ValueError, match="timeout=-1"):
            await made.init_transactions_async(-1)
        sender.commands.script["init"] = [HOLD]
        with pytest.raises(errors.KafkaTimeoutError):
            await made.init_transactions_async(0.1)
        sender.commands.release()
        await made.init_transactions_async()
        sender.commands.script["commit"] = [failed("abortable", 120)]
        with pytest.raises(errors.TransactionAbortableError):
            async with made.transaction():
                pass
        sender.commands.script["fail"] = [failed("fatal", 90)]
        with pytest.raises(ZeroDivisionError) as caught:
            async with made.transaction():
                raise ZeroDivisionError
        assert caught.value.__notes__
        with pytest.raises(errors.ProducerFencedError):
            async with made.transaction():
                pass

    run(main())


@pytest.mark.parametrize("what", ["init", "commit", "abort"])
@pytest.mark.parametrize("answered", ["before", "after", "never"])
def test_a_call_whose_task_was_cancelled_can_be_repeated(sender, made, what, answered):
    """`answered`: whether the answer comes before or after the thread of the call has noticed the end of its task."""

    async def main():
        if what != "init":
            await made.init_transactions_async()
            made.begin_transaction()
        call = getattr(made, f"{what}_transaction{'s' * (what == 'init')}_async")
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
            made.send("t", b"x")
        sender.commands.script[what] = []
        if answered == "never":
            asyncio.get_running_loop().call_later(0.3, sender.commands.release)
        await call(10)
        if what == "init":
            made.begin_transaction()
            await made.commit_transaction_async()
        made.begin_transaction()
        await made.commit_transaction_async()

    run(main())
    assert sender.commands.does().count(what) == {"init": 1, "commit": 2, "abort": 1}[what]


def test_a_result_that_came_together_with_the_cancellation_is_kept(sender, made):
    """The call has succeeded, but its task is cancelled before it runs on."""

    async def main():
        await made.init_transactions_async()
        made.begin_transaction()
        task = asyncio.create_task(made.commit_transaction_async())
        while "commit" not in sender.commands.does():
            time.sleep(0.01)  # blocks the loop, so that the task cannot run on
            await asyncio.sleep(0)
        time.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(errors.IllegalStateError, match=r"commit_transaction\(\) has no result yet"):
            made.begin_transaction()
        await made.commit_transaction_async()
        made.begin_transaction()

    run(main())
    assert sender.commands.does() == ["init", "commit"]


def test_the_end_of_the_program_does_not_wait_for_a_cancelled_call(sender, made):
    async def main():
        sender.commands.script["init"] = [HOLD]
        task = asyncio.create_task(made.init_transactions_async(60))
        while not sender.commands.holds:
            await asyncio.sleep(0.01)
        task.cancel()

    run(main())
    assert sender.commands.holds


def test_a_task_that_is_cancelled_in_its_block_aborts(sender, made):
    async def work():
        async with made.transaction():
            await made.send_async("t", b"x")
            await asyncio.sleep(60)

    async def main():
        await made.init_transactions_async()
        task = asyncio.create_task(work())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with made.transaction():
            pass

    run(main())
    assert sender.commands.does() == ["init", "fail", "abort", "commit"]


def test_a_begin_whose_task_was_cancelled_has_begun_nothing(sender, made):
    async def main():
        await made.init_transactions_async()
        async with made.transaction():
            sender.commands.script["offsets"] = [HOLD]
            offsets = asyncio.create_task(made.send_offsets_to_transaction_async({("t", 0): 5}, "g"))
            await asyncio.sleep(0)
            task = asyncio.create_task(made.transaction().__aenter__())  # waits for its turn
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            sender.commands.release()
            await offsets
        with pytest.raises(errors.IllegalStateError, match="in the state READY"):
            made.send("t", b"x")
        async with made.transaction():
            await made.send_async("t", b"x")

    run(main())
    assert sender.commands.does() == ["init", "offsets", "commit", "commit"]


def test_a_record_that_a_task_could_not_send_fails_its_transaction(sender):
    """Nobody looks at the result of the task. The next transaction is not concerned."""

    async def main(producer):
        await producer.init_transactions_async(30)
        producer.begin_transaction()
        await producer.send_async("t", b"sent")
        lost = asyncio.create_task(producer.send_async("unknown", b"lost"))
        await asyncio.wait([lost])
        with pytest.raises(errors.KafkaError, match=r"was not sent: .*unknown.*call abort_transaction\(\)"):
            await producer.commit_transaction_async(30)
        with pytest.raises(errors.KafkaError, match="was not sent: "):
            await producer.send_async("t", b"more")
        await producer.abort_transaction_async(30)
        with pytest.raises(errors.KafkaTimeoutError):
            await lost
        producer.begin_transaction()
        await producer.send_async("t", b"next")
        await producer.commit_transaction_async(30)

    with KafkaProducer(sender=sender.path, transactional_id="x", max_block_ms=300) as producer:
        run(main(producer))
    assert sender.commands.does() == ["init", "fail", "abort", "commit"]
