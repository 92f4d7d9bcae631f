"""The streaming writer: ``df.writeStream.format("cyproducer")``. PySpark has Arrow ones since 4.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from cyproducer.spark.writer import Plan, TaskCommit, log_abort, log_commit, plan_of, write_task

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a query to Kafka, at least once: a replayed micro-batch is sent again.

    Spark makes a second one for commit and abort, in another process, so it holds nothing but the plan.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[pyarrow.RecordBatch]) -> TaskCommit:
        """Send one partition of the micro-batch; raise when a row is not acknowledged."""
        return write_task(self.plan, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Every task of the micro-batch is done."""
        log_commit(messages, f"micro-batch {batchId}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch failed or the query was stopped in it."""
        log_abort(messages, f"micro-batch {batchId}")


def stream_writer(options: dict[str, str], schema: StructType, overwrite: bool) -> KafkaStreamWriter:
    """Check options, columns and mode on the driver; the result is pickled to the executors."""
    return KafkaStreamWriter(plan_of(options, schema, overwrite))
