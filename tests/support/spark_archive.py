"""Makes an archive of Spark's classes, with which the JVMs of the tests start with half of the CPU time."""

import contextlib
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

from cyproducer.devkafka.class_archive import class_archive, making

MAKE_S = 300.0


def spark_archive() -> Path | None:
    """Return the archive, which is in PySpark's directory, or None. The first call makes it, in half a minute."""
    return class_archive(Path(pyspark.__file__).parent / "jars", _run)


def _run(archive: Path) -> None:
    """Make the archive in a process of its own: one process can have one JVM of Spark."""
    command = [sys.executable, __file__, str(archive)]
    with tempfile.TemporaryDirectory() as place, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=MAKE_S, cwd=place)


def _make(archive: Path) -> None:
    """Run a session that has a batch and a stream; its JVM writes the archive at its end."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC {making(archive)}")
        .getOrCreate()
    )
    frame = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    frame.mapInArrow(lambda batches: batches, frame.schema).groupBy("value").count().collect()
    rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    query = rows.writeStream.foreachBatch(lambda batch, number: batch.collect() and None).start()
    query.processAllAvailable()
    query.stop()
    spark.stop()


if __name__ == "__main__":
    _make(Path(sys.argv[1]))
