"""The columns that a DataFrame may have for Kafka, checked on the driver."""

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
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def check_columns(schema: StructType, topic: str | None) -> None:
    """Check the DataFrame's columns; raise ValueError that names every wrong one.

    Names are matched as Spark's own Kafka sink does, by exact case. Unlike there, a column that Kafka has no
    place for is an error, not dropped in silence. `topic` is the option: it overrides a column ``topic``.
    """
    problems = []
    seen = set()
    for field in schema.fields:
        if field.name not in COLUMNS:
            problems.append(_unknown_column(field.name))
        elif field.name in seen:
            problems.append(f"column '{field.name}' is there twice")
        else:
            seen.add(field.name)
            if field.name != "topic" or topic is None:
                problems += _wrong_type(field.name, field.dataType)
    if "value" not in seen:
        problems.append("the required column 'value' (binary or string) is missing")
    if topic is None and "topic" not in seen:
        problems.append("no topic: give the option 'topic', or a column 'topic' (string)")
    if problems:
        raise ValueError(
            "cyproducer cannot write this DataFrame to Kafka: " + "; ".join(problems)
            + f". Its columns are {schema.simpleString()}"
        )


def _unknown_column(name: str) -> str:
    nearest = difflib.get_close_matches(name.lower(), COLUMNS, n=1)
    hint = f" (did you mean '{nearest[0]}'? case matters)" if nearest else ""
    return f"column '{name}' has no place in a Kafka record{hint}; allowed are {', '.join(COLUMNS)}"


def _wrong_type(name: str, found: DataType) -> list[str]:
    """Nothing, or the one sentence that says what the column must be."""
    if name in ("value", "key"):
        right, allowed = isinstance(found, (BinaryType, StringType)), "binary or string"
    elif name == "topic":
        right, allowed = isinstance(found, StringType), "string"
    elif name == "partition":
        right, allowed = isinstance(found, IntegerType), "int"
    elif name == "timestamp":
        right, allowed = isinstance(found, TimestampType), "timestamp"
        if isinstance(found, TimestampNTZType):
            # A wall clock without a zone is no instant, and Kafka's timestamps are instants.
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
