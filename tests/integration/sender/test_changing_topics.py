"""Tests topics that get more partitions, or are deleted and created again, while producers use them."""

import asyncio
import threading
import time

import numpy
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from kfake.scripted_broker import ScriptedBroker
from support.process import wait_until

from cyproducer import KafkaProducer, errors


def add_partitions(kafka, topic, count):
    # the sockets are deleted with this directory
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for future in admin.create_partitions([NewPartitions(topic, count)]).values():
        future.result(30)


def send(producer, topic, partition):
    return producer.send(topic, b"value", partition=partition)


def send_array(producer, topic, partition):
    return producer.send_array(topic, numpy.arange(10), partition=partition)


def send_async(producer, topic, partition):
    async def main():
        return await (await producer.send_async(topic, b"value", partition=partition))

    return asyncio.run(main())


WAYS = [send, send_array, send_async]


@pytest.mark.parametrize("way", WAYS)
def test_a_partition_that_was_added_is_found(make_producer, new_topic, kafka, way):
    """The sender's metadata is fresh: without a request for it, it would stay as it is for five minutes."""
    topic = new_topic(2)
    producer = make_producer(max_block_ms=20_000)
    assert producer.partitions_for(topic) == {0, 1}
    add_partitions(kafka, topic, 4)
    sent = way(producer, topic, 3)
    assert way is send_async or sent.result(30) is not None
    assert producer.partitions_for(topic) == {0, 1, 2, 3}


@pytest.mark.parametrize("way", WAYS)
def test_a_partition_that_is_not_there_is_named_with_the_number_of_partitions(make_producer, new_topic, way):
    topic = new_topic(2)
    producer = make_producer(max_block_ms=300)
    wait_until(lambda: sends(producer, topic, 1), 30, "metadata of the topic")
    message = f"Partition 2 of topic {topic} with partition count 2 is not present in metadata after 300 ms"
    with pytest.raises(errors.KafkaTimeoutError, match=message):
        way(producer, topic, 2)


def test_a_send_that_waits_for_a_partition_goes_on_when_it_is_added(make_producer, new_topic, kafka):
    topic = new_topic(1)
    producer = make_producer(max_block_ms=30_000)
    producer.send(topic, b"first", partition=0).result(30)
    adding = threading.Timer(1, add_partitions, (kafka, topic, 2))
    adding.start()
    try:
        assert producer.send(topic, b"second", partition=1).result(30).partition == 1
    finally:
        adding.join()


def test_a_send_that_may_not_wait_makes_the_next_one_find_the_partition(make_producer, new_topic, kafka):
    topic = new_topic(1)
    producer = make_producer(max_block_ms=30_000)
    producer.send(topic, b"first", partition=0).result(30)
    hurried = make_producer(max_block_ms=0)
    wait_until(lambda: sends(hurried, topic, 0), 30, "metadata of the topic")
    add_partitions(kafka, topic, 2)
    wait_until(lambda: sends(hurried, topic, 1), 30, "metadata with the new partition")


def sends(producer, topic, partition):
    try:
        producer.send(topic, b"value", partition=partition)
    except (errors.KafkaTimeoutError, errors.SenderUnavailableError):
        return False
    return True


def delete(kafka, topic):
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for future in admin.delete_topics([topic]).values():
        future.result(30)
    wait_until(lambda: topic not in admin.list_topics(timeout=30).topics, 30, "the end of the topic")


def notice_deletion(producer, topic):
    """Send until the sender's metadata lacks the topic. One batch that is sent meanwhile has an unknown outcome."""
    futures = []

    def refused():
        try:
            futures.append(producer.send(topic, b"lost", partition=0))
        except errors.KafkaTimeoutError as error:
            return str(error)
        return None

    assert "UNKNOWN_TOPIC_OR_PARTITION" in wait_until(refused, 30, "a send that is refused")
    return futures


@pytest.mark.parametrize("partitions", [2, 4])
def test_a_topic_that_was_deleted_is_refused_until_it_is_created_again(make_producer, new_topic, kafka, partitions):
    topic = new_topic(3)
    producer = make_producer(max_block_ms=500, request_timeout_ms=1000, delivery_timeout_ms=2000)
    wait_until(lambda: sends(producer, topic, 2), 30, "metadata of the topic")
    producer.flush(30)
    delete(kafka, topic)
    futures = notice_deletion(producer, topic)
    for way in WAYS:
        with pytest.raises(errors.KafkaTimeoutError, match=f"Topic {topic} not present in metadata after 500 ms"):
            way(producer, topic, 0)
    with pytest.raises(errors.KafkaTimeoutError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        producer.partitions_for(topic)
    reasons = [future.exception(30) for future in futures]
    assert all(
        isinstance(reason, errors.UnknownTopicOrPartitionError | errors.OutcomeUnknownError) for reason in reasons
    ), reasons
    kafka.create_topic(topic, partitions)
    wait_until(lambda: sends(producer, topic, 0), 30, "metadata of the new topic")
    assert producer.send(topic, b"new", partition=partitions - 1).result(30).partition == partitions - 1
    assert producer.partitions_for(topic) == set(range(partitions))


def test_records_without_a_key_reach_partitions_that_were_added(make_producer, new_topic, kafka):
    topic = new_topic(1)
    producer = make_producer()
    assert producer.send(topic, b"first").result(30).partition == 0
    add_partitions(kafka, topic, 3)
    producer.send(topic, b"named", partition=2).result(30)
    seen = set()

    def everywhere():
        seen.add(producer.send(topic, b"value").result(30).partition)
        return seen == {0, 1, 2}

    wait_until(everywhere, 60, "a record in each partition")


@pytest.mark.usefixtures("retired_senders")
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_record_for_another_partition_after_a_topic_has_grown_leaves_no_batch(kind):
    """The first send() with the new metadata belongs to another partition than its key had before."""
    settings = {"delivery_timeout_ms": 2000, "request_timeout_ms": 1000, "metadata_max_age_ms": 300, "linger_ms": 0}
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        settings["bootstrap_servers"] = broker.bootstrap_servers
        with KafkaProducer(**settings) as producer, KafkaProducer(**settings) as other:
            producer.send("t", kind(b"first"), b"k2").result(30)
            broker.grow(4)
            other.send("t", b"value", partition=3).result(30)  # the sender learns of it
            future = producer.send("t", kind(b"second"), b"k2")
            assert future.result(30).partition == 1
            assert producer._channel().unfinished() == []
            time.sleep(2.5)
            assert producer.send("t", b"third", partition=0).result(30).offset == 1
