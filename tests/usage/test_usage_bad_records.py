"""Tests what send() refuses: a clear error, and nothing queued; the records around it arrive."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.consumer import ReadRecords

from cyproducer import errors

MIB = 1 << 20


def raising(data: object) -> bytes:
    raise LookupError(f"no code for {data!r}")


#: name: (settings, arguments of send(), the error, what its message has to contain)
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], list[str]]] = {
    "a value without a serializer": (
        {},
        {"value": "text"},
        TypeError,
        ["value", "bytes", "str", "value_serializer"],
    ),
    "a key without a serializer": ({}, {"key": 7}, TypeError, ["key", "bytes", "int", "key_serializer"]),
    "a memoryview that is not contiguous": ({}, {"value": memoryview(b"abcdef")[::2]}, TypeError, ["value"]),
    "a value serializer that raises": (
        {"value_serializer": raising},
        {"value": b"x"},
        errors.SerializationError,
        ["value_serializer", "LookupError", "no code for b'x'"],
    ),
    "a key serializer that raises": (
        {"key_serializer": raising},
        {"key": b"k"},
        errors.SerializationError,
        ["key_serializer", "LookupError"],
    ),
    "a serializer that gives no bytes": (
        {"value_serializer": lambda data: 7},
        {"value": b"x"},
        errors.SerializationError,
        ["value_serializer", "int"],
    ),
    "headers that are a str": ({}, {"headers": "ab"}, TypeError, ["headers", "dict", "not str"]),
    "a dict with a header's value as int": ({}, {"headers": {"a": 1}}, TypeError, ["headers[0]", "'a'", "int"]),
    "a header that is no pair": ({}, {"headers": [("a", b"1"), ("b",)]}, TypeError, ["headers[1]"]),
    "a header's key in bytes": ({}, {"headers": [(b"a", b"1")]}, TypeError, ["headers[0]", "bytes"]),
    "a header's value as int": ({}, {"headers": [("a", 1)]}, TypeError, ["headers[0]", "'a'", "int"]),
    "a topic that is no str": ({}, {"topic": b"topic"}, TypeError, ["topic", "bytes"]),
    "an empty topic": ({}, {"topic": ""}, errors.InvalidTopicError, ["empty"]),
    "a topic with a space": ({}, {"topic": "no way"}, errors.InvalidTopicError, ["'no way'"]),
    "a topic of two dots": ({}, {"topic": ".."}, errors.InvalidTopicError, ["'..'"]),
    "a topic of 250 characters": ({}, {"topic": "x" * 250}, errors.InvalidTopicError, ["250", "249"]),
    "a topic that does not exist": (
        {"max_block_ms": 400},
        {"topic": "never-made"},
        errors.KafkaTimeoutError,
        ["never-made", "400 ms", "UNKNOWN_TOPIC_OR_PARTITION"],
    ),
    "a partition out of range": (
        {"max_block_ms": 400},
        {"partition": 3},
        errors.KafkaTimeoutError,
        ["artition 3", "3", "400 ms"],
    ),
    "a negative partition": ({}, {"partition": -1}, ValueError, ["partition", "-1"]),
    "a partition that is no int": ({}, {"partition": "0"}, TypeError, ["partition", "str"]),
    "a negative timestamp": ({}, {"timestamp_ms": -1}, ValueError, ["timestamp_ms", "-1"]),
    "a timestamp that is no int": ({}, {"timestamp_ms": 1.5}, TypeError, ["timestamp_ms", "float"]),
    "a record over max_request_size": (
        {},
        {"value": bytes(MIB)},
        errors.RecordTooLargeError,
        ["max_request_size", str(MIB)],
    ),
    "a callback that cannot be called": ({}, {"on_delivery": "f"}, TypeError, ["on_delivery", "str"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_records_were_not_queued(
    name: str, make_producer: Callable[..., Any], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    settings, arguments, error, texts = REFUSED[name]
    called: list[tuple[object, ...]] = []
    good = make_producer()
    producer = make_producer(**settings) if settings else good
    good.send(topic, b"before").result(30)
    complete = {"topic": topic, "on_delivery": lambda *given: called.append(given), **arguments}
    with pytest.raises(error) as caught:
        producer.send(**complete)
    for text in texts:
        assert text in str(caught.value)
    good.send(topic, b"after").result(30)
    producer.flush(30)
    assert called == []
    assert sorted(arrived(topic, 2).value) == [b"after", b"before"]


def test_a_serializers_error_is_the_cause(make_producer: Callable[..., Any], topic: str) -> None:
    producer = make_producer(value_serializer=raising)
    with pytest.raises(errors.SerializationError) as caught:
        producer.send(topic, {"a": 1})
    assert isinstance(caught.value.__cause__, LookupError)


def test_records_larger_than_a_slot_or_a_batch_go_out_alone(
    make_producer: Callable[..., Any],
    new_topic: Callable[..., str],
    kafka: Any,
    arrived: Callable[..., ReadRecords],
) -> None:
    topic = new_topic(1)
    producer = make_producer(linger_ms=50)
    sizes = [10, 5_000, 70_000, 10, 500_000, 1_000_000, 10]
    values = [bytes([i]) * size for i, size in enumerate(sizes)]
    futures = [producer.send(topic, value) for value in values]
    assert [future.result(30).offset for future in futures] == list(range(len(sizes)))
    assert arrived(topic, len(sizes)).value == values
    alone = {batch.base_offset for batch in kafka.dump_log(topic) if batch.count == 1}
    assert {2, 4, 5} <= alone


def test_the_largest_record_that_fits_is_taken(
    make_producer: Callable[..., Any], new_topic: Callable[..., str], arrived: Callable[..., ReadRecords]
) -> None:
    topic = new_topic(1)
    producer = make_producer(max_request_size=100_000)
    taken, refused, sent = 99_000, 100_000, []
    while refused - taken > 1:
        size = (taken + refused) // 2
        try:
            producer.send(topic, bytes(size))
        except errors.RecordTooLargeError:
            refused = size
        else:
            taken = size
            sent.append(size)
    # The batch's header has 61 bytes, and the record's own lengths a few.
    assert 99_900 < taken < 99_939
    producer.flush(30)
    assert [len(value) for value in arrived(topic, len(sent)).value] == sent


def test_an_unknown_topic_is_found_when_it_is_made_meanwhile(
    make_producer: Callable[..., Any], kafka: Any, arrived: Callable[..., ReadRecords]
) -> None:
    producer = make_producer(max_block_ms=30_000)
    maker = threading.Timer(0.5, kafka.create_topic, ("made-meanwhile", 1))
    maker.start()
    try:
        producer.send("made-meanwhile", b"patient").result(30)
    finally:
        maker.join()
    arrived("made-meanwhile", 1)


def test_the_example(run_example: Callable[..., str], topic: str, arrived: Callable[..., ReadRecords]) -> None:
    first, second, third = run_example("errors_handled.py", topic).splitlines()
    assert first.startswith("refused: ")
    assert "max_request_size" in first
    assert second.startswith("refused: ")
    assert "dict" in second
    (partition,) = arrived(topic, 1).partition
    assert third == f"offset 0 of partition {partition}"
