"""Tests close() of a producer without transactions: with and without time, and while a send waits."""

import threading
import time

import pytest
from standin_sender import attach
from support.process import wait_until

from cyproducer import KafkaProducer, errors

MIB = 1 << 20


def in_a_thread(function) -> tuple[threading.Thread, list]:
    """Start the function in a thread. Return the thread, and a list for the error that it raises."""
    raised: list = []

    def run():
        try:
            function()
        except errors.KafkaError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


@pytest.mark.timeout(20)  # it hangs in the mutant flush-seals
def test_close_ends_the_linger_time_and_waits_for_outcomes_and_callbacks(sender):
    sender.linger_s = 3600
    seen = []
    producer = KafkaProducer(sender=sender.path, linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1)
    future = producer.send("t", b"x", on_delivery=lambda error, record: seen.append((error, record.offset)))
    producer.close()
    assert seen == [(None, 0)]
    assert future.result(0).offset == 0


@pytest.mark.parametrize("timeout", [0, -1, 0.05])
def test_without_an_outcome_in_time_records_get_one_of_their_own(sender, timeout):
    """Kafka's producer fails them, and refuses a negative time."""
    producer = KafkaProducer(sender=sender.path)
    attach(producer)
    sender.hold = True
    future = producer.send("t", b"x")
    producer.close(timeout)
    assert isinstance(future.exception(0), errors.OutcomeUnknownError)
    producer.close()
    sender.release()


def test_a_send_that_waits_for_memory_is_released(sender):
    producer = KafkaProducer(sender=sender.path, buffer_memory=MIB, max_block_ms=600_000)
    attach(producer, "one")
    sender.hold = True
    thread, raised = in_a_thread(lambda: [producer.send("one", bytes(60_000)) for _ in range(100)])
    while producer.metrics()["producer-metrics"]["waiting-threads"] == 0:
        time.sleep(0.001)
    producer.close(0)
    thread.join(30)
    assert [type(error) for error in raised] == [errors.ProducerClosedError]
    sender.release()


def test_a_send_that_waits_for_metadata_is_released(sender):
    producer = KafkaProducer(sender=sender.path, max_block_ms=600_000)
    attach(producer)
    thread, raised = in_a_thread(lambda: producer.send("nowhere", b"x"))
    wait_until(lambda: "nowhere" in sender.wants, 30)
    producer.close(0)
    thread.join(30)
    assert [type(error) for error in raised] == [errors.ProducerClosedError]
