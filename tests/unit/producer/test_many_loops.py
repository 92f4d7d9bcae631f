"""Tests event loops in several threads, and loops that are stopped: they share a session and leave nothing in it."""

import asyncio
import concurrent.futures
import contextlib
import gc
import os
import sys
import threading

import pytest
from standin_sender import attach
from support.interrupts import HandlerError, at_each_entry
from support.process import wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel.channel import Channel


def descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def hasty():
    """Let threads take turns as often as possible."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(former)


async def send_one(producer, value):
    return (await (await producer.send_async("one", value))).offset


def test_short_loops_in_many_threads_get_each_outcome(sender, producer, hasty):
    """As in Flask's asynchronous views: each job runs a loop of its own, which ends with it."""
    attach(producer, "one")
    before = descriptors()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # raises what a job has raised
        offsets = list(pool.map(lambda at: asyncio.run(send_one(producer, b"%d" % at)), range(1000)))
    assert len(offsets) == 1000  # tests/usage compares them with what a real Kafka has
    asyncio.run(send_one(producer, b"last"))  # looks for the loops that are closed
    wait_until(lambda: len(producer._channel().session.loops) <= 1)
    assert descriptors() <= before + 3  # an eventfd for waits, and the duplicates of the last loop


def test_loops_that_begin_while_the_session_ends_leave_nothing(sender, hasty):
    before = descriptors()
    for _ in range(20):
        producer = KafkaProducer(sender=sender.path)
        attach(producer, "one")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            ended = [pool.submit(run_quietly, producer) for _ in range(4)]
            producer.close(0)
        assert [each.exception() for each in ended] == [None] * 4
        del producer
    wait_until(lambda: descriptors() <= before)


def run_quietly(producer):
    asyncio.run(send_quietly(producer))


async def send_quietly(producer):
    """Send a record to a producer that another thread closes."""
    with contextlib.suppress(errors.ProducerClosedError, errors.OutcomeUnknownError):
        await (await producer.send_async("one", b"x"))


def test_a_stop_of_watching_that_is_interrupted_can_be_repeated(sender, producer):
    """Numbers of descriptors that a loop watches must not be closed before: the next file with one is not watched."""
    loop = asyncio.new_event_loop()
    assert loop.run_until_complete(send_one(producer, b"x")) >= 0
    (reader,) = producer._channel().session.loops.values()
    numbers = [copy.fd for copy in reader.copies]
    for told in at_each_entry(lambda: reader.close):
        assert isinstance(told.error, HandlerError), told.where
        watched = [number for number in numbers if number in loop._selector.get_map()]
        assert watched == [copy.fd for copy in reader.copies][: len(watched)], told.where
    assert reader.copies == []
    assert not any(number in loop._selector.get_map() for number in numbers)
    loop.close()


def test_a_call_that_joins_an_attempt_to_attach_keeps_its_own_deadline(sender, monkeypatch):
    """The attempt of the first call does not end before the second call has its error."""
    go_on = threading.Event()

    async def main(producer):
        longer = asyncio.ensure_future(producer.init_transactions_async(60))
        await asyncio.sleep(0)
        longer.cancel()
        with pytest.raises(errors.SenderUnavailableError, match="another call is still attaching"):
            await producer.init_transactions_async(0.1)

    with KafkaProducer(sender=sender.path, transactional_id="x") as producer:
        with monkeypatch.context() as patched:
            patched.setattr(Channel, "attached", lambda self, deadline: go_on.wait(60))
            asyncio.run(asyncio.wait_for(main(producer), 60))
            go_on.set()
            wait_until(lambda: producer._channel()._attempt is None)
        producer.init_transactions(10)


@pytest.mark.parametrize("closed_by", ["the same thread", "another thread"])
@pytest.mark.parametrize("loop_is", ["closed", "kept"])
def test_a_stopped_loop_keeps_no_descriptors_of_a_closed_producer(sender, loop_is, closed_by):
    loops = []
    before = descriptors()
    for _ in range(5):
        producer = KafkaProducer(sender=sender.path)
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(send_one(producer, b"x")) >= 0
        thread = threading.Thread(target=producer.close, args=(10,))
        if closed_by == "the same thread":
            producer.close(10)
        else:
            thread.start()
            thread.join()
        wait_until(lambda: not sender.front_ends)  # also while the loop stands
        if loop_is == "closed" or closed_by == "another thread":
            loop.close()
        else:
            loops.append(loop)
        del producer
    wait_until(lambda: descriptors() <= before + 3 * len(loops))  # an epoll and a socket pair of each loop
    for loop in loops:
        loop.close()
    wait_until(lambda: descriptors() <= before)
