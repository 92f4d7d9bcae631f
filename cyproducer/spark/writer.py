"""The batch writer: ``df.write.format("cyproducer")``, and what it shares with the streaming one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from cyproducer.spark.delivery import deliver, producer_for
from cyproducer.spark.options import parse_options
from cyproducer.spark.schema import check_columns

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

logger = logging.getLogger("cyproducer.spark")


@dataclass(frozen=True)
class Plan:
    """All that a task needs, pickled to the executors. Its repr shows no setting: some are secrets."""

    settings: dict[str, Any] = field(repr=False)
    topic: str | None


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """A finished task: acknowledged rows, bytes of their keys and values, rows by Kafka partition number."""

    rows: int
    bytes: int
    partitions: dict[int, int]


def plan_of(options: dict[str, str], schema: StructType, overwrite: bool) -> Plan:
    """Check all that can be checked without a broker; ValueError (KafkaConfigurationError is one)."""
    if overwrite:
        raise ValueError(
            "cyproducer cannot overwrite a Kafka topic; use mode('append'), in streaming outputMode('append')"
        )
    settings, topic = parse_options(options)
    check_columns(schema, topic)
    return Plan(settings, topic)


def write_task(plan: Plan, batches: Iterator[pyarrow.RecordBatch]) -> TaskCommit:
    """One task, on an executor: send every row and wait for its acknowledgement."""
    done = deliver(producer_for(plan.settings), batches, plan.topic)
    return TaskCommit(done.rows, done.bytes, done.partitions)


def log_commit(messages: list[Any], where: str) -> None:
    """Say what was written. There is nothing to commit: a task that ended well has its rows in Kafka."""
    tasks = [message for message in messages if message is not None]
    logger.info(
        "%s written: %d rows, %d bytes of keys and values, %d tasks",
        where, sum(task.rows for task in tasks), sum(task.bytes for task in tasks), len(tasks),
    )


def log_abort(messages: list[Any], where: str) -> None:
    """Say what stays in Kafka: a row cannot be taken back, and a repeated job sends it again."""
    tasks = [message for message in messages if message is not None]
    logger.warning(
        "%s failed: %d of %d tasks had finished, and their %d rows stay in Kafka (delivery is at least once)",
        where, len(tasks), len(messages), sum(task.rows for task in tasks),
    )


class KafkaBatchWriter(DataSourceArrowWriter):
    """Writes a DataFrame to Kafka, at least once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> TaskCommit:
        """Send one partition of the DataFrame; raise when a row is not acknowledged."""
        return write_task(self.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Every task is done."""
        log_commit(messages, "batch")

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """The job failed."""
        log_abort(messages, "batch")


def batch_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> KafkaBatchWriter:
    """Check options, columns and mode on the driver; the result is pickled to the executors."""
    return KafkaBatchWriter(plan_of(options, schema, overwrite))
