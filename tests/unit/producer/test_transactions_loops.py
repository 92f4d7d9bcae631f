"""Tests calls for transactions beside event loops that are busy or have stopped, and beside threads."""

import asyncio
import concurrent.futures
import threading
import time

import pytest
from standin_transactions import HOLD
from support.process import wait_until

from cyproducer import KafkaProducer, errors

OFFSETS = {("t", 0): 5}


@pytest.fixture
def loop():
    made = asyncio.new_event_loop()
    yield made
    if not made.is_closed():
        for task in asyncio.all_tasks(made):
            task.cancel()
        made.run_until_complete(asyncio.sleep(0))
        made.close()


@pytest.fixture
def made(sender):
    with KafkaProducer(
        sender=sender.path, transactional_id="x", max_block_ms=30_000, buffer_memory=1 << 20
    ) as producer:
        yield producer


def run(main):
    return asyncio.run(asyncio.wait_for(main, 60))


async def held_commit(sender, made):
    """Return a task with a commit whose command is held."""
    await made.init_transactions_async()
    made.begin_transaction()
    await made.send_async("t", b"x")
    sender.commands.script["commit"] = [HOLD]
    task = asyncio.ensure_future(made.commit_transaction_async())
    while not sender.commands.holds:
        await asyncio.sleep(0.01)
    return task


def test_the_calls_need_no_thread_of_the_executor(sender, made):
    """All threads of the loop's default executor are busy with the jobs of the application."""
    release = threading.Event()

    async def main():
        executor = concurrent.futures.ThreadPoolExecutor(1)
        loop = asyncio.get_running_loop()
        loop.set_default_executor(executor)
        job = loop.run_in_executor(None, release.wait, 60)
        try:
            await made.init_transactions_async()
            for end in (made.commit_transaction_async, made.abort_transaction_async):
                made.begin_transaction()
                future = await made.send_async("t", b"x", on_delivery=lambda error, record: None)
                await made.send_offsets_to_transaction_async(OFFSETS, "g")
                await end()
                assert future.done()
            sender.commands.script["commit"] = [HOLD]
            made.begin_transaction()
            with pytest.raises(errors.KafkaTimeoutError, match=r"no result after 0.1 s: the sender has not answered"):
                await made.commit_transaction_async(0.1)
            sender.commands.release()
            await made.commit_transaction_async()
        finally:
            release.set()
            await job

    run(main())


def test_callbacks_have_run_when_a_commit_of_a_loop_returns(made):
    called = []

    async def main():
        await made.init_transactions_async()
        made.begin_transaction()
        for _ in range(20):
            await made.send_async("t", b"x", on_delivery=lambda *told: (time.sleep(0.005), called.append(told)))
        await made.commit_transaction_async()
        assert len(called) == 20

    run(main())


@pytest.mark.parametrize("closed", [False, True], ids=["stopped", "closed"])
@pytest.mark.parametrize("in_thread", [False, True], ids=["here", "in another thread"])
def test_a_call_of_a_loop_that_has_stopped_holds_up_no_other_call(sender, made, loop, closed, in_thread):
    task = loop.run_until_complete(held_commit(sender, made))
    if closed:
        loop.close()
    sender.commands.release()
    if in_thread:
        thread = threading.Thread(target=made.commit_transaction)
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    else:
        made.commit_transaction()
    made.begin_transaction()
    made.send("t", b"one half")
    if not closed:  # the first call goes on, in the next transaction
        with pytest.raises(errors.IllegalStateError, match=r"^commit_transaction\(\) cannot go on: its event loop had"):
            loop.run_until_complete(asyncio.wait_for(task, 30))
    made.send("t", b"the other half")
    made.commit_transaction()
    assert sender.commands.does() == ["init", "commit", "commit"]


def test_a_thread_waits_for_a_call_of_a_loop_that_runs(sender, made):
    async def main():
        task = await held_commit(sender, made)
        other = asyncio.get_running_loop().run_in_executor(None, made.commit_transaction, 30)
        await asyncio.sleep(0.1)
        assert not other.done()
        sender.commands.release()
        await task
        with pytest.raises(errors.IllegalStateError, match=r"in the state READY .the last transaction was committed"):
            await other

    run(main())
    assert sender.commands.does() == ["init", "commit"]


def test_a_call_that_would_block_the_loop_of_a_running_call_is_refused(sender, made):
    async def main():
        task = await held_commit(sender, made)
        for call in (made.commit_transaction, made.abort_transaction, made.begin_transaction):
            with pytest.raises(errors.IllegalStateError, match="await the running call first"):
                call()
        sender.commands.release()
        await task

    run(main())


def test_calls_of_two_loops_have_their_turns(sender, made):
    made.init_transactions()
    made.begin_transaction()
    sender.commands.script["commit"] = [HOLD]
    ended = []

    def work():
        try:
            asyncio.run(made.commit_transaction_async())
            ended.append("committed")
        except errors.IllegalStateError as error:
            ended.append(str(error))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: sender.commands.holds, 30, "the commit")
    sender.commands.release()
    for thread in threads:
        thread.join(30)
    assert ended.count("committed") == 1
    assert len(ended) == 3
    assert sender.commands.does() == ["init", "commit"]


async def crowded(producer):
    """Return tasks with sends in a new transaction, of which some wait for memory until the sender is released."""
    await producer.init_transactions_async()
    producer.begin_transaction()
    tasks = [asyncio.ensure_future(producer.send_async("t", bytes(300_000), partition=0)) for _ in range(8)]
    await asyncio.sleep(0.2)
    assert not all(task.done() for task in tasks)
    return tasks


@pytest.mark.parametrize("closed", [False, True], ids=["stopped", "closed"])
@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_send_of_a_loop_that_has_stopped_is_passed_over(sender, made, loop, closed, end):
    """It waits for memory. When it goes on, its transaction has ended, and it queues nothing."""
    sender.hold = True
    tasks = loop.run_until_complete(crowded(made))
    waiting = [task for task in tasks if not task.done()]
    if closed:
        loop.close()
    sender.release()
    getattr(made, f"{end}_transaction")()
    made.begin_transaction()
    if not closed:
        for task in waiting:
            with pytest.raises(errors.IllegalStateError, match=r"send_async\(\) has queued nothing: its event"):
                loop.run_until_complete(asyncio.wait_for(task, 30))
    made.commit_transaction()
    assert len(sender.log) == 8 - len(waiting)


def test_a_send_of_a_loop_that_runs_in_another_thread_is_waited_for(sender, made):
    sender.hold = True
    began = threading.Event()

    async def main():
        tasks = await crowded(made)
        began.set()
        await asyncio.gather(*tasks)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    assert began.wait(30)
    threading.Timer(0.2, sender.release).start()
    made.commit_transaction()
    thread.join(30)
    assert len(sender.log) == 8


def test_a_coroutine_that_waits_to_send_holds_up_the_end(sender, made):
    sender.hold = True

    async def main():
        tasks = await crowded(made)
        with pytest.raises(errors.IllegalStateError, match=r"await producer.send_async"):
            made.commit_transaction(1)
        with pytest.raises(errors.KafkaTimeoutError, match="a send method of another thread is still running"):
            await made.commit_transaction_async(0.1)
        sender.release()
        await made.commit_transaction_async(30)
        assert all(task.result().done() for task in tasks)

    run(main())
    assert len(sender.log) == 8


def test_a_coroutine_that_is_never_awaited_or_cancelled_does_not_hold_up_the_end(sender, made):
    sender.hold = True

    async def main():
        tasks = await crowded(made)
        made.send_async("t", b"x").close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        sender.release()
        await made.commit_transaction_async(30)

    run(main())


def test_a_record_fails_while_offsets_are_sent(sender, made):
    """Another thread notices it, and makes the transaction abortable."""
    made.init_transactions()
    made.begin_transaction()
    sender.commands.script["offsets"] = [HOLD]
    thread = threading.Thread(target=made.send_offsets_to_transaction, args=(OFFSETS, "g"))
    thread.start()
    wait_until(lambda: sender.commands.holds, 30, "the offsets")
    sender.error = 19
    made.send("t", b"x").exception(10)
    sender.error = errors.TRANSACTION_ABORTED
    with pytest.raises(errors.KafkaError, match="error state"):
        made.send_array("t", [b"x"])
    sender.commands.release()
    thread.join(30)
    assert not thread.is_alive()
    made.abort_transaction()
    assert sender.commands.does() == ["init", "offsets", "fail", "abort"]
