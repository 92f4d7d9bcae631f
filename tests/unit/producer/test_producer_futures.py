"""Tests callbacks, waiting for many futures, asyncio and fork, against a stand-in sender."""

import asyncio
import concurrent.futures
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from pathlib import Path

import pytest
from standin_sender import attach
from support.process import wait_until

import cyproducer
from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import delivery, waits
from cyproducer.producer.channel.delivery import Delivery
from cyproducer.producer.core import native
from cyproducer.producer.core.native import Waiter

HERE = Path(__file__).parent


def callback_threads():
    return [t for t in threading.enumerate() if t.name == "cyproducer-callbacks"]


def test_a_batch_that_is_done_while_its_first_callback_is_announced(producer, monkeypatch):
    """Waking the callback thread lets others run: the batch may be done and called back before send() returns."""
    poke = Delivery.poke

    def poke_and_be_overtaken(delivery):
        poke(delivery)
        deadline = time.monotonic() + 0.5
        while (producer.metrics()["producer-metrics"]["batches-pending"] or delivery.is_busy()) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.001)

    seen = []
    producer.send("one", b"first", on_delivery=lambda error, record: seen.append(record.offset)).result(10)
    producer.flush(10)
    monkeypatch.setattr(Delivery, "poke", poke_and_be_overtaken)
    producer.send("one", b"second", on_delivery=lambda error, record: seen.append(record.offset)).result(10)
    producer.send("one", b"third").add_done_callback(lambda future: seen.append(future.value.offset))
    producer.flush(10)
    assert seen == [0, 1, 2]


def test_on_delivery_is_called_once_in_order_on_one_thread(sender, producer):
    producer.send("one", b"x").result(10)
    assert not callback_threads()
    seen = []
    for number in range(1000):
        producer.send("one", b"%d" % number, on_delivery=lambda e, r, n=number: seen.append((n, e, r.offset)))
    assert len(callback_threads()) == 1
    producer.flush(10)
    assert seen == [(n, None, n + 1) for n in range(1000)]
    producer.close()
    wait_until(lambda: not callback_threads())


def test_callbacks_of_every_kind(sender, producer):
    seen = []
    sender.hold = True
    good = producer.send("one", b"x")
    added = good.add_callback(lambda tag, record, more: seen.append((tag, record.offset, more)), "tag", more=1)
    assert added is good
    good.add_errback(lambda error: seen.append("never"))
    good.add_done_callback(lambda future: seen.append(future is good))
    good.add_both(lambda record: seen.append("both"))
    sender.release()
    producer.flush(10)
    assert seen == [("tag", 0, 1), True, "both"]
    good.add_done_callback(lambda future: seen.append("late"))
    assert seen[-1] == "late"
    sender.error = 10
    bad = producer.send("one", b"x", on_delivery=lambda e, r: seen.append((type(e), r.topic, r.offset)))
    bad.add_callback(lambda record: seen.append("never")).add_errback(lambda error: seen.append(error.code))
    producer.flush(10)
    assert seen[-2:] == [(errors.RecordTooLargeError, "one", -1), 10]


def test_callbacks_of_several_kinds_added_out_of_order_come_in_the_records_order(sender, producer):
    seen = []
    sender.hold = True

    def delivered(error, record):
        seen.append((record.offset, record.serialized_value_size))

    futures = [producer.send("one", b"v" * n, on_delivery=delivered if n % 3 else None) for n in range(1, 10)]
    for n in (5, 2):
        futures[n].add_callback(lambda record: seen.append((record.offset, "done")))
    producer.send("one", b"v" * 10, on_delivery=delivered)
    sender.release()
    producer.flush(10)
    first = futures[0].result(0).offset
    expected = [(n, n + 1) if (n + 1) % 3 else (n, "done") for n in range(10) if n != 8]
    assert [(offset - first, what) for offset, what in seen] == expected


def test_a_callback_that_raises_is_logged_and_leaves_out_none(sender, producer, caplog):
    seen = []

    def delivered(error, record):
        seen.append(record.offset)
        raise RuntimeError("boom")

    futures = [producer.send("one", b"1", on_delivery=delivered) for _ in range(50)]
    futures.append(producer.send("one", b"2", on_delivery=lambda error, record: seen.append(record.offset)))
    producer.flush(10)
    assert seen == [future.result(0).offset for future in futures]
    assert caplog.text.count("RuntimeError: boom") == 50 and "'one'" in caplog.text


class FailingLog(logging.Handler):
    def emit(self, record):
        raise SystemExit("the log server is down")


def test_a_log_that_fails_leaves_out_no_callback(sender, producer):
    called = []

    def fail(*given):
        called.append(given)
        raise ValueError

    log, failing = logging.getLogger("cyproducer"), FailingLog()
    log.addHandler(failing)
    try:
        for _ in range(2):
            future = producer.send("one", b"x", on_delivery=fail)
            producer.send("one", b"y", on_delivery=fail)
            future.add_callback(fail).add_done_callback(fail)
            array_future = producer.send_array("one", [b"z"])
            for _ in range(2):
                array_future.add_done_callback(fail)
            producer.flush(10)
            thread = producer._channel().delivery.thread
            assert thread.is_alive()
    finally:
        log.removeHandler(failing)
    assert len(called) == 2 * 6
    future.add_done_callback(called.append)
    assert called[-1] is future


def test_a_flush_that_comes_as_the_callback_thread_falls_asleep(producer):
    """The thread was not yet asleep when the flush woke it: it checks for a wake-up before it sleeps."""
    producer.send("one", b"x").result(10)
    channel = producer._channel()
    falling, waiter = Delivery(channel), Waiter()
    falling.waiting.append(waiter)
    thread = threading.Thread(target=delivery._sleep, args=(falling, channel))
    thread.start()
    thread.join(5)
    awake = not thread.is_alive()
    falling.poke()
    thread.join()
    falling.close()
    assert awake


def test_a_flush_waits_for_the_callbacks_that_were_ready_when_it_came(producer):
    """They become ready when the thread has called all others and before it notifies the waiting flush."""
    producer.send("one", b"x").result(10)
    calling, waiter = Delivery(producer._channel()), Waiter()
    called = []
    finished = producer.send("one", b"x")
    finished.result(10)

    class Ready(deque):
        def __bool__(self):
            if len(self) == 0 and not called and not calling.waiting:
                self.append(None)  # an outcome arrives, and a flush starts
                calling.waiting.append(waiter)
                return False
            return len(self) > 0

        def popleft(self):
            assert waiter.wanted == 1
            called.append(super().popleft())
            return finished._batch

    calling.ready = Ready()
    delivery._call_ready(calling)
    calling.close()
    assert called == [None]
    assert waiter.wanted == 0


def test_a_callback_thread_that_ends_notifies_waiting_flushes(sender, producer, monkeypatch):
    called, waiter = [], Waiter()
    go = threading.Event()
    producer.send("one", b"x", on_delivery=lambda *given: go.wait(10))
    ending = producer._channel().delivery
    with monkeypatch.context() as patched:
        patched.setattr(delivery, "log_exception", lambda *given: 1 // 0)
        patched.setattr(delivery, "_sleep", lambda *given: ending.waiting.append(waiter) or 1 // 0)
        patched.setattr(threading, "excepthook", lambda args: called.append(args.exc_type))
        go.set()
        wait_until(lambda: not ending.thread.is_alive())
    assert called == [ZeroDivisionError]
    assert waiter.wanted == 0
    assert not ending.is_busy()
    producer.send("one", b"x", on_delivery=lambda *given: called.append(given))
    producer.flush(10)
    assert len(called) == 2


def test_a_callback_thread_that_cannot_be_started_is_tried_again(sender, producer, monkeypatch):
    """The send() that reports this has queued nothing, and the next one gets its callback."""
    producer.send("t", b"x").result(10)
    start = threading.Thread.start
    refusals = ["can't start new thread"]

    def refusing(thread):
        if refusals:
            raise RuntimeError(refusals.pop())
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refusing)
    heard = []
    with pytest.raises(RuntimeError, match="can't start"):
        producer.send("t", b"never", on_delivery=lambda error, record: heard.append("never"))
    producer.send("t", b"y", on_delivery=lambda error, record: heard.append(record.topic))
    producer.flush(10)
    assert heard == ["t"]
    assert [record.value for record in sender.log] == [b"x", b"y"]


def test_sending_in_a_callback(sender, producer):
    seen = []

    def again(error, record):
        seen.append(producer.send("one", b"again"))

    producer.send("one", b"x", on_delivery=again)
    producer.flush(10)
    assert seen[0].result(10).offset == 1


def test_wait_and_as_completed(sender, producer):
    sender.hold = True
    futures = [producer.send("t", b"x", partition=p) for p in range(4)]
    assert cyproducer.wait(futures, timeout=0.01) == (set(), set(futures))
    with pytest.raises(TimeoutError):
        next(cyproducer.as_completed(futures, timeout=0.01))
    sender.release()
    assert set(cyproducer.as_completed(futures, timeout=10)) == set(futures)
    done, not_done = cyproducer.wait(futures)
    assert (done, not_done) == (set(futures), set())
    more = producer.send("t", b"y")
    assert more in cyproducer.wait([more], 10, return_when=concurrent.futures.FIRST_COMPLETED).done
    with pytest.raises(TypeError, match="list"):
        cyproducer.wait([[]])


def test_many_threads_wait_for_their_own_futures(sender, producer):
    failed = []

    def work(number):
        for _ in range(20):
            try:
                producer.send("t", b"x", partition=number % 4).result(20)
            except Exception as error:
                failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(sender.log) == 160


@pytest.mark.parametrize("timeout", [31_536_000, threading.TIMEOUT_MAX, 1e30, float("inf")])
def test_a_time_limit_may_be_of_any_length(sender, timeout):
    """poll() takes 24.8 days at most."""
    producer = KafkaProducer(sender=sender.path)

    def wait_with(wait):
        sender.hold = True
        futures = [producer.send("t", b"x", partition=partition) for partition in range(2)]
        timer = threading.Timer(0.05, sender.release)
        timer.start()
        wait(futures)
        timer.join()
        assert [future.exception() for future in futures] == [None, None]

    wait_with(lambda futures: futures[0].result(timeout))
    wait_with(lambda futures: cyproducer.wait(futures, timeout))
    wait_with(lambda futures: producer.flush(timeout))
    wait_with(lambda futures: producer.close(timeout))


def test_close_with_an_invalid_timeout_leaves_the_producer_open(producer):
    future = producer.send("t", b"x")
    with pytest.raises(TypeError):
        producer.close("soon")
    producer.flush(10)
    assert future.exception() is None


def test_a_signal_ends_a_wait(sender, producer):
    sender.hold = True
    future = producer.send("t", b"x")
    before = signal.signal(signal.SIGALRM, lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt):
            future.result(30)
    finally:
        signal.signal(signal.SIGALRM, before)
    sender.release()
    assert future.result(10).offset == 0


def test_futures_are_not_tracked_by_the_garbage_collector(sender, producer):
    future = producer.send("t", b"x")
    assert not gc.is_tracked(future)
    assert sys.getsizeof(future) == 40
    with pytest.raises(TypeError):
        type(future)()


def test_asyncio_sends_without_a_thread(sender, producer):
    async def main():
        first = await (await producer.send_async("t", b"x"))
        threads = set(threading.enumerate())
        futures = [await producer.send_async("t", b"%d" % n) for n in range(2000)]
        records = await asyncio.gather(*(asyncio.ensure_future(_await(f)) for f in futures))
        assert set(threading.enumerate()) <= threads
        return first, records

    first, records = asyncio.run(main())
    assert first.offset == 0
    assert len({(r.partition, r.offset) for r in records}) == 2000


async def _await(future):
    return await future


def test_asyncio_waits_for_memory_and_metadata_without_blocking_the_loop(sender):
    late = []

    async def ticker():
        while True:
            started = time.monotonic()
            await asyncio.sleep(0.01)
            late.append(time.monotonic() - started)

    async def main(producer):
        ticking = asyncio.ensure_future(ticker())
        sender.hold = True
        threading.Timer(0.3, sender.release).start()
        threading.Timer(0.2, lambda: (sender.topics.update(late=2), sender.publish())).start()
        showed_up = await producer.send_async("late", b"x")
        futures = [await producer.send_async("one", b"%04d" % n + bytes(60_000)) for n in range(60)]
        await showed_up
        records = [await future for future in futures]
        ticking.cancel()
        return records

    with KafkaProducer(sender=sender.path, buffer_memory=1 << 20) as producer:
        records = asyncio.run(main(producer))
    assert [r.offset for r in records] == list(range(60))
    assert [int(r.value[:4]) for r in sender.log if r.topic == "one"] == list(range(60))
    assert len(late) > 15


def test_asyncio_errors_and_cancellation(sender):
    async def main(producer):
        with pytest.raises(errors.KafkaTimeoutError, match="not present in metadata after 100 ms"):
            await producer.send_async("nope", b"")
        sender.hold = True
        held = await producer.send_async("t", b"x")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_await(held), 0.05)

        async def fill():
            for _ in range(40):
                await producer.send_async("one", bytes(60_000))

        with pytest.raises(errors.BufferExhaustedError):
            await fill()
        sender.release()
        return await held

    with KafkaProducer(sender=sender.path, buffer_memory=1 << 20, max_block_ms=100) as producer:
        attach(producer)
        assert asyncio.run(main(producer)).offset == 0


@pytest.mark.parametrize("topic", ["one", "late"])
def test_asyncio_keeps_the_order_of_calls_that_wait_for_the_sender_and_metadata(sender, topic):
    async def main(producer):
        loop = asyncio.get_running_loop()
        loop.call_later(0.1, lambda: (sender.topics.update(late=1), sender.publish()))
        first = [asyncio.ensure_future(producer.send_async(topic, b"%d" % n)) for n in range(300)]
        while not first[0].done():
            await asyncio.sleep(0)
        first += [asyncio.ensure_future(producer.send_async(topic, b"%d" % n)) for n in range(300, 400)]
        return [await future for future in await asyncio.gather(*first)]

    with KafkaProducer(sender=sender.path) as producer:
        records = asyncio.run(main(producer))
    assert [r.offset for r in records] == list(range(400))
    assert [r.value for r in sender.log] == [b"%d" % n for n in range(400)]


def test_asyncio_keeps_the_order_of_calls_that_wait_for_memory(sender):
    """Small records behind large ones do not overtake them; another topic is not delayed by a missing one."""

    async def main(producer):
        sender.hold = True
        missing = asyncio.ensure_future(producer.send_async("nope", b""))
        sent = [
            asyncio.ensure_future(producer.send_async("one", b"%04d" % n + bytes(50_000 if n % 5 else 10)))
            for n in range(100)
        ]
        await asyncio.sleep(0.1)
        assert not sent[-1].done()
        sender.release()
        await asyncio.gather(*(await asyncio.gather(*sent)))
        assert not missing.done()
        missing.cancel()

    with KafkaProducer(sender=sender.path, buffer_memory=1 << 20) as producer:
        asyncio.run(main(producer))
    assert [int(r.value[:4]) for r in sender.log] == list(range(100))


def test_asyncio_keeps_the_order_of_calls_when_memory_comes_back_before_all_wait_for_it(sender):
    """Some wait for memory, others queue behind them: these do not use batches that the former have opened."""

    async def main(producer):
        sender.hold = True
        sent = [
            asyncio.ensure_future(producer.send_async("one", b"%04d" % n + bytes(3000 if n < 400 else 10)))
            for n in range(500)
        ]
        while not producer._channel().session.memory_queue:
            await asyncio.sleep(0)
        assert not all(task.done() for task in sent[:390])
        sender.release()
        # outside the loop, which would continue
        wait_until(lambda: len(sender.log) >= 200, 20, "the delivery of what fills the memory")
        await asyncio.gather(*(await asyncio.gather(*sent)))

    with KafkaProducer(sender=sender.path, buffer_memory=1 << 20) as producer:
        asyncio.run(main(producer))
    assert [int(r.value[:4]) for r in sender.log] == list(range(500))


def test_two_loops_in_two_threads(sender, producer):
    async def main():
        return [await (await producer.send_async("t", b"x")) for _ in range(50)]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda _: asyncio.run(main()), range(2)))
    assert sorted(r.offset for records in results for r in records) == list(range(100))


def test_waiting_for_single_records_makes_one_eventfd(sender, producer, monkeypatch):
    made = []
    eventfd = os.eventfd
    monkeypatch.setattr(os, "eventfd", lambda *given: made.append(given) or eventfd(*given))
    sender.delay = 0.01
    for n in range(20):
        assert producer.send("one", b"%d" % n).result(10).partition == 0
    assert len(made) == 1


def test_waits_that_time_out_leave_no_waiter(sender, producer):
    producer.send("one", b"0").result(10)
    sender.hold = True
    future = producer.send("one", b"1")
    before = len(os.listdir("/proc/self/fd"))
    for return_when in (concurrent.futures.ALL_COMPLETED, concurrent.futures.FIRST_COMPLETED):
        assert cyproducer.wait([future], 0.001, return_when).not_done == {future}
    for timeout in (0, -1, 0.001):
        with pytest.raises(errors.KafkaTimeoutError, match="still under way"):
            future.result(timeout)
    timer = threading.Timer(0.1, sender.release)
    timer.start()
    assert future.result(1e30).offset == 1
    timer.join()
    assert len(os.listdir("/proc/self/fd")) == before
    assert producer._channel().session.waiters == set()


def test_a_batch_that_finishes_before_it_is_waited_for(sender, producer, monkeypatch):
    """Another thread takes the outcome between the check of the batch and the check of its session."""
    future = producer.send("one", b"1")
    session = producer._channel().session

    def finish():
        wait_until(lambda: session.poll() == 0 and not session.owner.unfinished())
        return False

    monkeypatch.setattr(native, "is_patched", finish)
    assert future.result(10).offset == 0


def test_a_batch_that_finishes_as_it_is_waited_for(producer):
    """Another thread takes the outcome between two steps of the wait: the batch has no session then."""
    producer.send("one", b"1").result(10)

    class Finishing:
        owner, done = producer._channel(), False

        def add_waiter(self, waiter):
            self.owner, self.done = None, True
            return True

        def remove_waiter(self, waiter):
            assert self.done

    assert waits.wait_batches([Finishing(), Finishing()], 10)
