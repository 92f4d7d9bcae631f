"""The columns a DataFrame may have for Kafka, checked on the driver, and the hand-over of a batch of them."""

from __future__ import annotations

import difflib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    import pyarrow

COLUMNS = ("value", "key", "headers", "partition", "timestamp", "topic")
HEADERS_TYPE = "array<struct<key:string,value:binary>>"


@dataclass(frozen=True)
class Layout:
    """Where each Kafka column lies in the DataFrame; made on the driver, used in every task."""

    columns: tuple[tuple[str, int], ...]
    """(name, index in the DataFrame), without a ``topic`` column that the option stands in for."""

    def for_kafka(self, batch: pyarrow.RecordBatch) -> pyarrow.RecordBatch:
        """The same rows as a batch that `send_arrow` takes: no row becomes a Python object.

        ``timestamp`` becomes int64 milliseconds, floored, null = now. A null ``topic`` raises ValueError.
        """
        import pyarrow

        arrays = []
        for name, index in self.columns:
            column = batch.column(index)
            if name == "timestamp":
                column = _milliseconds(column)
            elif name == "topic" and column.null_count:
                raise ValueError(
                    f"column 'topic' is null in {column.null_count} of {len(column)} rows; "
                    "fill it in, or name one topic for all rows with the option 'topic'"
                )
            arrays.append(column)
        return pyarrow.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.columns])

    def payload_bytes(self, batch: pyarrow.RecordBatch) -> int:
        """Bytes of all keys and values of a batch made by `for_kafka`."""
        import pyarrow.compute as compute

        total = 0
        for name in ("value", "key"):
            if name in batch.schema.names:
                total += compute.sum(compute.binary_length(batch.column(name)), min_count=0).as_py()
        return total


def layout_of(schema: StructType, topic: str | None) -> Layout:
    """Check the DataFrame's columns; raise ValueError that names every wrong one.

    Names are matched as Spark's own Kafka sink does, by exact case. Unlike there, a column that Kafka has no
    place for is an error, not dropped in silence. `topic` is the option: it overrides a column ``topic``.
    """
    problems = []
    seen: dict[str, int] = {}
    for index, field in enumerate(schema.fields):
        if field.name not in COLUMNS:
            problems.append(_unknown_column(field.name))
        elif field.name in seen:
            problems.append(f"column '{field.name}' is there twice")
        else:
            seen[field.name] = index
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
    return Layout(tuple(
        (name, seen[name]) for name in COLUMNS if name in seen and not (name == "topic" and topic is not None)
    ))


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
        [field.name.lower() for field in fields] == ["key", "value"]
        and isinstance(fields[0].dataType, StringType)
        and isinstance(fields[1].dataType, BinaryType)
    )


def _milliseconds(column: pyarrow.Array) -> pyarrow.Array:
    """Spark's microseconds as Kafka's milliseconds, floored (also before 1970), null = the current time."""
    import pyarrow
    import pyarrow.compute as compute

    # floor_temporal of a zoned type floors the local time; an instant is the same number without a zone.
    instants = column.view(pyarrow.timestamp("us"))
    floored = compute.floor_temporal(instants, unit="millisecond").cast(pyarrow.timestamp("ms"))
    stamps = floored.view(pyarrow.int64())
    if stamps.null_count:
        stamps = compute.fill_null(stamps, time.time_ns() // 1_000_000)
    return stamps
