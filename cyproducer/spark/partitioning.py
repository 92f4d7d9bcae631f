"""Computes the Kafka partition of rows on Spark's side, and moves the rows of a partition into one task."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cyproducer.producer.core.native import partition_for_key

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["partition_for", "repartitioned"]

MAX_TASKS = 200
"""The most tasks among which the partitions of a topic are divided."""


def partition_for(key: bytes | str, partitions: int) -> int:
    """Return the partition of a key, in a topic with so many partitions: murmur2, as Kafka's Java producer has it.

    A str counts as its UTF-8. Rows that are grouped or windowed by this number keep their order for each key, also if
    another producer writes some of them. Raise TypeError for another key, ValueError unless `partitions` is positive.
    """
    return partition_for_key(key.encode() if isinstance(key, str) else key, partitions)


def repartitioned(df: DataFrame, topic: str | None, count: int, ignore_keys: bool) -> DataFrame:
    """Return the rows so that one task has all rows of a Kafka partition.

    topic         the topic of all rows; None: the column ``topic`` gives it, and one task gets all rows of a topic
    count         the number of partitions of `topic`
    ignore_keys   keys do not choose the partition

    Rows without a partition get the one that the producer would choose by the key, and without a key one by the value.
    """
    if topic is None:
        return df.repartition("topic")
    names = [name for name in df.columns if name != "partition"]

    def place(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        for batch in batches:
            yield _placed(batch, names, count, ignore_keys)

    schema = ", ".join(f"`{name}` {df.schema[name].dataType.simpleString()}" for name in names)
    placed = df.mapInArrow(place, f"{schema}, partition int")
    return placed.repartition(min(count, MAX_TASKS), "partition")


def _as_bytes(column: pyarrow.Array) -> list[bytes | None]:
    """Return the elements as bytes: a string of Spark may have bytes that are not UTF-8."""
    found: list[bytes | None] = column.cast("large_binary").to_pylist()
    return found


def _placed(batch: pyarrow.RecordBatch, names: list[str], count: int, ignore_keys: bool) -> pyarrow.RecordBatch:
    """Return the batch with a complete column ``partition``."""
    import pyarrow
    import pyarrow.compute as compute

    # By the value: Spark may compute a part of the rows again, and a row must then get the same partition.
    values = _as_bytes(batch.column("value"))
    by_value = [0 if value is None else zlib.crc32(value) % count for value in values]
    found = pyarrow.array(by_value, type=pyarrow.int32())
    if "key" in batch.schema.names and not ignore_keys:
        keys = _as_bytes(batch.column("key"))
        by_key = [None if key is None else partition_for(key, count) for key in keys]
        found = compute.coalesce(pyarrow.array(by_key, type=pyarrow.int32()), found)
    if "partition" in batch.schema.names:
        found = compute.coalesce(batch.column("partition"), found)
    return pyarrow.record_batch([*(batch.column(name) for name in names), found], names=[*names, "partition"])
