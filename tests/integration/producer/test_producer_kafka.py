"""Tests KafkaProducer through a real sender into a real Kafka, read back with another client library."""

import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import NamedTuple

import pytest
from support.consumer import read_topic

from cyproducer import errors

COUNT = 20_000


class Record(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list
    timestamp: int


def read(kafka, topic, count):
    """Return the records of a topic by partition and offset; fail unless there are exactly `count`."""
    found = read_topic(kafka.bootstrap_servers, topic, count)
    assert len(found) == count
    rows = zip(found.partition, found.offset, found.key, found.value, found.headers, found.timestamp, strict=True)
    return sorted(Record(*row) for row in rows)


def test_every_record_arrives_as_it_was_sent(make_producer, topic, kafka):
    producer = make_producer()
    futures = [
        producer.send(
            topic,
            b"%d" % n,
            key=b"k%d" % (n % 100),
            headers=[("n", b"%d" % n)],
            timestamp_ms=1_700_000_000_000 + n,
        )
        for n in range(COUNT)
    ]
    producer.flush(60)
    records = {(r.partition, r.offset): r for r in read(kafka, topic, COUNT)}
    for n, future in enumerate(futures):
        got = future.result(0)
        record = records[got.partition, got.offset]
        assert (record.key, record.value) == (b"k%d" % (n % 100), b"%d" % n)
        assert list(record.headers) == [("n", b"%d" % n)]
        assert record.timestamp == 1_700_000_000_000 + n == got.timestamp


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_the_timestamp_of_a_record_is_that_of_the_log(make_producer, new_topic, kafka, kind):
    """With LogAppendTime the broker's clock counts for all records of a batch."""
    topic = new_topic(configs={"message.timestamp.type": kind})
    producer = make_producer()
    given = [int(time.time() * 1000) - 1000 - n for n in range(3)]
    futures = [producer.send(topic, b"v", timestamp_ms=timestamp) for timestamp in given]
    found = [future.result(60).timestamp for future in futures]
    assert found == [record.timestamp for record in read(kafka, topic, 3)]
    assert (found == given) == (kind == "CreateTime")


def test_the_brokers_text_is_in_the_error(make_producer, kafka):
    """A record without a key in a compacted topic: only the broker's text, not INVALID_RECORD, says what is wrong."""
    topic = kafka.create_topic("compacted", configs={"cleanup.policy": "compact"})
    producer = make_producer()
    error = producer.send(topic, b"value", partition=0).exception(60)
    assert isinstance(error, errors.InvalidRecordError)
    assert error.message.startswith(f"topic {topic!r}, partition 0: ")
    assert "the broker says: " in error.message
    assert "Compacted topic cannot accept message without key" in error.message
    rows = producer.send_array(topic, [b"value"], partition=0).exception(60)
    assert "Compacted topic cannot accept message without key" in rows.message
    heard = []
    producer.send(topic, b"value", partition=0, on_delivery=lambda error, record: heard.append(error))
    producer.flush(60)
    assert "Compacted topic cannot accept message without key" in heard[0].message
    assert producer.send(topic, b"value", key=b"key", partition=0).result(60).offset == 0


def test_order_within_a_key(make_producer, topic, kafka):
    producer = make_producer(linger_ms=0)
    for n in range(COUNT):
        producer.send(topic, b"%d" % n, key=b"%d" % (n % 7))
    producer.flush(60)
    seen = {}
    for record in read(kafka, topic, COUNT):
        seen.setdefault(record.key, []).append(int(record.value))
    assert sum(map(len, seen.values())) == COUNT
    assert all(numbers == sorted(numbers) for numbers in seen.values())


def test_a_record_larger_than_a_slot_goes_alone(make_producer, topic, kafka):
    producer = make_producer()
    value = os.urandom(900_000)
    producer.send(topic, b"before", partition=0)
    future = producer.send(topic, value, partition=0)
    producer.send(topic, b"after", partition=0)
    assert future.result(30).offset == 1
    producer.flush(30)
    assert [r.value for r in read(kafka, topic, 3)] == [b"before", value, b"after"]


def test_memory_smaller_than_what_is_sent(make_producer, topic, kafka):
    producer = make_producer(buffer_memory=1 << 20)
    for n in range(300):
        producer.send(topic, b"%06d" % n + bytes(20_000), partition=n % 3)
    producer.flush(60)
    records = read(kafka, topic, 300)
    assert sorted(int(r.value[:6]) for r in records) == list(range(300))


def test_callbacks(make_producer, topic):
    producer = make_producer()
    seen = []
    for _ in range(5000):
        producer.send(topic, b"x", partition=1, on_delivery=lambda error, record: seen.append((error, record.offset)))
    producer.flush(60)
    assert seen == [(None, n) for n in range(5000)]


def test_ten_thousand_awaited_sends(make_producer, topic):
    producer = make_producer()

    async def main():
        futures = [await producer.send_async(topic, b"%d" % n) for n in range(10_000)]
        return [await future for future in futures]

    records = asyncio.run(main())
    assert len({(r.partition, r.offset) for r in records}) == 10_000


def _child(producer, topic, number):
    for n in range(500):
        producer.send(topic, b"%d-%d" % (number, n), key=b"%d" % number)
    os._exit(0)


def test_forked_children_that_exit_without_close(make_producer, topic, kafka):
    producer = make_producer()
    producer.send(topic, b"parent", key=b"parent").result(30)
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=_child, args=(producer, topic, n)) for n in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    producer.send(topic, b"parent again", key=b"parent").result(30)
    expected = {b"parent", b"parent again"} | {b"%d-%d" % (c, n) for c in range(4) for n in range(500)}
    records = read(kafka, topic, len(expected))
    assert sorted(r.value for r in records) == sorted(expected)


def test_a_killed_process_loses_nothing_that_send_accepted(make_producer, topic, kafka):
    producer = make_producer()
    producer.send(topic, b"first").result(30)
    code = (
        "import cyproducer, os, signal, sys\n"
        "p = cyproducer.KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=100, sender_idle_timeout_ms=200)\n"
        "for n in range(1000): p.send(sys.argv[2], b'%d' % n, key=b'k')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, kafka.bootstrap_servers, topic], timeout=60)
    records = read(kafka, topic, 1001)
    assert [int(r.value) for r in records if r.key == b"k"] == list(range(1000))


def test_threads(make_producer, topic, kafka):
    producer = make_producer()

    def work(name):
        for n in range(2000):
            producer.send(topic, b"%d" % n, key=name)

    threads = [threading.Thread(target=work, args=(b"%d" % n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(60)
    records = read(kafka, topic, 8000)
    for n in range(4):
        assert [int(r.value) for r in records if r.key == b"%d" % n] == list(range(2000))


def test_unknown_partition_and_metadata(make_producer, topic):
    producer = make_producer(max_block_ms=4000)  # the start of a sender counts
    assert producer.partitions_for(topic) == {0, 1, 2}
    assert producer.bootstrap_connected()
    with pytest.raises(errors.KafkaTimeoutError, match=f"Partition 3 of topic {topic} with partition count 3 is not"):
        producer.send(topic, b"", partition=3)
    assert producer.send(topic, b"", partition=2).result(30).partition == 2


def test_broker_address_without_listener(make_producer):
    producer = make_producer(bootstrap_servers="127.0.0.1:1", max_block_ms=2000)
    with pytest.raises(errors.KafkaTimeoutError, match="not present in metadata after 2000 ms") as raised:
        producer.send("t", b"")
    assert "127.0.0.1:1" in str(raised.value)
