"""Tests code of the application that runs in the middle of a send: finalizers, signal handlers and serializers."""

import gc
import os
import signal
import threading
import time

import pytest
from standin_sender import die
from support.process import wait_until

from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import attach


@pytest.fixture
def make(sender):
    """Return ``make(**settings)``: a producer on the stand-in sender. It ends without waiting."""
    made = []

    def make_producer(**settings):
        made.append(KafkaProducer(sender=sender.path, **settings))
        return made[-1]

    yield make_producer
    for producer in made:
        producer.close(0)


@pytest.mark.parametrize("allocations", range(1, 40, 3))
def test_a_finalizer_that_sends_while_a_session_ends(make, allocations):
    """Garbage is collected at the next allocations, which may be those of the end itself."""
    producer = make()
    producer.send("one", b"first").result(10)
    sent = []

    class Sends:
        def __del__(self):
            sent.append(producer.send("one", b"from the finalizer"))

    garbage = Sends()
    garbage.itself = garbage
    del garbage
    former = gc.get_threshold()
    gc.set_threshold(allocations)
    try:
        producer._channel().session.end("the test ends it", errors.OUTCOME_UNKNOWN)
    finally:
        gc.set_threshold(*former)
    gc.collect()
    (future,) = sent
    assert future.exception(10) is None or isinstance(future.exception(), errors.OutcomeUnknownError)


@pytest.fixture
def held(make, sender):
    """Return ``held(call)``: a producer that makes `call(producer)` when its next send() opens a batch.

    That send() reads the outcome of a former batch, and notifies those that wait for it.
    """

    def hold(call, **settings):
        producer = make(**settings)
        producer.send("one", b"first").result(10)
        sender.hold = True
        producer.send("one", b"second")
        (batch,) = producer._channel().unfinished()

        class Calls:
            def notify(self):
                call(producer)

        batch.add_waiter(Calls())
        (front_end,) = sender.front_ends
        wait_until(lambda: front_end.waiting)
        sender.release()
        wait_until(lambda: not front_end.waiting)
        assert not batch.done
        return producer

    return hold


def test_headers_that_change_while_send_opens_a_batch(held, sender):
    """The former headers are freed, and their memory is used again."""
    headers = [("h", b"former" * 20)]

    def change(producer):
        headers[:] = [("h", b"newer")]
        kept.extend(b"garble" * 20 + b"%d" % number for number in range(100))

    kept = []
    producer = held(change)
    producer.send("one", b"third", headers=headers).result(10)
    assert kept
    assert sender.log[-1].headers == (("h", b"newer"),)


def test_a_record_that_is_sent_while_send_opens_a_batch_comes_first(held, sender):
    inner = []
    producer = held(lambda producer: inner.append(producer.send("one", b"inner")))
    outer = producer.send("one", b"outer")
    assert (outer.result(10).offset, inner[0].result(10).offset) == (3, 2)
    assert [record.value for record in sender.log] == [b"first", b"second", b"inner", b"outer"]


def test_a_session_that_ends_while_send_opens_a_batch(held, sender):
    producer = held(lambda producer: producer._channel().session.end("the test ends it", errors.OUTCOME_UNKNOWN))
    assert producer.send("one", b"third").result(10).offset == 2
    assert [record.value for record in sender.log] == [b"first", b"second", b"third"]


def test_a_producer_that_is_closed_while_send_opens_a_batch(held, sender):
    producer = held(lambda producer: producer.close(0))
    with pytest.raises(errors.ProducerClosedError):
        producer.send("one", b"third")
    assert [record.value for record in sender.log] == [b"first", b"second"]


def test_a_batch_that_send_has_opened_in_vain_is_freed(make, sender):
    """Another thread closes the producer meanwhile, and waits for a batch that was sent before."""
    producer = make()
    channel = producer._channel()
    producer.send("one", b"first").result(10)
    producer.send("t", b"first", partition=0).result(10)
    sender.slow = frozenset({1})
    slow = producer.send("t", b"slow", partition=1)
    sender.hold = True
    producer.send("one", b"second")
    [batch] = [each for each in channel.unfinished() if each.topic == "one"]
    closing = threading.Thread(target=producer.close, args=(30,))

    class Closes:
        def notify(self):
            sender.hold = True
            closing.start()
            wait_until(lambda: channel.closing)
            time.sleep(0.2)  # it seals open batches now

    batch.add_waiter(Closes())
    (front_end,) = sender.front_ends
    wait_until(lambda: len(front_end.waiting) == 2)
    sender.release()
    wait_until(lambda: len(front_end.waiting) == 1)
    with pytest.raises(errors.ProducerClosedError):
        producer.send("one", b"third")
    assert [each.topic for each in channel.unfinished()] == ["t"]
    sender.release()
    closing.join(30)
    assert slow.result(10).offset == 0


def test_a_fork_while_a_producer_attaches_again(started, path, monkeypatch):
    """The child has a session of its own then, but the future belongs to the parent."""
    first = started(one=1)
    first.hold = True
    producer = KafkaProducer(sender=str(path), max_block_ms=20_000)
    kept = producer.send("one", b"kept")
    pids = []
    connect = attach.connect

    def fork(*arguments):
        if threading.current_thread() is not threading.main_thread():
            raise errors.SenderUnavailableError("not in this test")
        if not pids:
            pids.append(os.fork())
            if pids == [0]:
                signal.alarm(20)  # in case it waits for ever
        return connect(*arguments)

    monkeypatch.setattr(attach, "connect", fork)
    session = producer._channel().session
    die(first)
    wait_until(lambda: session.poll() or not session.alive)
    started(one=1)

    def send():
        producer.send("one", b"next")
        if pids == [0]:
            kept.result(5)
        return kept.result(10).offset

    outcome, heard = in_child_of(send, pids)
    assert heard == "ForkedFutureError"
    assert outcome == 0
    producer.close(0)


def in_child_of(send, fork_at):
    """Call `send()`, during which `fork_at` forks once. Return the future of the parent, and what the child got."""
    read, write = os.pipe()
    pids = fork_at
    try:
        outcome = send()
    except BaseException as error:
        outcome = error
    if pids == [0]:
        os.write(write, type(outcome).__name__.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        heard = stream.read()
    assert os.waitpid(pids[0], 0)[1] == 0
    return outcome, heard


def test_a_serializer_that_forks(make):
    pids = []
    armed = []

    def serialize(value):
        if armed:
            armed.clear()
            pids.append(os.fork())
            if pids == [0]:
                signal.alarm(20)  # in case it waits for ever
        return value

    producer = make(value_serializer=serialize)
    producer.send("one", b"first").result(10)
    armed.append(True)
    future, heard = in_child_of(lambda: producer.send("one", b"second"), pids)
    assert heard == "Future"
    assert future.result(10).offset >= 0


@pytest.mark.parametrize("lacks", ["memory", "metadata"])
def test_a_fork_in_the_middle_of_a_wait_of_send(make, sender, lacks):
    producer = make(buffer_memory=1 << 20, max_block_ms=20_000)
    producer.send("one", b"first").result(10)
    topic, value = "one", bytes(50_000)
    if lacks == "memory":
        sender.hold = True
        for _ in range(15):
            producer.send(topic, value)
    else:
        topic = "late"
        producer = make(max_block_ms=3_000)
        producer.send("one", b"first").result(10)
    pids = []

    def fork(*_):
        if pids:
            return
        pids.append(os.fork())
        if pids == [0]:
            signal.alarm(20)
        else:
            sender.release()

    former = signal.signal(signal.SIGUSR1, fork)
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()

    def send():
        while not pids:
            future = producer.send(topic, value)
        return future

    try:
        outcome, heard = in_child_of(send, pids)
    finally:
        signal.signal(signal.SIGUSR1, former)
        timer.join()
    if lacks == "memory":
        assert heard == "Future"
        assert outcome.result(10).offset >= 0
    else:
        assert heard == "KafkaTimeoutError"
