"""Tests that a front-end whose sender has given a topic's number to another name looks the topic up again."""

import asyncio
import threading
import time

import numpy
import pytest
from standin_sender import StandIn
from support.process import wait_until

from cyproducer import KafkaProducer

LARGE = bytes(100_000)  # fits no shared batch


@pytest.fixture
def sender(short_tmp):
    with StandIn(short_tmp / f"s{time.monotonic_ns()}", {"t": 4, "u": 4}) as standin:
        yield standin


@pytest.fixture
def producer(sender):
    with KafkaProducer(sender=sender.path, linger_ms=1, buffer_memory=1 << 20) as made:
        yield made


def send(producer, topic):
    return producer.send(topic, b"value", partition=1).result(20)


def send_large(producer, topic):
    return producer.send(topic, LARGE, partition=1).result(20)


def send_array(producer, topic):
    return producer.send_array(topic, numpy.arange(3)).result(20)


def send_async(producer, topic):
    async def main():
        return await (await producer.send_async(topic, b"value", partition=1))

    return asyncio.run(main())


def partitions_for(producer, topic):
    return producer.partitions_for(topic)


WAYS = (send, send_large, send_array, send_async)


def renumber(sender, topics):
    """Give all numbers back, and then to these topics in this order."""
    for number, name in enumerate(sender.topics):
        sender.snapshot.retire(number)
        sender.snapshot.clear(number, name.encode())
    sender.topics = topics
    sender.publish()


def topics_of(sender):
    return [received.topic for received in sender.log]


@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_has_another_name_is_looked_up_again(sender, producer, way):
    way(producer, "t")
    count = len(sender.log)
    renumber(sender, {"u": 2, "v": 1, "t": 3})
    way(producer, "t")
    assert topics_of(sender) == ["t"] * 2 * count
    assert producer.partitions_for("t") == {0, 1, 2}
    assert producer.partitions_for("u") == {0, 1}
    way(producer, "u")
    assert topics_of(sender)[2 * count :] == ["u"] * count


@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_is_retired_after_the_look_up_gets_no_batch(sender, producer, way):
    """The change is not announced: the front-end finds it when it has opened a slot, which it frees."""
    way(producer, "t")
    count = len(sender.log)
    free = producer.metrics()["producer-metrics"]["buffer-available-bytes"]
    wait_until(lambda: producer.metrics()["producer-metrics"]["buffer-available-bytes"] == free, 10, "free memory")
    sender.wants.clear()
    sender.snapshot.retire(0)
    thread = threading.Thread(target=way, args=(producer, "t"))
    thread.start()
    wait_until(lambda: "t" in sender.wants, 10, "a request for the topic")
    assert len(sender.log) == count
    renumber(sender, {"u": 4, "t": 4})
    thread.join(20)
    assert topics_of(sender) == ["t"] * 2 * count
    wait_until(lambda: producer.metrics()["producer-metrics"]["buffer-available-bytes"] == free, 10, "free memory")


@pytest.mark.parametrize("way", WAYS)
def test_a_number_that_has_kept_its_name_is_used_at_once(sender, producer, way):
    way(producer, "t")
    count = len(sender.log)
    sender.wants.clear()
    for _ in range(3):
        sender.snapshot.retire(0)
        sender.snapshot.keep(0)
        way(producer, "t")
    assert topics_of(sender) == ["t"] * 4 * count
    assert sender.wants == []


def test_an_open_batch_goes_on_while_its_number_is_retired(sender, producer):
    """The sender finds its slot: the number keeps its name."""
    sender.linger_s = 0.5
    futures = [producer.send("t", b"1", partition=1)]
    sender.snapshot.retire(0)
    futures.append(producer.send("t", b"2", partition=1))
    sender.snapshot.keep(0)
    futures.append(producer.send("t", b"3", partition=1))
    assert [future.result(20).offset for future in futures] == [0, 1, 2]
    assert len(sender.chains) == 1


def test_batches_of_a_lost_sender_wait_for_a_number_that_is_retired(short_tmp):
    """They move into the next session's arena when the topic has a number again."""
    path = short_tmp / f"s{time.monotonic_ns()}"
    with StandIn(path, {"t": 4, "u": 4}) as first:
        producer = KafkaProducer(sender=first.path, linger_ms=1, buffer_memory=1 << 20)
        first.hold = True
        futures = [producer.send("t", value, partition=1) for value in (b"1", LARGE, b"3")]
    path.unlink()
    with StandIn(path, {"u": 4, "t": 4}) as second:
        second.snapshot.retire(1)
        thread = threading.Thread(target=producer.flush, args=(20,))
        thread.start()
        wait_until(lambda: "t" in second.wants, 20, "a request for the topic")
        assert second.log == []
        renumber(second, {"t": 4, "u": 4})
        assert [future.result(20).offset for future in futures] == [0, 1, 2]
        assert [received.value for received in second.log] == [b"1", LARGE, b"3"]
        assert topics_of(second) == ["t"] * 3
        thread.join(20)
        producer.close(10)
