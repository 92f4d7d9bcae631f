"""Writes DataFrames to Kafka: ``df.write.format("cyproducer")``. The streaming writer uses its functions too."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from cyproducer.spark.delivery import deliver, producer_for
from cyproducer.spark.options import parse_options, source_options
from cyproducer.spark.schema import check_columns

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

logger = logging.getLogger("cyproducer.spark")


class NotWrittenError(RuntimeError):
    """Spark is about to record rows as written although it never passed them to this sink."""


@dataclass(frozen=True)
class Plan:
    """Everything that a task needs, pickled for the executors. Its repr shows no settings, which may be secrets."""

    settings: dict[str, Any] = field(repr=False)
    topic: str | None
    columns: tuple[str, ...]


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """A finished task: number of acknowledged rows, bytes of keys and values, rows by Kafka partition number."""

    rows: int
    bytes: int
    partitions: dict[int, int]


def plan_of(options: dict[str, str], schema: StructType) -> Plan:
    """Check everything that can be checked without a broker, and return the plan.

    Raise ValueError, of which KafkaConfigurationError is a subclass.
    """
    settings, topic = parse_options(options)
    columns = check_columns(schema, topic)
    _warn_of_ignored("option", source_options(options))
    _warn_of_ignored("column", tuple(name for name in schema.names if name not in columns))
    return Plan(settings, topic, columns)


@functools.cache
def _warn_of_ignored(kind: str, names: tuple[str, ...]) -> None:
    """Warn once per process: Spark makes a plan twice in each micro-batch."""
    if names:
        logger.warning("ignored, because only Spark's Kafka source uses it: %s %s", kind, ", ".join(names))


def write_task(plan: Plan, batches: Iterator[pyarrow.RecordBatch]) -> TaskCommit:
    """Run one task on an executor: send every row and wait for its acknowledgement."""
    selected = (batch.select(plan.columns) for batch in batches)
    done = deliver(producer_for(plan.settings), selected, plan.topic)
    return TaskCommit(done.rows, done.bytes, done.partitions)


def log_commit(messages: list[Any], where: str) -> None:
    """Log what was written. There is nothing to commit, because the rows of a finished task are in Kafka.

    Raise NotWrittenError if a task has no message, because then Spark has not called `write()` for its rows.
    """
    tasks = [message for message in messages if message is not None]
    if len(tasks) < len(messages):
        raise NotWrittenError(
            f"{where}: {len(messages) - len(tasks)} of {len(messages)} tasks ended without a call of write(), so "
            "their rows are not in Kafka. Spark never calls it with trigger(continuous=...), which needs a "
            "sink on the JVM. Stop this query and start it with trigger(processingTime=...) or "
            "trigger(availableNow=True) and a new checkpoint, because this checkpoint counts the offsets as read"
        )
    logger.info(
        "%s written: %d rows, %d bytes of keys and values, %d tasks",
        where,
        sum(task.rows for task in tasks),
        sum(task.bytes for task in tasks),
        len(tasks),
    )


def log_abort(messages: list[Any], where: str) -> None:
    """Log what stays in Kafka. A row cannot be removed, and a repeated job sends it again."""
    tasks = [message for message in messages if message is not None]
    logger.warning(
        "%s failed: %d of %d tasks had finished, and their %d rows stay in Kafka (delivery is at least once)",
        where,
        len(tasks),
        len(messages),
        sum(task.rows for task in tasks),
    )


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame to Kafka, at least once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> TaskCommit:
        """Send one partition of the DataFrame. Raise DeliveryFailedError if a row is not acknowledged."""
        return write_task(self.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log that every task is finished."""
        log_commit(messages, "batch")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Log that the job failed."""
        log_abort(messages, "batch")


def batch_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> KafkaBatchWriter:
    """Check options, columns and mode on the driver, and return a writer, which is pickled for the executors."""
    if overwrite:
        raise ValueError("cyproducer cannot overwrite a Kafka topic; use mode('append')")
    return KafkaBatchWriter(plan_of(options, schema))
