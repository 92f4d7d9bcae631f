"""Tests interceptors and partitioners through a real sender into a real Kafka, read back with another client."""

import asyncio
import collections
import threading

import numpy
import pytest
from support.consumer import read_topic

from cyproducer import errors


class Auditor:
    """Adds a header to each record, and counts records and acknowledgements."""

    def __init__(self):
        self.sent, self.outcomes = 0, []

    def on_send(self, record):
        self.sent += 1
        return record._replace(headers=[*(record.headers or []), ("audit", b"%d" % self.sent)])

    def on_acknowledgement(self, metadata, error):
        self.outcomes.append((metadata.topic, metadata.partition, metadata.offset, type(error)))


def test_interceptors_see_each_record_once_and_its_place(make_producer, topic, kafka):
    auditor = Auditor()
    producer = make_producer(interceptors=[auditor], value_serializer=str.encode)

    async def some():
        return [await (await producer.send_async(topic, f"a{number}")) for number in range(100)]

    written = [future.result(60) for future in [producer.send(topic, f"{number}") for number in range(2000)]]
    written += asyncio.run(some())
    producer.flush(60)
    found = read_topic(kafka.bootstrap_servers, topic, 2100)
    in_log = {
        (partition, offset): dict(headers)["audit"]
        for partition, offset, headers in zip(found.partition, found.offset, found.headers, strict=True)
    }
    assert [in_log[record.partition, record.offset] for record in written] == [b"%d" % n for n in range(1, 2101)]
    assert sorted(auditor.outcomes) == sorted((topic, r.partition, r.offset, type(None)) for r in written)


def test_an_error_of_the_broker_reaches_the_interceptor_and_the_callback(make_producer, new_topic):
    topic = new_topic(1, configs={"max.message.bytes": "1000"})
    auditor, heard = Auditor(), []
    producer = make_producer(interceptors=[auditor])
    future = producer.send(topic, bytes(5000), on_delivery=lambda error, record: heard.append(list(auditor.outcomes)))
    assert isinstance(future.exception(60), errors.RecordTooLargeError)
    producer.flush(60)
    assert heard == [[(topic, 0, -1, errors.RecordTooLargeError)]]


def test_interceptors_of_four_threads(make_producer, topic):
    auditor = Auditor()
    producer = make_producer(interceptors=[auditor], buffer_memory=1 << 20)

    def send():
        for _ in range(2000):
            producer.send(topic, bytes(200))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(60)
    places = {outcome[1:3] for outcome in auditor.outcomes}
    assert len(auditor.outcomes) == len(places) == 8000
    assert {outcome[3] for outcome in auditor.outcomes} == {type(None)}


def test_round_robin_spreads_records_and_rows_evenly(make_producer, topic, kafka):
    producer = make_producer(partitioner="round_robin")
    for number in range(3000):
        producer.send(topic, b"%d" % number, key=b"same")
    producer.send_array(topic, numpy.arange(30_000), keys=None)
    producer.flush(60)
    found = read_topic(kafka.bootstrap_servers, topic, 33_000)
    assert collections.Counter(found.partition) == {0: 11_000, 1: 11_000, 2: 11_000}
    singles = [
        (int(value), partition)
        for value, partition, key in zip(found.value, found.partition, found.key, strict=True)
        if key
    ]
    first = dict(singles)[0]
    assert all(partition == (first + number) % 3 for number, partition in singles)


def test_kafka_pythons_own_partitioner_works_here(make_producer, topic, kafka):
    from kafka.partitioner.default import DefaultPartitioner

    ours, theirs = make_producer(), make_producer(partitioner=DefaultPartitioner())
    for number in range(200):
        for producer in (ours, theirs):
            producer.send(topic, b"v", key=b"k%d" % number)
    ours.flush(60)
    theirs.flush(60)
    found = read_topic(kafka.bootstrap_servers, topic, 400)
    places = collections.defaultdict(set)
    for key, partition in zip(found.key, found.partition, strict=True):
        places[key].add(partition)
    assert len(places) == 200 and {len(place) for place in places.values()} == {1}


def test_a_partitioner_that_depends_on_the_cluster(make_producer, new_topic, kafka):
    topic = new_topic(2)

    class Last:
        def partition(self, topic, key, key_bytes, value, value_bytes, cluster):
            return max(cluster.available_partitions_for_topic(topic))

    producer = make_producer(partitioner=Last())
    assert producer.send(topic, b"v").result(60).partition == 1
    with pytest.raises(errors.PartitionerError, match=r"the partitioner .*whose partitions are 0 to 1"):
        make_producer(partitioner=lambda key, every, available: 2).send(topic, b"v")
