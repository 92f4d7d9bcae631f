"""Tests on a real Kafka that batches grow while the broker does not take them."""

import os

import pytest
from support.consumer import read_topic

RECORDS = 4000
SIZE = 1000


@pytest.mark.parametrize("codec", [None, "lz4"])
def test_a_backlog_becomes_few_large_batches(kafka, make_producer, new_topic, codec):
    topic = new_topic(1)
    producer = make_producer(compression_type=codec)
    producer.send(topic, b"first").result(60)
    values = [os.urandom(SIZE) for _ in range(RECORDS)]
    kafka.pause()
    try:
        futures = [producer.send(topic, value) for value in values]
    finally:
        kafka.resume()
    assert [future.result(60).offset for future in futures] == list(range(1, RECORDS + 1))
    assert list(read_topic(kafka.bootstrap_servers, topic, RECORDS + 1).value)[1:] == values
    counts = [batch.count for batch in kafka.dump_log(topic)]
    assert max(counts) > 2 * 65_536 // SIZE
    assert max(counts) <= (1 << 20) // SIZE
