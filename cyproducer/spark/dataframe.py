"""Writes a DataFrame to Kafka with a function, in any thread and with every Spark from 3.5 on: `write`.

It uses mapInArrow and no Python data source. So it needs no discovery, and it also works in foreachBatch, in the output
mode update, and over Spark Connect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cyproducer.config.kinds import is_topic_name
from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark.delivery import deliver, producer_for
from cyproducer.spark.options import REFUSED, TOPIC_NAMES

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame

__all__ = ["WriteResult", "write"]

_ROWS_OF_A_TASK = "rows bigint, bytes bigint, partitions map<int,bigint>"


@dataclass(frozen=True)
class WriteResult:
    """What `write` has written.

    rows         number of rows, all of which are acknowledged
    bytes        bytes of their keys and values
    partitions   number of rows by number of the Kafka partition, summed up over the topics
    """

    rows: int
    bytes: int
    partitions: dict[int, int]


def write(df: DataFrame, topic: str | None = None, **settings: Any) -> WriteResult:
    """Send all rows of a DataFrame to Kafka, and return when all are acknowledged.

    df         columns as for ``format("cyproducer")``: ``value``, ``key``, ``headers``, ``partition``, ``timestamp``,
               ``topic``
    topic      the topic of all rows; None: the column ``topic`` gives it
    settings   settings of `KafkaProducer` by their names, such as ``bootstrap_servers`` and ``linger_ms``; plain values
               only, without serializers, interceptors and objects

    Delivery is at least once: a task that Spark repeats sends all of its rows again.

    Raise ValueError for wrong columns, KafkaConfigurationError (a ValueError) for wrong settings, both before any task
    starts. If a row is not acknowledged, its task fails with DeliveryFailedError. When Spark has repeated the task for
    the last time, it raises its own error with that text.
    """
    from cyproducer.spark.schema import check_columns  # imported here: this module is imported without PySpark, too

    given = _checked(topic, settings)
    columns = check_columns(df.schema, topic)

    def task(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        yield _run_task(given, topic, batches)

    written = df.select(*columns).mapInArrow(task, _ROWS_OF_A_TASK).collect()
    partitions: dict[int, int] = {}
    for row in written:
        for number, rows in row["partitions"].items():
            partitions[number] = partitions.get(number, 0) + rows
    return WriteResult(
        sum(row["rows"] for row in written), sum(row["bytes"] for row in written), dict(sorted(partitions.items()))
    )


def _checked(topic: str | None, settings: dict[str, Any]) -> dict[str, Any]:
    """Check everything that can be checked without a broker, and return the settings for the workers."""
    if topic is not None and (not isinstance(topic, str) or not is_topic_name(topic)):
        raise KafkaConfigurationError(f"topic is {topic!r}; {TOPIC_NAMES}")
    plain = {name: _plain(name, value) for name, value in settings.items()}
    Settings.parse(**plain)
    return plain


def _plain(name: str, value: Any) -> Any:
    """Return a setting's value as the workers need it: it is pickled, and chooses the producer that a worker keeps."""
    dotted = name.replace("_", ".")
    if dotted in REFUSED:
        raise KafkaConfigurationError(f"{name} is not supported by write(): {REFUSED[dotted]}")
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if value is not None and not isinstance(value, str | int | float):
        raise KafkaConfigurationError(
            f"{name} must be text, a number, True, False or None in write(), not {type(value).__name__}: "
            "it is passed to the workers of Spark"
        )
    return value


def _run_task(
    settings: dict[str, Any], topic: str | None, batches: Iterator[pyarrow.RecordBatch]
) -> pyarrow.RecordBatch:
    """Run one task on an executor. Return one row with what it has written."""
    import pyarrow

    done = deliver(producer_for(settings), batches, topic)
    counts = pyarrow.array([list(done.partitions.items())], type=pyarrow.map_(pyarrow.int32(), pyarrow.int64()))
    return pyarrow.record_batch(
        [pyarrow.array([done.rows], type=pyarrow.int64()), pyarrow.array([done.bytes], type=pyarrow.int64()), counts],
        names=["rows", "bytes", "partitions"],
    )
