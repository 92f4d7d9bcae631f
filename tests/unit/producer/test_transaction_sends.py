"""Tests that the end of a transaction waits for the sends that are running, and that no record comes after it."""

import asyncio
import gc
import threading
import time

import pytest

from cyproducer import KafkaProducer, errors

WAITS = "a send method of another thread is still running"


@pytest.fixture
def made(sender):
    """Return ``made(**settings)``: a producer with a transaction that has begun."""
    producers = []

    def make(**settings):
        producers.append(KafkaProducer(sender=sender.path, transactional_id="x", **settings))
        producers[-1].init_transactions(10)
        producers[-1].begin_transaction()
        return producers[-1]

    yield make
    for producer in producers:
        producer.close(10)


class Slow:
    """A serializer that waits for a test."""

    def __init__(self):
        self.entered, self.go_on = threading.Event(), threading.Event()

    def __call__(self, data):
        self.entered.set()
        assert self.go_on.wait(30)
        return data


@pytest.mark.parametrize("end", ["commit_transaction", "abort_transaction"])
def test_the_end_waits_for_a_send_of_another_thread(sender, made, end):
    slow = Slow()
    producer = made(value_serializer=slow)
    sent = []
    thread = threading.Thread(target=lambda: sent.append(producer.send("t", b"x")))
    thread.start()
    assert slow.entered.wait(30)
    with pytest.raises(errors.KafkaTimeoutError, match=WAITS):
        getattr(producer, end)(0.1)
    with pytest.raises(errors.IllegalStateError, match="must be repeated"):
        producer.send("t", b"y")
    slow.go_on.set()
    getattr(producer, end)(10)
    assert sent[0].done()
    thread.join()


def test_the_end_waits_for_arrays_and_for_a_send_that_waits_for_memory(sender, made):
    producer = made(buffer_memory=1 << 20, linger_ms=1)
    sender.hold = True
    futures = []
    rows = [bytes(100_000)] * 40

    def send_array():
        futures.append(producer.send_array("t", rows))

    def send():
        futures.append(producer.send("t", bytes(700_000)))

    threads = [threading.Thread(target=call) for call in (send_array, send)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    with pytest.raises(errors.KafkaTimeoutError, match=WAITS):
        producer.commit_transaction(0.1)
    sender.release()
    producer.commit_transaction(30)
    for thread in threads:
        thread.join()
    assert all(future.done() for future in futures)
    assert len(sender.log) == 41


def test_no_record_of_any_thread_comes_after_the_end_of_its_transaction(sender, made):
    """Threads send without a pause, while transactions begin and end. Every future is done when its end returns."""
    producer = made(linger_ms=1)
    stop = threading.Event()
    sent, refused, undone = [], [], []

    def work():
        while not stop.is_set():
            try:
                sent.append(producer.send("t", b"x"))
                time.sleep(0.0001)
            except errors.IllegalStateError as error:
                refused.append(error)
                time.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            time.sleep(0.002)
            producer.commit_transaction(30)
            undone += [future for future in list(sent) if not future.done()]
            sent.clear()
            producer.begin_transaction()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert undone == []
    assert refused
    producer.commit_transaction(30)


@pytest.mark.parametrize("name", ["send", "send_async"])
def test_a_record_is_refused_right_after_the_end(sender, made, name):
    producer = made()
    for _ in range(3):
        producer.send("t", b"x")  # by the fast path
    producer.commit_transaction(10)

    async def send():
        sent = getattr(producer, name)("t", b"x")
        return await sent if name == "send_async" else sent

    for _ in range(3):
        with pytest.raises(errors.IllegalStateError, match=rf"^{name}\(\) is not possible in the state READY"):
            asyncio.run(send())
    assert len(sender.log) == 3


def test_code_of_the_application_that_ends_the_transaction_inside_of_a_send(made):
    raised = []

    def serialize(data):
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(errors.IllegalStateError, match="cannot wait for a send of the same thread") as caught:
                call()
            raised.append(caught.value)
        return data

    producer = made(value_serializer=serialize)
    producer.send("t", b"x")
    assert len(raised) == 2
    producer.commit_transaction(10)


@pytest.mark.parametrize("threshold", range(1, 25))
def test_a_transaction_that_ends_while_a_send_runs(sender, made, threshold):
    """The flag is looked at again when all code that may run in between has run, here the garbage collector's."""
    producer = made()
    producer.send("t", b"x")
    ended = []

    def end(phase, details):
        if not ended:
            ended.append(threading.Thread(target=producer.commit_transaction, args=(0.5,)))
            ended[0].start()
            ended[0].join()

    thresholds = gc.get_threshold()
    kept = []
    gc.callbacks.append(end)
    try:
        with pytest.raises(errors.IllegalStateError, match=r"send\(\) is not possible in the state READY"):
            gc.set_threshold(threshold)
            for _ in range(1000):
                kept.append(producer.send("t", b"y", on_delivery=[].append))
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(end)
    assert ended
    assert all(future.done() for future in kept)
    before = len(sender.log)
    producer.begin_transaction()
    producer.commit_transaction(10)
    assert len(sender.log) == before


def test_interceptors_learn_that_a_record_was_refused(sender):
    acknowledged = []

    class Interceptor:
        def on_acknowledgement(self, metadata, error):
            acknowledged.append(error)

    with KafkaProducer(sender=sender.path, transactional_id="x", interceptors=[Interceptor()]) as producer:
        with pytest.raises(errors.IllegalStateError, match="UNINITIALIZED"):
            producer.send("t", b"x")
        assert producer.metrics()["producer-metrics"]["record-error-total"] == 1
    assert [type(error) for error in acknowledged] == [errors.IllegalStateError]


@pytest.mark.parametrize("send", ["send", "send_array"])
def test_after_records_were_dropped_a_send_says_so_at_once(sender, made, send):
    producer = made()
    sender.error = errors.TRANSACTION_ABORTED
    assert isinstance(producer.send("t", b"x").exception(10), errors.TransactionAbortedError)
    with pytest.raises(errors.TransactionAbortedError, match=r"commit_transaction\(\) tells the reason"):
        for _ in range(100):  # the fast path sends until the next batch is opened
            getattr(producer, send)("t", b"y" if send == "send" else [b"y"])
            producer.flush()
    producer.abort_transaction(10)
