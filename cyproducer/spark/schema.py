"""Checks the columns of a DataFrame for Kafka on the driver."""

from __future__ import annotations

import difflib

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

COLUMNS = ("value", "key", "headers", "partition", "timestamp", "topic")
SOURCE_COLUMNS = ("offset", "timestampType")
"""Columns that Spark's Kafka source adds to those of a record. They cannot be written."""
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def check_columns(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """Check the DataFrame's columns and return those to write; raise ValueError that names every wrong one.

    Names are case-sensitive, as in Spark's own Kafka sink. That sink silently drops columns that a Kafka record does
    not have; here they are an error. Only the columns that Spark's Kafka source adds are ignored, so that its rows can
    be written unchanged. `topic` is the option, which overrides a column ``topic``.
    """
    problems = []
    seen = set()
    for field in schema.fields:
        if field.name in SOURCE_COLUMNS:
            continue
        if field.name not in COLUMNS:
            problems.append(_unknown_column(field.name))
        elif field.name in seen:
            problems.append(f"there are two columns '{field.name}'")
        else:
            seen.add(field.name)
            if field.name != "topic" or topic is None:
                problems += _wrong_type(field.name, field.dataType)
    if "value" not in seen:
        problems.append("the required column 'value' (binary or string) is missing")
    if topic is None and "topic" not in seen:
        problems.append("there is no topic: give the option 'topic', or a column 'topic' (string)")
    if problems:
        raise ValueError(
            "cyproducer cannot write this DataFrame to Kafka: "
            + "; ".join(problems)
            + f". Its columns are {schema.simpleString()}"
        )
    return tuple(field.name for field in schema.fields if field.name in seen)


def _unknown_column(name: str) -> str:
    nearest = difflib.get_close_matches(name.lower(), COLUMNS, n=1)
    hint = f" (did you mean '{nearest[0]}'? names are case-sensitive)" if nearest else ""
    return f"column '{name}' is not part of a Kafka record{hint}; the columns are {', '.join(COLUMNS)}"


def _wrong_type(name: str, found: DataType) -> list[str]:
    """Return an empty list, or one sentence with the type that the column must have."""
    if name in ("value", "key"):
        right, allowed = isinstance(found, (BinaryType, StringType)), "binary or string"
    elif name == "topic":
        right, allowed = isinstance(found, StringType), "string"
    elif name == "partition":
        right, allowed = isinstance(found, IntegerType), "int"
    elif name == "timestamp":
        right, allowed = isinstance(found, TimestampType), "timestamp"
        if isinstance(found, TimestampNTZType):
            # A time without a zone is not a point in time, and Kafka's timestamps are points in time.
            allowed = "timestamp (with a time zone: cast it, which reads it in the session's zone)"
    else:
        right, allowed = _is_headers(found), HEADERS_TYPE
    return [] if right else [f"column '{name}' must be {allowed}, not {found.simpleString()}"]


def _is_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    fields = found.elementType.fields
    return (
        [field.name for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )
