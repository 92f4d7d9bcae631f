"""Tests exceptions of signal handlers at each entry of a Python function of the calls that wait or start a thread.

Afterwards the program goes on, other threads send, and descriptors, waiters and threads are as before.
"""

import gc
import logging
import os
import threading

import pytest
from standin_sender import attach
from support.interrupts import HandlerError, at_each_entry
from support.process import wait_until

import cyproducer
from cyproducer import KafkaProducer

CALLBACKS = "cyproducer-callbacks"


def descriptors():
    """Return how many descriptors are open."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def others_send(producer):
    """Send in another thread, and return the record's metadata. Fail if that does not end."""
    results = []
    thread = threading.Thread(target=lambda: results.append(producer.send("one", b"x").result(20)), daemon=True)
    thread.start()
    thread.join(30)
    assert results, "a send of another thread has not ended, or has raised"
    return results[0]


def release_soon(sender):
    """Hold outcomes back, so that a call has to wait, and release them soon."""
    sender.hold = True
    threading.Timer(0.02, sender.release).start()


CALLS = {
    "flush": lambda producer, future: producer.flush(20),
    "result": lambda producer, future: future.result(20),
    "exception": lambda producer, future: future.exception(20),
    "wait": lambda producer, future: cyproducer.wait([future], 20),
    "as_completed": lambda producer, future: list(cyproducer.as_completed([future], 20)),
    "metrics": lambda producer, future: producer.metrics(),
    "partitions_for": lambda producer, future: producer.partitions_for("t"),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_wait_leaves_nothing(sender, producer, name):
    others_send(producer)
    producer.flush(20)
    before = descriptors()

    def prepare():
        if name not in ("metrics", "partitions_for"):  # these do not wait
            release_soon(sender)
        future = producer.send("one", b"x")
        return lambda: CALLS[name](producer, future)

    count = 0
    for told in at_each_entry(prepare):
        count += 1
        assert isinstance(told.error, HandlerError), told.where
        wait_until(lambda: not sender.hold)
        assert others_send(producer).offset > 0, told.where
        assert producer._channel().session.waiters == set(), told.where
        assert producer._channel().session.topics.waiters == set(), told.where
    assert count
    producer.flush(20)
    assert descriptors() == before


def test_an_interrupted_wait_for_metadata_leaves_nothing(sender):
    """Each call waits for a topic that appears soon."""
    names = (f"late{number}" for number in range(1000))
    with KafkaProducer(sender=sender.path) as producer:
        attach(producer)
        others_send(producer)  # the session keeps an eventfd for the next wait
        before = descriptors()

        def publish_when_wanted(name, ended):
            while name not in sender.wants and not ended.wait(0.01):
                pass
            sender.topics[name] = 1
            sender.publish()

        def prepare():
            name, ended = next(names), threading.Event()
            thread = threading.Thread(target=publish_when_wanted, args=(name, ended))
            thread.start()
            threads.append((thread, ended))
            return lambda: (producer.send(name, b"x"), thread.join())

        threads = []
        errors = []
        for told in at_each_entry(prepare, skip=lambda frame: "/threading.py" in frame.f_code.co_filename):
            errors.append(told.error)
            thread, ended = threads.pop()
            ended.set()
            thread.join()
            assert isinstance(told.error, HandlerError), told.where
            assert producer._channel().session.topics.waiters == set(), told.where
            assert producer._channel().session.waiters == set(), told.where
            assert others_send(producer)
        assert len(errors) > 5
        errors.clear()
        assert descriptors() == before


def test_an_interrupted_first_send_attaches_with_the_next_one(sender):
    """At each entry of the attach, another thread then sends: no lock is held, and one front-end is attached."""

    def prepare():
        made.append(KafkaProducer(sender=sender.path))
        return lambda: made[-1].send("one", b"x")

    made = []
    before = descriptors()
    count = 0
    for told in at_each_entry(prepare):
        count += 1
        assert isinstance(told.error, HandlerError), told.where
        told.error = None
        producer = made.pop()
        assert others_send(producer), told.where
        producer.close(20)
        del producer
    made.pop().close()
    assert count > 30
    wait_until(lambda: descriptors() == before)


ADDS = {
    "add_done_callback": lambda producer, heard: producer.send("one", b"x").add_done_callback(heard.append),
    "add_callback": lambda producer, heard: producer.send("one", b"x").add_callback(heard.append),
    "on_delivery": lambda producer, heard: producer.send("one", b"x", on_delivery=lambda *given: heard.append(given)),
}


@pytest.mark.parametrize("name", ADDS)
def test_an_interrupted_start_of_the_callback_thread(sender, caplog, name):
    """The next callback is called, by one thread, and nothing is logged."""
    heard = []

    def prepare():
        made.append(KafkaProducer(sender=sender.path))
        made[-1].send("one", b"x").result(20)
        return lambda: ADDS[name](made[-1], heard)

    made = []
    count = 0
    with caplog.at_level(logging.ERROR, logger="cyproducer"):
        for told in at_each_entry(prepare):
            count += 1
            producer = made.pop()
            heard.clear()
            ADDS[name](producer, heard)
            producer.flush(20)
            wait_until(lambda: heard)
            threads = [each for each in threading.enumerate() if each.name == CALLBACKS and each.is_alive()]
            assert len(threads) == 1, told.where
            producer.close(20)
            wait_until(lambda: not any(each.name == CALLBACKS and each.ident for each in threading.enumerate()))
            del producer
    made.pop().close()
    assert count > 5
    assert caplog.records == []


class Interceptor:
    """Counts how often it is closed."""

    def __init__(self):
        self.closed = 0

    def on_acknowledgement(self, metadata, error):
        pass

    def close(self):
        self.closed += 1


@pytest.mark.parametrize("kind", ["plain", "interceptors", "with callbacks", "records left"])
def test_close_can_be_called_again_until_everything_is_given_back(sender, kind):
    interceptor = Interceptor()
    settings = {"interceptors": [interceptor]} if kind == "interceptors" else {}

    def prepare():
        sender.release()
        made.append(KafkaProducer(sender=sender.path, **settings))
        made[-1].send("one", b"x").result(20)
        sender.hold = kind == "records left"
        made[-1].send("one", b"y", on_delivery=(lambda *given: None) if kind == "with callbacks" else None)
        return lambda: made[-1].close(0.05 if kind == "records left" else 20)

    made = []
    own = descriptors()
    count = 0
    for told in at_each_entry(prepare):
        count += 1
        told.error = None
        interceptor.closed = 0
        producer = made.pop()
        producer.close(0.05)
        assert not producer._channel().session.alive, told.where
        wait_until(lambda: not sender.front_ends)
        producer.close()
        with pytest.raises(cyproducer.errors.ProducerClosedError):
            producer.send("one", b"x")
        del producer
    made.pop().close()
    assert count > 5
    sender.release()
    wait_until(lambda: descriptors() == own)


def test_the_end_of_a_session_is_not_taken_from_a_handlers_timeout(sender, producer):
    """The handler raises a TimeoutError, which is an OSError, while the control socket is read."""
    others_send(producer)
    session = producer._channel().session
    count = 0
    for told in at_each_entry(lambda: session.on_control):
        count += 1
        assert isinstance(told.error, HandlerError), told.where
        assert session.alive, told.where
    assert count
    assert others_send(producer)
