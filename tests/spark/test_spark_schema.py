"""Tests columns of the Spark sink: what the driver accepts and refuses, and the messages."""

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

from cyproducer.spark.schema import check_columns
from cyproducer.spark.writer import _warn_of_ignored, plan_of

HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
FULL = {
    "key": StringType(),
    "value": BinaryType(),
    "headers": ArrayType(HEADER),
    "partition": IntegerType(),
    "timestamp": TimestampType(),
    "topic": StringType(),
}


def schema(**columns):
    return StructType([StructField(name, kind) for name, kind in columns.items()])


def refusal(given, topic="t"):
    with pytest.raises(ValueError, match="cannot write this DataFrame to Kafka") as caught:
        check_columns(given, topic)
    return str(caught.value)


@pytest.mark.parametrize("value", [BinaryType(), StringType()])
@pytest.mark.parametrize("key", [BinaryType(), StringType()])
def test_all_columns_and_the_one_that_is_required(value, key):
    check_columns(schema(**{**FULL, "value": value, "key": key}), None)
    check_columns(schema(value=value), "t")


def test_columns_added_by_sparks_kafka_source_are_left_out():
    added = {"offset": LongType(), "timestampType": IntegerType()}
    assert check_columns(schema(**FULL, **added), None) == tuple(FULL)
    assert check_columns(schema(**added, **FULL), "t") == tuple(FULL)
    text = refusal(schema(value=BinaryType(), timestamptype=IntegerType()))
    assert "'timestamptype' is not part of a Kafka record" in text


def test_an_ignored_column_or_option_is_warned_of_once(caplog):
    _warn_of_ignored.cache_clear()
    options = {"kafka.bootstrap.servers": "b:1", "topic": "t", "startingOffsets": "earliest"}
    for _ in range(3):
        plan = plan_of(options, schema(value=BinaryType(), offset=LongType()))
        assert plan.columns == ("value",)
    assert [record.getMessage().rsplit(": ", 1)[1] for record in caplog.records] == [
        "option startingOffsets",
        "column offset",
    ]


def test_the_topic_option_stands_in_for_the_column():
    check_columns(schema(**FULL), "t")
    # As in Spark's own sink, a column that the option overrides is not even looked at.
    check_columns(schema(value=BinaryType(), topic=LongType()), "t")


def test_a_topic_is_needed_from_somewhere():
    assert "no topic" in refusal(schema(value=BinaryType()), topic=None)


def test_a_missing_value_and_a_misspelt_column_are_named_together():
    text = refusal(schema(valeu=BinaryType(), key=StringType()))
    assert "column 'valeu' is not part of a Kafka record" in text
    assert "did you mean 'value'" in text
    assert "required column 'value' (binary or string) is missing" in text


def test_names_match_by_case_as_in_sparks_own_sink():
    text = refusal(schema(Value=BinaryType()))
    assert "'Value'" in text
    assert "names are case-sensitive" in text


def test_a_column_twice_is_refused():
    twice = StructType([StructField("value", BinaryType()), StructField("value", BinaryType())])
    assert "there are two columns 'value'" in refusal(twice)


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
