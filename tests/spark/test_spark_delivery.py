"""Tests one task's delivery to a stand-in for the producer: waiting, bounds, failures, counts, kept producers."""

import array
import subprocess
import sys

import pyarrow
import pytest

from cyproducer import errors
from cyproducer.spark import delivery
from cyproducer.spark.delivery import (
    MAX_OUTSTANDING,
    MAX_PRODUCERS,
    DeliveryFailedError,
    deliver,
    producer_for,
)
from cyproducer.types import ArrayMetadata


class Promise:
    """A future that is resolved when its result is requested."""

    def __init__(self, producer, rows):
        self.producer, self.rows = producer, rows

    def done(self):
        return False

    def exception(self):
        return self.producer.failures.pop(0) if self.producer.failures else None

    def result(self, timeout=None):
        self.producer.waiting -= 1
        error = self.exception()
        if error is not None:
            raise error
        numbers = array.array("i", (row % 3 for row in range(self.rows)))
        return ArrayMetadata("t", memoryview(numbers), memoryview(array.array("q", range(self.rows))))


class StandIn:
    """Takes Arrow batches as a producer does and remembers them."""

    def __init__(self, failures=()):
        self.failures, self.waiting, self.most, self.sent = list(failures), 0, 0, []

    def send_arrow(self, table, topic=None):
        self.sent.append((table, topic))
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        return Promise(self, table.num_rows)


def batches(*sizes):
    for size in sizes:
        keys = [None if row % 2 else "é" for row in range(size)]
        columns = {"key": pyarrow.array(keys, pyarrow.large_string()), "value": pyarrow.array([b"xy"] * size)}
        yield pyarrow.RecordBatch.from_pydict(columns)


def test_rows_bytes_and_partitions_are_counted():
    done = deliver(StandIn(), batches(3, 4), "t")
    assert (done.rows, done.bytes, done.partitions) == (7, 14 + 8, {0: 3, 1: 2, 2: 2})


def test_no_rows_send_nothing():
    producer = StandIn()
    assert deliver(producer, batches(0, 0), "t").rows == 0
    assert deliver(producer, iter(()), "t").partitions == {}
    assert producer.sent == []


def test_outstanding_batches_are_bounded_and_every_result_is_read():
    producer = StandIn()
    assert deliver(producer, batches(*[1] * 300), None).rows == 300
    assert producer.most == MAX_OUTSTANDING + 1
    assert producer.waiting == 0
    assert {topic for _, topic in producer.sent} == {None}


def test_a_failed_row_fails_the_task_with_counts_and_the_first_error():
    producer = StandIn([None, errors.RecordTooLargeError("value of 9 MB"), errors.KafkaError("later")])
    with pytest.raises(DeliveryFailedError) as caught:
        deliver(producer, batches(5, 5, 5), "t")
    text = str(caught.value)
    assert "of the 15 rows that this task sent was not acknowledged (5 rows are known to be in Kafka)" in text
    assert "first error: RecordTooLargeError: value of 9 MB" in text


def test_the_reason_of_a_failed_transaction_is_that_of_a_later_row():
    aborted = errors.TransactionAbortedError
    reason = errors.RecordTooLargeError("value of 9 MB")
    with pytest.raises(DeliveryFailedError, match="first error: RecordTooLargeError: value of 9 MB") as caught:
        deliver(StandIn([aborted(), None, aborted(), reason]), batches(5, 5, 5, 5), "t")
    assert caught.value.__cause__ is reason
    with pytest.raises(DeliveryFailedError, match="first error: TransactionAbortedError: the first"):
        deliver(StandIn([aborted("the first"), None, aborted("the second")]), batches(5, 5, 5, 5), "t")


def test_a_failure_stops_a_task_that_has_more_rows():
    producer = StandIn([errors.KafkaTimeoutError("late")])
    with pytest.raises(DeliveryFailedError):
        deliver(producer, batches(*[1] * 1000), "t")
    assert len(producer.sent) == MAX_OUTSTANDING + 1


FREEZES = """
import gc
from cyproducer.spark.delivery import producer_for

class Loop:
    pass

loop = Loop()
loop.loop = loop
del loop
assert gc.get_freeze_count() == 0
counts = []
for number in range(3):
    producer_for({"bootstrap.servers": "127.0.0.1:1", "client.id": str(number)})
    counts.append(gc.get_freeze_count())
assert counts[0] > 10_000 and len(set(counts)) == 1, counts
gc.unfreeze()
assert not any(type(found) is Loop for found in gc.get_objects())
"""


def test_the_first_use_in_a_worker_freezes_what_is_loaded_and_no_garbage():
    done = subprocess.run([sys.executable, "-c", FREEZES], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_producers_are_kept_by_settings_and_bounded(monkeypatch):
    closed = []

    # The freeze is for a worker; here it would last for the whole test run.
    monkeypatch.setattr(delivery, "_freeze_once", lambda: None)

    class Made:
        def __init__(self, **settings):
            self.settings = settings

        def close(self):
            closed.append(self.settings["client.id"])

    monkeypatch.setattr(delivery, "KafkaProducer", Made)
    monkeypatch.setattr(delivery, "_producers", type(delivery._producers)())
    first = producer_for({"bootstrap.servers": "b:1", "client.id": "0"})
    for number in range(1, MAX_PRODUCERS):
        producer_for({"bootstrap.servers": "b:1", "client.id": str(number)})
    assert producer_for({"client.id": "0", "bootstrap.servers": "b:1"}) is first
    assert closed == []
    producer_for({"bootstrap.servers": "b:1", "client.id": "one more"})
    assert closed == ["1"]
