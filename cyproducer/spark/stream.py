"""Writes streams to Kafka: ``df.writeStream.format("cyproducer")``. PySpark supports Arrow writers since 4.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from cyproducer.spark.writer import Plan, TaskCommit, log_abort, log_commit, plan_of, write_task

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query to Kafka, at least once: a repeated micro-batch is sent again.

    Spark creates a second writer for commit and abort, in another process, so a writer holds nothing but the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> TaskCommit:
        """Send one partition of the micro-batch. Raise DeliveryFailedError if a row is not acknowledged."""
        return write_task(self.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log that every task of the micro-batch is finished."""
        log_commit(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Log that the micro-batch failed, or that the query was stopped during it."""
        log_abort(messages, f"micro-batch {batchId}")


def stream_writer(options: dict[str, str], schema: StructType) -> KafkaStreamWriter:
    """Check options and columns on the driver, and return a writer, which is pickled for the executors."""
    return KafkaStreamWriter(plan_of(options, schema))
