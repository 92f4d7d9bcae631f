"""What PySpark finds by itself: the data source ``cyproducer``, without ``register()``.

PySpark imports every top-level module named ``pyspark_*`` when a session first meets a Python data source,
and one exception there breaks that lookup for the whole session. So this import never raises, whatever is
missing, and does nothing else: the sink is imported when a write asks for it, and what is wrong is said then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSource
except Exception:
    # Without a class of this name the lookup passes the module over.
    pass
else:

    class DefaultSource(DataSource):
        """The sink of ``df.write.format("cyproducer")`` and ``df.writeStream``: rows to Kafka, at least once.

        Columns and options are those of Spark's own Kafka sink; `cyproducer.spark` lists them. It does not
        read: that is Spark's ``format("kafka")``.
        """

        @classmethod
        def name(cls) -> str:
            """The name for ``format()``."""
            return "cyproducer"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            """Check options and columns (on the driver, before any task) and return the batch writer."""
            try:
                from cyproducer.spark.writer import batch_writer
            except Exception as error:
                raise _unusable(error) from error
            return batch_writer(dict(self.options), schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
            """Check options and columns (on the driver, before any task) and return the streaming writer."""
            try:
                from cyproducer.spark.stream import stream_writer
            except Exception as error:
                raise _unusable(error) from error
            return stream_writer(dict(self.options), schema, overwrite)

    def _unusable(error: Exception) -> RuntimeError:
        return RuntimeError(
            "the Spark sink 'cyproducer' cannot be used: importing it failed with "
            f"{type(error).__name__}: {error}. It needs the installed package cyproducer with its extra "
            "'spark' (PySpark 4.1 or later, pyarrow 18 or later) on the driver and on every executor."
        )
