"""Makes an archive of Spark's classes, with which the JVMs of the tests start with half of the CPU time.

It is a dynamic archive of class data sharing, which Java has since version 13. A JVM ignores one that does not fit.
"""

import fcntl
import functools
import hashlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pyspark

from cyproducer.devkafka.maven import cache_directory, find_java

MAKE_S = 300.0


@functools.cache
def class_archive() -> Path | None:
    """Return the archive for this Java and this Spark. The first call makes it, in half a minute.

    Return None, with a warning, if it cannot be made. It stays in the user's cache.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    java = subprocess.run([find_java(), "-version"], capture_output=True, check=True).stderr
    # A JVM compares the paths and the times of the jars.
    newest = max(path.stat().st_mtime_ns for path in jars.iterdir())
    number = hashlib.sha256(b"\0".join([java, os.fsencode(jars), str(newest).encode()])).hexdigest()[:16]
    archive = cache_directory() / f"spark-classes-{number}.jsa"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with open(archive.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            made = archive.with_suffix(".new")
            made.unlink(missing_ok=True)
            command = [sys.executable, __file__, str(made)]
            run = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_S, cwd=archive.parent)
            if not made.exists():
                warnings.warn(f"no archive of Spark's classes could be made: {run.stderr[-1000:]}", stacklevel=2)
                return None
            made.rename(archive)
    return archive


def _make(archive: str) -> None:
    """Run a session that has a batch and a stream; its JVM writes the archive at its end."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", f"-XX:+UseSerialGC -XX:ArchiveClassesAtExit={archive}")
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
    _make(sys.argv[1])
