"""Gives options for JVMs of Spark that run for seconds. Run as a script, it makes the archive of Spark's classes."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from devkafka.class_archive import class_archive, making, using
from devkafka.maven import find_java

from support.spark_environment import spark_environment

MAKE_S = 300.0
FAST_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@functools.cache
def short_lived_jvm() -> str:
    """Return the compiler that is fast, and an archive of classes. The first call of all makes it, in half a minute."""
    jars = Path(pyspark.__file__).parent / "jars"
    archive = class_archive(f"spark-{pyspark.__version__}", str(find_java()), jars, _run)
    return " ".join([FAST_START, *using(archive)])


def _run(archive: Path) -> bool:
    """Make the archive in processes of its own: a process can have one JVM of Spark only."""
    environment = {**os.environ, **spark_environment()}
    tests = Path(__file__).parents[1]
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], str(tests), str(tests.with_name("tools"))])
    with tempfile.TemporaryDirectory() as place, open(Path(place) / "log", "w+") as log:
        process = subprocess.Popen(
            [sys.executable, __file__, str(archive)],
            env=environment,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            status = process.wait(MAKE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        if status:
            raise OSError(log.read()[-1000:])
    return True


def _make(archive: str) -> None:
    """Run a session that has a batch and a stream; its JVM writes the archive at its end."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", f"{FAST_START} {making(Path(archive))}")
        .getOrCreate()
    )
    frame = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value")
    frame.mapInArrow(lambda batches: batches, frame.schema).groupBy("value").count().collect()
    rows = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    query = rows.writeStream.foreachBatch(lambda batch, number: batch.collect() and None).start()
    query.processAllAvailable()
    query.stop()
    spark.stop()
    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    _make(sys.argv[1])
