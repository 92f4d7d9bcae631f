"""Tests the queue for memory: a call that cannot go on, or that has ended in any way, holds up no other one."""

import asyncio
import gc
import threading
import time

import pytest
from support.interrupts import HandlerError, at_each_entry
from support.process import wait_until

from cyproducer import KafkaProducer, errors

MIB = 1 << 20
LARGE = bytes(200_000)


@pytest.fixture
def full(sender):
    """Yield a producer whose memory is used up until `sender.release()`."""
    with KafkaProducer(sender=sender.path, buffer_memory=MIB, max_block_ms=10_000) as producer:
        producer.partitions_for("one")
        fill(sender, producer)
        yield producer
        sender.release()


def fill(sender, producer):
    sender.hold = True
    while producer.metrics()["producer-metrics"]["buffer-available-bytes"] > len(LARGE):
        producer.send("one", LARGE)


def waiting(producer):
    return producer.metrics()["producer-metrics"]["waiting-threads"]


def in_thread(call):
    """Make a call in another thread, and return its result. Fail if it does not end."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()
    thread.join(30)
    assert results, "the call has not ended, or has raised"
    return results[0]


@pytest.mark.parametrize("send", ["send", "send_array"])
def test_a_send_that_was_interrupted_leaves_the_queue_although_its_traceback_is_kept(sender, full, send):
    arguments = ("one", LARGE) if send == "send" else ("one", [LARGE])
    kept = []
    ended = threading.Event()

    def release_when_it_waits():
        while not waiting(full) and not ended.wait(0.01):
            pass
        sender.release()

    def prepare():
        fill(sender, full)
        ended.clear()
        thread = threading.Thread(target=release_when_it_waits)
        thread.start()
        return lambda: (getattr(full, send)(*arguments), thread.join())

    for told in at_each_entry(prepare, skip=lambda frame: "/threading.py" in frame.f_code.co_filename):
        kept.append(told.error)
        assert isinstance(told.error, HandlerError), told.where
        ended.set()
        wait_until(lambda: not sender.hold)
        assert waiting(full) == 0, told.where
        assert in_thread(lambda: full.send("one", LARGE).result(20)), told.where
    assert len(kept) > 5
    full.flush(20)
    assert full._channel().session.waiters == set()
    assert full._channel().session.topics.waiters == set()
    assert full.metrics()["producer-metrics"]["buffer-available-bytes"] == MIB


async def waiting_tasks(producer, count=3):
    """Return tasks of send_async() that wait for memory."""
    tasks = [asyncio.ensure_future(producer.send_async("one", LARGE)) for _ in range(count)]
    while waiting(producer) < count:
        await asyncio.sleep(0.01)
    return tasks


@pytest.mark.parametrize("loop_is", ["stopped", "closed", "dropped"])
def test_a_coroutine_whose_loop_runs_no_more_holds_up_no_other_send(sender, full, loop_is):
    loop = asyncio.new_event_loop()
    tasks = loop.run_until_complete(waiting_tasks(full))
    if loop_is != "stopped":
        loop.close()
    if loop_is == "dropped":
        for task in tasks:
            task._log_destroy_pending = False
        del loop, tasks
        gc.collect()
        assert waiting(full) == 0
    sender.release()
    for _ in range(3):
        assert in_thread(lambda: full.send("one", LARGE).result(20))
        assert asyncio.run(one(full)) is not None
    if loop_is == "stopped":  # it goes on where it stood
        futures = loop.run_until_complete(asyncio.wait_for(asyncio.gather(*tasks), 20))
        assert len({future.result(10).offset for future in futures}) == 3
        loop.close()
    elif loop_is == "closed":
        for task in tasks:
            task._log_destroy_pending = False


async def one(producer):
    return await asyncio.wait_for(await producer.send_async("one", LARGE), 20)


def test_a_plain_send_in_a_coroutine_does_not_wait_for_coroutines_of_its_own_loop(sender, full):
    async def main():
        tasks = await waiting_tasks(full)
        sender.release()
        future = full.send("one", LARGE)  # blocks the loop
        futures = await asyncio.gather(*tasks)
        return [each.result(10).offset for each in (future, *futures)]

    offsets = asyncio.run(asyncio.wait_for(main(), 30))
    assert offsets == sorted(offsets)


def test_the_loop_of_another_thread_that_is_busy_holds_up_no_send_for_long(sender, full):
    go_on = threading.Event()
    is_busy = threading.Event()

    async def main():
        tasks = await waiting_tasks(full)
        is_busy.set()
        go_on.wait(30)
        return [(await (await task)).offset for task in tasks]

    results = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(main())))
    thread.start()
    assert is_busy.wait(30)
    sender.release()
    assert full.send("one", LARGE).result(20)
    go_on.set()
    thread.join(30)
    assert len(results[0]) == 3


@pytest.mark.parametrize("steps", range(6))
def test_a_coroutine_that_is_cancelled_or_closed_at_any_await_leaves_the_queue(sender, full, steps):
    """Between the steps the loop goes on once. The coroutine waits for memory, and then for its turn."""

    async def main():
        tasks = [asyncio.ensure_future(full.send_async("one", LARGE)) for _ in range(3)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks[:2]:
            task.cancel()
        sender.release()
        done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert [type(each) for each in done[:2]] == [asyncio.CancelledError] * 2
        return await done[2]

    assert asyncio.run(asyncio.wait_for(main(), 60))
    assert waiting(full) == 0
    assert len(full._channel().lines) == 0
    assert in_thread(lambda: full.send("one", LARGE).result(20))


def test_calls_that_wait_in_the_same_thread_do_not_wait_for_each_other(sender, full):
    """A signal's handler sends while a send of its thread waits for memory: the inner one goes first."""
    import signal

    sent = []

    def handle(*given):
        sender.release()
        sent.append(full.send("one", LARGE))

    former = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        sent.append(full.send("one", LARGE))
    finally:
        signal.signal(signal.SIGALRM, former)
    assert [future.result(20).offset for future in sent] == sorted(future.result(20).offset for future in sent)


def test_a_line_of_coroutines_drains_at_once_though_they_came_one_after_the_other(sender, full):
    """Each one calls the next, also if it has waited longer than the time after which places are passed over."""

    async def main():
        tasks = []
        for _ in range(12):
            tasks.append(asyncio.ensure_future(full.send_async("one", LARGE)))
            await asyncio.sleep(0.06)
        (line,) = full._channel().lines.values()
        waiters = line.waiters()
        tasks[0].cancel()  # the first leaves, and calls the second
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert line.waiters()[0] is waiters[1]
        assert waiters[1].future.done() or full._channel().session.memory_queue.waiters() == [waiters[1]]
        sender.release()
        done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        offsets = [future.result(20).offset for future in done[1:]]
        assert offsets == sorted(offsets)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_send_that_is_passed_over_still_times_out(sender, full):
    """Nothing becomes free: every call gets its own error at its own deadline."""
    with KafkaProducer(sender=sender.path, buffer_memory=MIB, max_block_ms=300) as producer:
        producer.partitions_for("one")
        fill(sender, producer)
        loop = asyncio.new_event_loop()
        task = loop.create_task(producer.send_async("one", LARGE))
        loop.run_until_complete(asyncio.sleep(0.05))
        began = time.monotonic()
        with pytest.raises(errors.BufferExhaustedError):
            producer.send("one", LARGE)
        assert time.monotonic() - began >= 0.3
        with pytest.raises(errors.BufferExhaustedError):
            loop.run_until_complete(task)
        loop.close()
        wait_until(lambda: waiting(producer) == 0)
        sender.release()
