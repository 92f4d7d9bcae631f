"""Tests send() against a stand-in sender: what arrives, byte for byte, and what is refused."""

import asyncio
import pickle
import re
import threading
import time
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from probe.native import open_batch
from standin_sender import StandIn, attach
from support.process import wait_until

import cyproducer
from cyproducer import KafkaProducer, errors
from cyproducer.producer.channel import waits
from cyproducer.producer.core.native import partition_for_key


class Text(str):
    """A str whose encoding is not that of its characters."""

    def encode(self, *arguments):
        return b"wrong"


@pytest.fixture
def sender(short_tmp, tmp_path_factory):
    path = short_tmp / f"s{time.monotonic_ns()}"
    with StandIn(path, {"t": 4, "one": 1}, sticky={"t": 2}) as standin:
        yield standin


def test_constructing_starts_nothing(short_tmp):
    made = KafkaProducer(sender=str(short_tmp / "nobody"))
    assert made.metrics()["producer-metrics"]["batch-total"] == 0
    assert not made.bootstrap_connected()
    made.close()
    made.close()


def test_the_times_of_a_batch_begin_with_its_first_record(sender, producer):
    """Otherwise a record would expire at once in a batch that was left open without a record."""
    producer.partitions_for("one")
    (front_end,) = sender.front_ends
    sender.hold = True
    for value in (b"by the fast path", bytearray(b"by the slow path")):
        assert open_batch(producer._channel().session, "one", 0)
        time.sleep(0.01)
        before = time.monotonic_ns()
        producer.send("one", value)
        wait_until(lambda: front_end.waiting)
        ((slot, _),) = front_end.waiting.items()
        opened = front_end.row(slot)["opened_ns"]
        sender.release()
        producer.flush(10)
        sender.hold = True
        assert before <= opened <= time.monotonic_ns()


def test_none_as_a_topic_before_any_topic_was_found(sender):
    with KafkaProducer(sender=str(sender.path), max_block_ms=100) as producer:
        with pytest.raises(errors.KafkaTimeoutError):
            producer.send("unknown", b"x")
        for partition in (None, 0):
            with pytest.raises(TypeError, match="topic must be a str, not NoneType"):
                producer.send(None, b"x", partition=partition)


def test_record_arrives_and_future_resolves(sender, producer):
    future = producer.send("t", b"value", key=b"key", headers=[("a", b"1"), ("ä", None)], timestamp_ms=1234)
    record = future.result(timeout=10)
    assert record == ("t", partition_for_key(b"key", 4), 0, 1234, 3, 5)
    assert isinstance(record, cyproducer.RecordMetadata)
    assert (future.done(), future.is_done, future.succeeded()) == (True, True, True)
    assert (future.failed(), future.cancelled()) == (False, False)
    assert future.exception() is None and future.get() == record == future.value and not future.retriable()
    (received,) = sender.log
    assert (received.key, received.value, received.timestamp) == (b"key", b"value", 1234)
    assert received.headers == (("a", b"1"), ("ä", None))


def test_nulls_and_the_timestamp_of_now(sender, producer):
    before = int(time.time() * 1000) - 20
    record = producer.send("t").result(10)
    assert (record.serialized_key_size, record.serialized_value_size) == (-1, -1)
    assert before <= record.timestamp <= time.time() * 1000 + 1
    assert (sender.log[0].key, sender.log[0].value) == (None, None)


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(key, hashed):
    """The test vectors are those of Kafka's UtilsTest.testMurmur2."""
    assert partition_for_key(key, 1000) == (hashed & 0x7FFFFFFF) % 1000


@pytest.mark.parametrize("key", [b"", b"a", b"abc", b"foobar"])
def test_the_hash_counts_all_partitions_and_an_empty_key_is_one(sender, producer, key):
    """Only one partition has a leader. The one of a record without a key is 2."""
    wanted = partition_for_key(key, 4)
    assert (key, wanted) != (b"", 2)
    sender.snapshot.store(0, 0, bytes(wanted != other for other in range(4)))
    sender.snapshot.describe(1, "")
    for _ in range(20):
        producer.send("t", b"v", key=key)
    assert producer.send("t", b"v", key=key, partition=3).result(10).partition == 3
    producer.flush(10)
    assert {received.partition for received in sender.log} == {wanted, 3}


def test_records_without_a_key_follow_the_published_partition(sender, producer):
    for number in range(20):
        producer.send("t", b"%d" % number)
    producer.flush(10)
    assert {r.partition for r in sender.log} == {2}


def test_a_full_batch_moves_on_to_another_partition(sender):
    with KafkaProducer(sender=sender.path, batch_size=65_536) as producer:
        for _ in range(400):
            producer.send("t", bytes(1000))
        producer.flush(10)
    assert len({chain[1] for chain in sender.chains}) > 1
    assert max(chain[4] for chain in sender.chains) <= 65536 - 61
    assert sum(chain[3] for chain in sender.chains) == 400
    assert any(chain[2] > 1 for chain in sender.chains), "chunks were chained"


record_lists = st.lists(
    st.tuples(
        st.one_of(st.none(), st.binary(max_size=3000)),
        st.one_of(st.none(), st.binary(max_size=40)),
        st.lists(st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=20))), max_size=11),
        st.integers(0, 3),
        st.one_of(st.none(), st.integers(0, 2**62)),
    ),
    max_size=40,
)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(record_lists)
def test_any_records_arrive_as_they_were_sent(sender, producer, records):
    del sender.log[:]
    futures = [
        producer.send("t", value, key=key, headers=headers, partition=partition, timestamp_ms=timestamp)
        for value, key, headers, partition, timestamp in records
    ]
    producer.flush(10)
    by_place = {(r.partition, r.offset): r for r in sender.log}
    for future, (value, key, headers, partition, timestamp) in zip(futures, records, strict=True):
        record = future.result(0)
        received = by_place.pop((record.partition, record.offset))
        assert (received.value, received.key, received.headers) == (value, key, tuple(headers))
        assert record.partition == partition
        assert received.timestamp == record.timestamp
        if timestamp is not None:
            assert record.timestamp == timestamp
    assert not by_place


@pytest.mark.parametrize("size", [4060, 4096, 16384, 65400, 65475, 65536, 200_000, 1_000_000])
def test_sizes_around_chunks_and_batches(sender, producer, size):
    value = bytes(range(256)) * (size // 256 + 1)
    futures = [producer.send("one", value[: size + extra]) for extra in range(-40, 41, 8)]
    producer.flush(10)
    assert [r.value for r in sender.log] == [value[: size + extra] for extra in range(-40, 41, 8)]
    assert [f.result(0).offset for f in futures] == list(range(11))


@pytest.mark.parametrize("first", [True, False], ids=["the topic is new", "the topic is known"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: {"a": "text", "b": "ä", "c": b"\xff", "d": None, "ü": ""},
        lambda: MappingProxyType({"a": "text", "b": "ä", "c": b"\xff", "d": None, "ü": ""}),
        lambda: [("a", "text"), ("b", "ä"), ("c", b"\xff"), ("d", None), ("ü", "")],
        lambda: iter([["a", Text("text")], (Text("b"), "ä"), ("c", bytearray(b"\xff")), ("d", None), ("ü", Text())]),
    ],
    ids=["dict", "mapping", "list", "iterator"],
)
def test_forms_of_headers(sender, producer, make, first):
    if not first:
        attach(producer, "one")
    producer.send("one", b"x", headers=make()).result(10)
    expected = (("a", b"text"), ("b", b"\xc3\xa4"), ("c", b"\xff"), ("d", None), ("ü", b""))
    assert [received.headers for received in sender.log] == [expected]


@pytest.mark.parametrize("size", [0, 1, 300, 1 << 16, (1 << 16) + 1])
def test_a_header_value_that_is_a_str_of_any_size(sender, producer, size):
    attach(producer, "one")
    producer.send("one", b"x", headers=[("a", "v" * size), ("b", "ä" * size)]).result(10)
    assert sender.log[0].headers == (("a", b"v" * size), ("b", b"\xc3\xa4" * size))


def test_serializers_and_interceptors_get_pairs(sender):
    seen = []

    class Sees:
        def on_send(self, record):
            seen.append(record.headers)
            return record

        def serialize(self, topic, headers, value):
            seen.append(headers)
            return value

    with KafkaProducer(sender=sender.path, interceptors=[Sees()], value_serializer=Sees()) as producer:
        producer.send("one", b"x", headers={"a": "1"})
    assert seen == [[("a", "1")]] * 2
    assert sender.log[0].headers == (("a", b"1"),)


def test_buffer_objects(sender, producer):
    for value in (bytearray(b"abc"), memoryview(b"abc"), memoryview(bytearray(b"xabcx"))[1:4]):
        producer.send("t", value, key=value, headers=[("h", value)])
    producer.flush(10)
    assert [(r.key, r.value, r.headers) for r in sender.log] == [(b"abc", b"abc", (("h", b"abc"),))] * 3


OBJECTS = memoryview(np.array([b"an object"], object))


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"value": "text"}, TypeError, ["value", "str", "value_serializer"]),
        ({"key": 5}, TypeError, ["key", "int", "key_serializer"]),
        ({"value": memoryview(bytes(9))[::2]}, TypeError, ["value", "contiguous"]),
        ({"value": OBJECTS}, TypeError, ["value", "Python objects or pointers", "'O'"]),
        ({"key": OBJECTS}, TypeError, ["key", "Python objects or pointers"]),
        ({"headers": [("a", OBJECTS)]}, TypeError, ["headers[0] ('a')", "Python objects or pointers"]),
        ({"headers": {"a": 1}}, TypeError, ["headers[0]", "'a'", "int"]),
        ({"headers": {1: b"1"}}, TypeError, ["headers[0]", "int"]),
        ({"headers": [("a", "\udfff")]}, ValueError, ["headers[0]", "'a'", "value cannot be encoded"]),
        ({"headers": [(b"a", b"1")]}, TypeError, ["headers[0]", "bytes"]),
        ({"headers": [("a",)]}, TypeError, ["headers[0]"]),
        ({"partition": "1"}, TypeError, ["partition"]),
        ({"partition": -1}, ValueError, ["partition", "-1"]),
        ({"timestamp_ms": -1}, ValueError, ["timestamp_ms", "-1"]),
        ({"timestamp_ms": 1.5}, TypeError, ["timestamp_ms"]),
        ({"on_delivery": 1}, TypeError, ["on_delivery"]),
        ({"value": bytes(1 << 20)}, errors.RecordTooLargeError, ["max_request_size", "1048576"]),
        ({"topic": ""}, errors.InvalidTopicError, ["empty"]),
        ({"topic": "a b"}, errors.InvalidTopicError, ["'a b'"]),
        ({"topic": ".."}, errors.InvalidTopicError, ["'..'"]),
        ({"topic": "x" * 250}, errors.InvalidTopicError, ["250", "249"]),
        ({"topic": b"t"}, TypeError, ["topic", "bytes"]),
    ],
)
def test_a_refused_record_names_the_argument_and_queues_nothing(sender, producer, arguments, error, words):
    called = []
    given_arguments = {"topic": "t", "value": b"", "on_delivery": lambda *a: called.append(a), **arguments}
    with pytest.raises(error) as raised:
        producer.send(**given_arguments)
    assert all(word in str(raised.value) for word in words), str(raised.value)
    producer.send("t", b"after").result(10)
    assert [r.value for r in sender.log] == [b"after"]
    assert not called


def test_serializers(sender):
    def broken(value):
        raise RuntimeError("no")

    with KafkaProducer(sender=sender.path, value_serializer=str.encode, key_serializer=str.encode) as made:
        made.send("t", "ä", key="k").result(10)
        made.send("t", None).result(10)
    assert [(r.key, r.value) for r in sender.log] == [(b"k", "ä".encode()), (None, None)]
    with KafkaProducer(sender=sender.path, value_serializer=broken) as made:
        with pytest.raises(errors.SerializationError, match=r"value_serializer raised Runtime.*: no") as raised:
            made.send("t", "x")
        assert isinstance(raised.value.__cause__, RuntimeError)
    with KafkaProducer(sender=sender.path, key_serializer=lambda k: 5) as made:
        with pytest.raises(errors.SerializationError, match="key_serializer returned int"):
            made.send("t", key="x")


def test_a_serializer_that_sends_itself(sender):
    def nested(value):
        if value == "outer":
            made.send("t", b"inner")
        return value if isinstance(value, bytes) else value.encode()

    with KafkaProducer(sender=sender.path, value_serializer=nested) as made:
        made.send("t", "outer")
    assert [r.value for r in sender.log] == [b"inner", b"outer"]


def test_closed_producer(sender, producer):
    future = producer.send("t", b"x")
    producer.close()
    assert future.result(0).offset == 0
    with pytest.raises(errors.ProducerClosedError):
        producer.send("t", b"y")
    with pytest.raises(errors.ProducerClosedError):
        producer.flush()


def test_pickles_as_its_settings(sender, producer):
    producer.send("t", b"x").result(10)
    with pickle.loads(pickle.dumps(producer)) as other:
        assert other.settings == producer.settings
        assert other.send("t", b"y").result(10).offset == 1
    assert sender.attached == 2


def test_threads_share_a_producer(sender, producer):
    def work(name):
        for number in range(2000):
            producer.send("t", b"%d" % number, key=name)

    names = [b"a", b"b", b"c", b"d"]
    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    producer.flush(30)
    assert sender.attached == 1
    for name in names:
        assert [int(r.value) for r in sender.log if r.key == name] == list(range(2000))


def test_unknown_topic_and_partition_have_javas_texts(sender):
    sender.errors["gone"] = 3
    sender.topics["gone"] = 0
    sender.publish()
    with KafkaProducer(sender=sender.path, max_block_ms=50) as made:
        attach(made)
        with pytest.raises(errors.KafkaTimeoutError, match=r"^Topic nope not present in metadata after 50 ms") as late:
            made.send("nope", b"")
        assert late.value.__cause__ is None  # nothing is known of the topic
        with pytest.raises(errors.KafkaTimeoutError, match="UNKNOWN_TOPIC_OR_PARTITION") as gone:
            made.send("gone", b"")
        assert type(gone.value.__cause__) is errors.UnknownTopicOrPartitionError
        with pytest.raises(
            errors.KafkaTimeoutError,
            match=r"^Partition 4 of topic t with partition count 4 is not present in metadata after 50 ms\.",
        ) as missing:
            made.send("t", b"", partition=4)
        assert type(missing.value.__cause__) is errors.UnknownPartitionError
    assert sender.wants == ["nope", "gone", "t"]


@pytest.mark.parametrize("way", ["send", "send_async", "partitions_for"])
def test_metadata_is_requested_again_although_other_topics_change(sender, way, monkeypatch):
    """A request may be lost. Each change of any topic wakes the thread that waits. The third request is answered."""
    monkeypatch.setattr(waits, "_ASK_AGAIN_S", 0.3)
    stop = threading.Event()

    def change():
        while not stop.wait(0.1):
            sender.topics["one"] += 1
            if sender.wants.count("missing") >= 3:
                sender.topics["missing"] = 1
            sender.publish()

    changing = threading.Thread(target=change)
    changing.start()
    try:
        with KafkaProducer(sender=sender.path, max_block_ms=30_000) as made:
            if way == "send":
                made.send("missing", b"")
            elif way == "partitions_for":
                made.partitions_for("missing")
            else:
                asyncio.run(made.send_async("missing", b""))
    finally:
        stop.set()
        changing.join()


def test_topic_that_shows_up_while_send_waits(sender, producer):
    threading.Timer(0.1, lambda: (sender.topics.update(late=3), sender.publish())).start()
    assert producer.send("late", b"x", partition=2).result(10).partition == 2


def test_a_topic_that_grows(sender, producer):
    producer.send("one", b"x").result(10)
    threading.Timer(0.1, lambda: (sender.topics.update(one=3), sender.publish())).start()
    assert producer.send("one", b"x", partition=2).result(10).partition == 2
    assert producer.partitions_for("one") == {0, 1, 2}


def test_topic_without_permission_raises_at_once(sender, producer):
    sender.topics["secret"], sender.errors["secret"] = 0, 29
    sender.publish()
    with pytest.raises(errors.TopicAuthorizationFailedError, match="'secret'"):
        producer.send("secret", b"")


def test_a_sender_that_answers_later_than_a_send_may_wait(sender, monkeypatch):
    """It exists, so one thread keeps asking it; sends raise until it has answered."""
    greet = sender._greet
    monkeypatch.setattr(sender, "_greet", lambda sock: (time.sleep(0.3), greet(sock)))
    slow = re.escape(f"no answer in time from the sender at {sender.path}")
    with KafkaProducer(sender=sender.path, max_block_ms=20) as made:
        with pytest.raises(errors.SenderUnavailableError, match=slow):
            made.send("t", b"x")
        deadline = time.monotonic() + 20
        while made._channel().session.foreign or not made._channel().session.alive:
            assert time.monotonic() < deadline, "no thread goes on asking"
            time.sleep(0.01)
        assert made.send("t", b"y").result(10).topic == "t"
