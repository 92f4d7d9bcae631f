"""Tests the partitions of records without a key, with real senders."""

import time

import numpy
import pyarrow as pa
import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.process import wait_until

SIZE = 3_000
ROWS = pa.record_batch({"value": pa.array([bytes(SIZE)] * 100, pa.binary())})


def test_a_slow_stream_reaches_every_partition(make_producer, new_topic):
    """Filling a batch of 64 KiB would take the stream minutes."""
    producer = make_producer()
    topic = new_topic(4)
    seen = set()

    def everywhere():
        seen.add(producer.send(topic, b"value").result(30).partition)
        return len(seen) == 4

    wait_until(everywhere, 60, "a record in each partition")


@pytest.fixture
def brokers():
    """Yield two nodes, of which the second one leads the partitions 1 and 3."""
    with ScriptedBroker(partitions=4, nodes=2, keep_values=False) as broker:
        yield broker


def send(producer):
    return [producer.send("t", bytes(SIZE)) for _ in range(100)][-1]


def send_array(producer):
    return producer.send_array("t", numpy.zeros((100, SIZE), numpy.uint8))


def send_arrow(producer):
    """Send as a task of Spark does."""
    return producer.send_arrow(ROWS, topic="t")


@pytest.mark.parametrize("way", [send, send_array, send_arrow])
def test_a_broker_that_hangs_does_not_stop_a_fast_front_end(make_producer, brokers, way):
    """Half of the records would go to the broker that hangs, until they filled the front-end's memory.

    On a busy machine the broker counts as hanging after a second. Until then it gets records, by the queue lengths, so
    the memory has room for a part of what a front-end sends in a second.
    """
    settings = {"bootstrap_servers": brokers.bootstrap_servers, "request_timeout_ms": 60_000}
    producer = make_producer(**settings, buffer_memory=64 << 20, max_block_ms=10_000, delivery_timeout_ms=100_000)
    for partition in range(4):
        producer.send("t", b"first", partition=partition).result(30)
    brokers.faults.append(Fault(hang="lost", node=2))
    producer.send("t", b"lost", partition=1)
    wait_until(lambda: not brokers.faults, 30, "a request to the second node")
    sent, ending = 0, time.monotonic() + 3
    while sent < 256 << 20 or time.monotonic() < ending:
        way(producer)
        sent += 100 * SIZE
    last = [way(producer) for _ in range(20)]
    for future in last[:-1]:
        future.result(30)
    assert producer.metrics()["producer-metrics"]["buffer-available-bytes"] > 1 << 20
    brokers.drop_connections()
    producer.flush(60)
    assert brokers.complaints == []


def test_without_adaptive_partitioning_a_broker_that_hangs_gets_its_part(make_producer, brokers):
    settings = {"bootstrap_servers": brokers.bootstrap_servers, "request_timeout_ms": 60_000}
    adaptive = make_producer(**settings)
    uniform = make_producer(**settings, partitioner_adaptive_partitioning_enable=False)
    for producer in (adaptive, uniform):
        for partition in range(4):
            producer.send("t", b"first", partition=partition).result(30)
    brokers.faults.append(Fault(hang="lost", node=2))
    adaptive.send("t", b"lost", partition=1)
    wait_until(lambda: not brokers.faults, 30, "a request to the second node")

    def avoided():
        futures = [adaptive.send("t", b"value") for _ in range(20)]
        time.sleep(0.1)
        return all(future.done() for future in futures)

    time.sleep(1.5)  # after a second without an answer the broker counts as hanging
    wait_until(avoided, 30, "records that avoid the second node")
    for _ in range(20):
        assert adaptive.send("t", b"value").result(30).partition in (0, 2)
    waiting = []

    def waits():
        waiting.append(uniform.send("t", b"value"))
        time.sleep(0.02)
        return sum(not future.done() for future in waiting) >= 3

    wait_until(waits, 30, "records for the second node")
    brokers.drop_connections()
    assert {future.result(60).partition for future in waiting} & {1, 3}
    adaptive.flush(60)


@pytest.mark.parametrize("adaptive", [True, False])
def test_records_go_to_leaders_in_the_rack(make_producer, new_topic, kafka3, adaptive):
    topic = new_topic(6, 2, cluster=kafka3)
    leaders = kafka3.metadata(topic).leaders
    near = {partition for partition, leader in leaders.items() if leader == 2}
    assert 0 < len(near) < 6
    producer = make_producer(
        bootstrap_servers=kafka3.bootstrap_servers,
        partitioner_rack_aware=True,
        client_rack="rack-2",
        partitioner_adaptive_partitioning_enable=adaptive,
    )
    producer.send(topic, b"first", partition=0).result(30)
    used = set()

    def settled():
        """Send again: the first records may be drawn before the shares are published."""
        used.clear()
        used.update(producer.send(topic, b"value").result(30).partition for _ in range(30))
        return used <= near

    wait_until(settled, 30, "records that stay in the rack")
    rows = producer.send_array(topic, numpy.zeros((1000, 100), numpy.uint8)).result(60)
    assert set(rows.partition.tolist()) <= near
