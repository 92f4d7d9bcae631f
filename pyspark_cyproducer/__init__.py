"""Defines the data source ``cyproducer`` for PySpark, which finds this module without ``register()``.

PySpark imports every top-level module named ``pyspark_*`` when a session first uses a Python data source. An exception
during such an import breaks this lookup for the whole session. So this import never raises, even if a package is
missing, and imports only the class. The sink itself is imported by the first write, which reports any problem.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter
    from pyspark.sql.types import StructType

try:
    from pyspark.sql.datasource import DataSource
except Exception:
    # The lookup ignores a module without a class of this name.
    pass
else:

    class DefaultSource(DataSource):
        """The sink of ``df.write.format("cyproducer")`` and ``df.writeStream``: sends rows to Kafka, at least once.

        Columns and options are those of Spark's own Kafka sink; `cyproducer.spark` lists them. It is not a source:
        use Spark's ``format("kafka")`` to read.
        """

        @classmethod
        def name(cls) -> str:
            """Return the name for ``format()``."""
            return "cyproducer"

        def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
            """Check options and columns (on the driver, before any task) and return the batch writer."""
            try:
                # Imported here: Spark loads this module to find its data sources, also without PyArrow.
                from cyproducer.spark.writer import batch_writer
            except Exception as error:
                raise _unusable(error) from error
            return batch_writer(dict(self.options), schema, overwrite)

        def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
            """Check options and columns (on the driver, before any task) and return the streaming writer.

            `overwrite` is the output mode "complete": each micro-batch contains all rows of the result, and all are
            sent.
            """
            try:
                # Imported here, as in writer().
                from cyproducer.spark.stream import stream_writer
            except Exception as error:
                raise _unusable(error) from error
            return stream_writer(dict(self.options), schema)

    def _unusable(error: Exception) -> RuntimeError:
        return RuntimeError(
            "the Spark sink 'cyproducer' cannot be used: its import failed with "
            f"{type(error).__name__}: {error}. Install cyproducer with its extra 'spark' (PySpark 4.1 or later, "
            "pyarrow 18 or later) on the driver and on every executor."
        )
