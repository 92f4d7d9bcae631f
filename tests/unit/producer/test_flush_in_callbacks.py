"""Tests flush() and close() in callbacks: flush() raises as in Kafka 4.1, close() waits for no callback."""

import threading

import pytest

from cyproducer import KafkaProducer, errors


@pytest.mark.parametrize("timeout", [(), (None,), (0,), (10,)])
def test_flush_in_a_callback_raises_as_in_java(sender, producer, timeout):
    """In every kind of callback; other threads, and other producers in the callback, can flush."""
    raised = []

    def flush(*_):
        other.flush(10)
        with pytest.raises(errors.IllegalStateError, match=r"flush\(\) in a callback .* another thread") as caught:
            producer.flush(*timeout)
        raised.append(caught.value)

    with KafkaProducer(sender=sender.path) as other:
        other.send("one", b"x")
        sender.hold = True
        future = producer.send("one", b"x", on_delivery=flush)
        future.add_done_callback(flush)
        future.add_callback(flush)
        producer.send_array("one", [b"y"]).add_done_callback(flush)
        sender.release()
        producer.flush(10)
    assert len(raised) == 4


def test_flush_and_close_in_callbacks_that_the_calling_thread_runs(sender, producer):
    future = producer.send("one", b"x")
    future.result(10)
    future.add_done_callback(lambda _: producer.flush(10))  # the outcome is known: it runs here
    closed = threading.Event()
    producer.send("one", b"y", on_delivery=lambda error, record: producer.close(10) or closed.set())
    assert closed.wait(30)
    with pytest.raises(errors.ProducerClosedError):
        producer.send("one", b"late")
