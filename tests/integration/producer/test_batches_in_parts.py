"""Tests batches that are larger than their topic allows, and batches with refused records, on a real Kafka."""

import asyncio
import itertools
import os
import threading
import time

import pytest
from support.consumer import read_topic

from cyproducer import errors

LIMIT = 20_000
COUNT = 600
SIZE = 300
_numbers = itertools.count(1)


@pytest.fixture
def small_topic(kafka):
    """Return a topic whose max.message.bytes is below the batch size of its producers."""
    return kafka.create_topic(f"in-parts-{next(_numbers)}", 2, configs={"max.message.bytes": str(LIMIT)})


def value_of(number: int) -> bytes:
    return b"%06d" % number + os.urandom(SIZE // 2).hex().encode()


def check_log(kafka, topic, sent, futures):
    """Compare the topic with the values, by partition and offset, and check the order of each key."""
    found = read_topic(kafka.bootstrap_servers, topic, len(sent))
    assert len(found) == len(sent)
    log = {(p, o): v for p, o, v in zip(found.partition, found.offset, found.value, strict=True)}
    places = [(f.result(0).partition, f.result(0).offset) for f in futures]
    assert [log[place] for place in places] == sent
    for partition in {p for p, _ in places}:
        offsets = [o for p, o in places if p == partition]
        assert offsets == sorted(offsets), "the order of send() is lost"


@pytest.mark.parametrize("codec", [None, "gzip"])
@pytest.mark.parametrize("settings", [{}, {"acks": 1, "enable_idempotence": False}], ids=str)
def test_all_records_of_large_batches_are_written(make_producer, small_topic, kafka, codec, settings):
    producer = make_producer(batch_size=131_072, linger_ms=50, compression_type=codec, **settings)
    called = []
    values = [value_of(n) for n in range(COUNT)]
    futures = [
        producer.send(small_topic, value, key=b"%d" % (n % 5), on_delivery=lambda e, m: called.append((e, m.offset)))
        for n, value in enumerate(values)
    ]
    producer.flush(60)
    assert all(future.done() for future in futures), "flush() has not waited for all parts"
    assert producer.metrics()["producer-metrics"]["batch-split-total"] > 0
    check_log(kafka, small_topic, values, futures)
    while len(called) < COUNT:
        time.sleep(0.01)
    assert sorted(called) == sorted((None, future.result(0).offset) for future in futures)


def test_send_array_gets_the_offset_of_each_row(make_producer, kafka, small_topic):
    producer = make_producer(batch_size=131_072, linger_ms=50)
    values = [value_of(n) for n in range(COUNT)]
    result = producer.send_array(small_topic, values, partition=0).result(60)
    found = read_topic(kafka.bootstrap_servers, small_topic, COUNT)
    log = dict(zip(found.offset, found.value, strict=True))
    assert [log[offset] for offset in result.offset] == values


def test_asyncio(make_producer, kafka, small_topic):
    producer = make_producer(batch_size=131_072, linger_ms=50)
    values = [value_of(n) for n in range(COUNT)]

    async def send():
        futures = [await producer.send_async(small_topic, value, partition=0) for value in values]
        return await asyncio.gather(*futures)

    records = asyncio.run(send())
    assert [record.offset for record in records] == list(range(COUNT))
    assert list(read_topic(kafka.bootstrap_servers, small_topic, COUNT).value) == values


def test_batches_that_have_grown_beyond_the_limit_of_their_topic(make_producer, kafka):
    """Without a batch_size, batches grow while the sender has others of their partition to send."""
    topic = kafka.create_topic(f"grown-{next(_numbers)}", 2, configs={"max.message.bytes": "150000"})
    producer = make_producer()
    values = [value_of(n) for n in range(60_000)]
    futures = [producer.send(topic, value, key=b"%d" % (n % 5)) for n, value in enumerate(values)]
    producer.flush(120)
    check_log(kafka, topic, values, futures)


def test_one_record_is_too_large_and_the_others_are_written(make_producer, kafka, small_topic):
    producer = make_producer(batch_size=131_072, linger_ms=50)
    values = [value_of(n) for n in range(100)]
    values[40] = b"x" * (LIMIT + 1000)
    futures = [producer.send(small_topic, value, partition=0) for value in values]
    producer.flush(60)
    found = [future.exception(0) for future in futures]
    assert isinstance(found.pop(40), errors.RecordTooLargeError)
    assert set(found) == {None}
    assert list(read_topic(kafka.bootstrap_servers, small_topic, 99).value) == values[:40] + values[41:]


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_only_the_record_without_a_key_fails_in_a_compacted_topic(make_producer, kafka, codec):
    topic = kafka.create_topic(f"compacted-parts-{next(_numbers)}", 1, configs={"cleanup.policy": "compact"})
    producer = make_producer(linger_ms=50, compression_type=codec)
    futures = [producer.send(topic, b"%d" % n, key=None if n in (3, 50) else b"k%d" % n) for n in range(100)]
    producer.flush(60)
    failed = {n: future.exception(0) for n, future in enumerate(futures) if future.exception(0)}
    assert list(failed) == [3, 50]
    for error in failed.values():
        assert error.code == 87
        assert "Compacted topic cannot accept message without key" in str(error)
    good = [b"%d" % n for n in range(100) if n not in failed]
    assert list(read_topic(kafka.bootstrap_servers, topic, len(good)).value) == good


def test_only_the_record_of_the_future_fails(make_producer, kafka):
    topic = kafka.create_topic("too-late", 1, configs={"message.timestamp.after.max.ms": "60000"})
    producer = make_producer(linger_ms=50)
    now = int(time.time() * 1000)
    futures = [producer.send(topic, b"%d" % n, timestamp_ms=now + (3_600_000 if n == 7 else n)) for n in range(20)]
    producer.flush(60)
    found = [future.exception(0) for future in futures]
    assert isinstance(found[7], errors.InvalidTimestampError)
    assert [error for n, error in enumerate(found) if n != 7] == [None] * 19
    assert [f.value.timestamp for n, f in enumerate(futures) if n != 7] == [now + n for n in range(20) if n != 7]


def test_failed_rows_of_send_array(make_producer, kafka):
    topic = kafka.create_topic("compacted-rows", 1, configs={"cleanup.policy": "compact"})
    producer = make_producer(linger_ms=50)
    future = producer.send_array(
        topic, [b"%d" % n for n in range(50)], keys=[None if n == 20 else b"k%d" % n for n in range(50)]
    )
    error = future.exception(60)
    assert "1 of 50 rows were not written" in str(error)
    assert len(read_topic(kafka.bootstrap_servers, topic, 49)) == 49


def test_callbacks_and_waiters_of_a_batch_in_parts(make_producer, kafka, small_topic):
    producer = make_producer(batch_size=131_072, linger_ms=50)
    seen: list[tuple[str, int]] = []
    done = threading.Event()
    values = [value_of(n) for n in range(200)]
    values[10] = b"x" * (LIMIT + 1000)
    futures = [producer.send(small_topic, value, partition=0) for value in values]
    for n, future in enumerate(futures):
        future.add_callback(lambda metadata, n=n: seen.append(("ok", n)))
        future.add_errback(lambda error, n=n: seen.append(("failed", n)))
    futures[-1].add_done_callback(lambda future: done.set())
    assert done.wait(60)
    producer.flush(60)
    while len(seen) < 200:
        time.sleep(0.01)
    assert sorted(n for how, n in seen if how == "failed") == [10]
    assert sorted(n for _, n in seen) == list(range(200))
