"""Columns of the Spark sink: what the driver accepts and refuses, and the hand-over of Arrow batches."""

import pyarrow
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from cyproducer.spark.schema import Layout, layout_of

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
FULL = {
    "key": StringType(), "value": BinaryType(), "headers": ArrayType(HEADER), "partition": IntegerType(),
    "timestamp": TimestampType(), "topic": StringType(),
}


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def refusal(given, topic="t"):
    with pytest.raises(ValueError, match="cannot write this DataFrame to Kafka") as caught:
        layout_of(given, topic)
    return str(caught.value)


@pytest.mark.parametrize("value", [BinaryType(), StringType()])
@pytest.mark.parametrize("key", [BinaryType(), StringType()])
def test_every_column_is_found_wherever_it_stands(value, key):
    found = layout_of(schema(**{**FULL, "value": value, "key": key}), None)
    assert dict(found.columns) == {name: index for index, name in enumerate(FULL)}


def test_the_topic_option_stands_in_for_the_column():
    assert "topic" not in dict(layout_of(schema(**FULL), "t").columns)
    # As in Spark's own sink, a column that the option overrides is not even looked at.
    assert dict(layout_of(schema(value=BinaryType(), topic=LongType()), "t").columns) == {"value": 0}


def test_a_topic_is_needed_from_somewhere():
    assert "no topic" in refusal(schema(value=BinaryType()), topic=None)


def test_a_missing_value_and_a_misspelt_column_are_named_together():
    text = refusal(schema(valeu=BinaryType(), key=StringType()))
    assert "column 'valeu' has no place" in text
    assert "did you mean 'value'" in text
    assert "required column 'value' (binary or string) is missing" in text


def test_names_match_by_case_as_in_sparks_own_sink():
    text = refusal(schema(Value=BinaryType()))
    assert "'Value'" in text
    assert "case matters" in text


def test_a_column_twice_is_refused():
    twice = StructType([StructField("value", BinaryType()), StructField("value", BinaryType())])
    assert "column 'value' is there twice" in refusal(twice)


@pytest.mark.parametrize(
    ("name", "wrong", "allowed"),
    [
        ("value", LongType(), "binary or string"),
        ("key", IntegerType(), "binary or string"),
        ("partition", LongType(), "int"),
        ("timestamp", TimestampNTZType(), "timestamp (with a time zone"),
        ("timestamp", DoubleType(), "timestamp"),
        ("headers", StringType(), "array<struct<key:string,value:binary>>"),
        ("headers", ArrayType(StringType()), "array<struct<key:string,value:binary>>"),
        (
            "headers",
            ArrayType(StructType([StructField("key", StringType()), StructField("value", StringType())])),
            "array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_a_wrong_type_is_named_with_the_right_one(name, wrong, allowed):
    text = refusal(schema(**{"value": BinaryType(), name: wrong}))
    assert f"column '{name}' must be {allowed}" in text
    assert f"not {wrong.simpleString()}" in text


def test_a_topic_column_must_be_a_string():
    assert "column 'topic' must be string, not int" in refusal(
        schema(value=BinaryType(), topic=IntegerType()), topic=None
    )


def test_timestamps_are_floored_to_milliseconds_and_null_is_now():
    stamps = pyarrow.array([0, 1_700_000_000_123_999, -1, -1001, None], pyarrow.int64())
    batch = pyarrow.RecordBatch.from_arrays(
        [stamps.view(pyarrow.timestamp("us", "Asia/Kolkata"))], names=["whatever"]
    )
    ready = Layout((("timestamp", 0),)).for_kafka(batch)
    assert ready.schema.names == ["timestamp"]
    *known, now = ready.column(0).to_pylist()
    assert known == [0, 1_700_000_000_123, -1, -2]
    assert now > 1_700_000_000_123


def test_a_sliced_batch_keeps_its_rows():
    stamps = pyarrow.array([1_000, 2_000, 3_000], pyarrow.int64()).view(pyarrow.timestamp("us", "UTC"))
    batch = pyarrow.RecordBatch.from_pydict({"timestamp": stamps, "value": [b"a", b"b", b"c"]})
    ready = Layout((("value", 1), ("timestamp", 0))).for_kafka(batch.slice(1, 2))
    assert ready.to_pydict() == {"value": [b"b", b"c"], "timestamp": [2, 3]}


def test_columns_are_handed_over_without_a_copy():
    value = pyarrow.array([b"a", None, b"ccc"], pyarrow.large_binary())
    key = pyarrow.array(["k", "ké", None], pyarrow.string())
    batch = pyarrow.RecordBatch.from_arrays([key, value], names=["key", "value"])
    layout = Layout((("value", 1), ("key", 0)))
    ready = layout.for_kafka(batch)
    assert [buffer and buffer.address for buffer in ready.column(0).buffers()] == [
        buffer and buffer.address for buffer in value.buffers()
    ]
    assert layout.payload_bytes(ready) == 4 + 4


def test_a_null_topic_is_refused_with_its_count():
    batch = pyarrow.RecordBatch.from_arrays([pyarrow.array(["a", None, None])], names=["topic"])
    with pytest.raises(ValueError, match=r"column 'topic' is null in 2 of 3 rows"):
        Layout((("topic", 0),)).for_kafka(batch)
