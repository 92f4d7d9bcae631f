"""Tests custom partitioners and round robin: what they get, wrong answers, arrays, asyncio, and the end."""

import asyncio

import numpy
import pyarrow
import pytest

from cyproducer import KafkaProducer, errors


class Object:
    """A partitioner with Java's arguments."""

    def __init__(self, answer=0):
        self.answer, self.calls, self.closed = answer, [], 0

    def partition(self, topic, key, key_bytes, value, value_bytes, cluster):
        self.calls.append((topic, key, key_bytes, value, value_bytes))
        self.cluster = cluster
        return self.answer(cluster) if callable(self.answer) else self.answer

    def close(self):
        self.closed += 1


def partitions(sender, topic="t"):
    return [received.partition for received in sender.log if received.topic == topic]


def test_a_callable_gets_kafka_pythons_arguments_for_each_record_without_a_partition(sender):
    calls = []

    def choose(key_bytes, all_partitions, available_partitions):
        calls.append((key_bytes, list(all_partitions), list(available_partitions)))
        all_partitions.clear()
        return numpy.int64(len(calls))

    with KafkaProducer(sender=sender.path, partitioner=choose, key_serializer=str.encode) as producer:
        chosen = [producer.send("t", b"v", key="a"), producer.send("t", b"v"), producer.send("t", b"v", "x", None, 0)]
        assert [future.result(10).partition for future in chosen] == [1, 2, 0]
    everything = [0, 1, 2, 3]
    assert calls == [(b"a", everything, everything), (None, everything, everything)]


def test_an_object_gets_javas_arguments_and_the_cluster(sender):
    def last(cluster):
        assert cluster.partitions_for_topic("t") == cluster.available_partitions_for_topic("t") == {0, 1, 2, 3}
        assert cluster.partition_count_for_topic("one") == 1
        assert (cluster.partitions_for_topic("no"), cluster.partition_count_for_topic("no")) == (None, None)
        assert cluster.available_partitions_for_topic("no") is None
        assert cluster.topics() >= {"t"}
        return 3

    chooser = Object(last)
    settings = {"key_serializer": str.encode, "value_serializer": lambda value: bytearray(value)}
    with KafkaProducer(sender=sender.path, partitioner=chooser, **settings) as producer:
        assert producer.send("t", [1, 2], key="k").result(10).partition == 3
    assert chooser.calls == [("t", "k", b"k", [1, 2], b"\1\2")]
    assert chooser.closed == 1
    producer.close()
    assert chooser.closed == 1


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("1", "returned str for topic 't', not the number of a partition"),
        (None, "returned NoneType for topic 't'"),
        (True, "returned bool for topic 't'"),
        (1.0, "returned float for topic 't'"),
        (-1, r"returned -1 for topic 't', whose partitions are 0 to 3"),
        (4, r"returned 4 for topic 't', whose partitions are 0 to 3"),
        (2**70, rf"returned {2**70} for topic 't'"),
        (lambda _: [].pop(), "raised IndexError for topic 't': pop from empty list"),
    ],
)
def test_a_wrong_answer_is_raised_and_nothing_is_queued(sender, answer, text):
    with KafkaProducer(sender=sender.path, partitioner=Object(answer)) as producer:
        with pytest.raises(errors.PartitionerError, match=f"^the partitioner Object {text}") as raised:
            producer.send("t", b"v")
        assert isinstance(raised.value.__cause__, IndexError) == callable(answer)
        with pytest.raises(errors.PartitionerError, match="the partitioner Object"):
            asyncio.run(producer.send_async("t", b"v"))
        with pytest.raises(errors.PartitionerError, match=r"^row 1: the partitioner Object .*; nothing was queued"):
            producer.send_array("t", [b"v", b"w"], partition=pyarrow.array([0, None], pyarrow.int32()))
        producer.send("t", b"last", partition=0).result(10)
    assert [received.value for received in sender.log] == [b"last"]


def test_a_record_that_waits_for_memory_is_placed_once(sender):
    chooser = Object(1)
    sender.hold = True
    settings = {"buffer_memory": 1 << 20, "max_block_ms": 300}
    with KafkaProducer(sender=sender.path, partitioner=chooser, **settings) as producer:
        producer.partitions_for("t")
        sent = 0
        with pytest.raises(errors.BufferExhaustedError):
            while True:
                producer.send("t", bytes(100_000))
                sent += 1
        assert len(chooser.calls) == sent + 1 > 3
        sender.release()


def test_round_robin_takes_turns_for_each_topic(sender):
    with KafkaProducer(sender=sender.path, partitioner="round_robin") as producer:
        for number in range(6):
            producer.send("t", b"%d" % number, key=b"same")
            producer.send("one", b"v")
        producer.send("t", b"explicit", partition=3)
        producer.send("t", b"6")
        producer.flush(10)
    placed = {received.value: received.partition for received in sender.log if received.topic == "t"}
    assert [placed[b"%d" % number] for number in range(7)] == [0, 1, 2, 3, 0, 1, 2]
    assert partitions(sender, "one") == [0] * 6


def test_round_robin_takes_partitions_that_have_a_leader():
    from cyproducer.producer.extensions.partitioners import RoundRobin

    turns = RoundRobin()
    assert [turns.place(None, "t", b"\1\0\1", None, None) for _ in range(4)] == [0, 2, 0, 2]
    assert [turns.place(None, "t", b"\0\0\0", None, None) for _ in range(3)] == [1, 2, 0]


@pytest.mark.parametrize("name", ["round_robin", "org.apache.kafka.clients.producer.RoundRobinPartitioner"])
def test_the_names_of_round_robin(name):
    for spelling in ("partitioner", "partitioner.class"):
        producer = KafkaProducer(bootstrap_servers="localhost:1", **{spelling: name})
        assert producer.settings.partitioner == "round_robin"


def test_round_robin_of_arrays_continues_the_turns_of_send(sender):
    with KafkaProducer(sender=sender.path, partitioner="round_robin") as producer:
        producer.send("t", b"first").result(10)
        rows = [b"%d" % number for number in range(10)]
        given = pyarrow.array([None, 3, *[None] * 8], pyarrow.int32())
        assert producer.send_array("t", rows, keys=rows, partition=given).result(10).partition.tolist() == [
            1, 3, 2, 3, 0, 1, 2, 3, 0, 1
        ]  # fmt: skip
        plain = producer.send_array("t", numpy.arange(8, dtype="i8")).result(10)
        assert plain.partition.tolist() == [2, 3, 0, 1, 2, 3, 0, 1]
        assert producer.send("t", b"last").result(10).partition == 2
        assert producer.send_array("t", rows, partition=1).result(10).partition.tolist() == [1] * 10
        assert producer.send("t", b"last").result(10).partition == 3


def test_round_robin_of_a_table_with_a_column_of_topics(sender):
    table = pyarrow.table({"value": [b"v"] * 6, "topic": ["t", "one", "t", "t", "one", "t"]})
    with KafkaProducer(sender=sender.path, partitioner="round_robin") as producer:
        assert producer.send_arrow(table).result(10).partition.tolist() == [0, 0, 1, 2, 0, 3]


def test_a_custom_partitioner_is_called_for_each_row(sender):
    chooser = Object(lambda cluster: len(chooser.calls) % 4)
    with KafkaProducer(sender=sender.path, partitioner=chooser) as producer:
        written = producer.send_array("t", [b"a", None, b"c"], keys=[b"k", b"l", None]).result(10)
    assert written.partition.tolist() == [1, 2, 3]
    assert chooser.calls == [
        ("t", b"k", b"k", b"a", b"a"), ("t", b"l", b"l", None, None), ("t", None, None, b"c", b"c")
    ]  # fmt: skip


def test_send_async_is_placed_when_the_topic_is_known(sender):
    async def main():
        return (await (await producer.send_async("t", b"v"))).partition

    with KafkaProducer(sender=sender.path, partitioner=Object(2)) as producer:
        assert asyncio.run(main()) == 2


def test_a_partitioner_can_send_and_close(sender):
    def choose(cluster):
        if len(chooser.calls) == 1:
            producer.send("t", b"nested")
        elif len(chooser.calls) == 3:
            producer.close()
        return 1

    chooser = Object(choose)
    with KafkaProducer(sender=sender.path, partitioner=chooser) as producer:
        producer.send("t", b"v").result(10)
        with pytest.raises(errors.ProducerClosedError):
            producer.send("t", b"late")
    assert [received.value for received in sender.log] == [b"nested", b"v"]


def test_the_settings_of_the_built_in_partitioner_have_no_effect(sender, caplog):
    settings = {"partitioner_ignore_keys": True, "partitioner_adaptive_partitioning_enable": False}
    with KafkaProducer(sender=sender.path, partitioner=lambda key, every, available: int(key), **settings) as producer:
        assert producer.send("t", b"v", key=b"3").result(10).partition == 3
    text = "partitioner_adaptive_partitioning_enable and partitioner_ignore_keys has no effect with a partitioner"
    assert text in caplog.text


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("round_robbin", r"did you mean 'round_robin'\?"),
        ("Round-Robin", r"did you mean 'round_robin'\?"),
        ("murmur2_random", "the built-in partitioner chooses so"),
        ("org.example.Partitioner", "classes of Java cannot be loaded"),
        ("sticky", "expected None, 'round_robin', a callable"),
        (Object, "this is a partitioner's class, not an instance"),
        (5, "expected None"),
    ],
)
def test_a_wrong_setting_is_refused(value, named):
    for name in ("partitioner", "partitioner.class"):
        with pytest.raises(errors.KafkaConfigurationError, match=named):
            KafkaProducer(bootstrap_servers="localhost:1", **{name: value})
