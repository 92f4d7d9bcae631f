"""The Spark of a benchmark: one session of two threads that writes a cached DataFrame on demand.

``python -m bench.spark_worker JSON``; a line {"sink", "bootstrap", "topic"} on its standard input is a write,
answered with what it took; any other line ends it.
"""

import json
import os
import sys
import time
from typing import Any

from bench.processes import ROOT
from bench.spark_jars import spark_kafka_jars

HEX_OF_MD5 = 32


def session() -> Any:
    """A local session that has the built-in sink's jars; its Python workers find this tree."""
    import pyspark
    from pyspark.sql import SparkSession

    # Spark's Python workers start without the current directory on their path.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # By name: a path with blanks breaks the shell command by which Spark checks for an interpreter.
    directory, name = os.path.split(sys.executable)
    os.environ["PATH"] = os.pathsep.join([directory, os.environ.get("PATH", os.defpath)])
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = name
    os.environ["SPARK_HOME"] = os.path.dirname(pyspark.__file__)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master("local[2]")
        .appName("cyproducer-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.jars", ",".join(map(str, spark_kafka_jars())))
        .config("spark.driver.memory", "2g")
        .getOrCreate()
    )


def rows_of(spark: Any, rows: int, value_bytes: int) -> Any:
    """Rows of a short key and a value of printable bytes, materialised in the cache."""
    from pyspark.sql import functions as f

    digests = -(-value_bytes // HEX_OF_MD5)
    text = f.concat(*[f.md5((f.col("id") + i).cast("string").cast("binary")) for i in range(digests)])
    frame = (
        spark.range(0, rows, 1, 2)
        .select(
            f.col("id").cast("string").cast("binary").alias("key"),
            f.substring(text, 1, value_bytes).cast("binary").alias("value"),
        )
        .cache()
    )
    frame.count()
    return frame


def noop_arrow() -> type:
    """A Python data source that takes the Arrow batches and drops them: as fast as a Python sink can be."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Any) -> WriterCommitMessage:
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class NoopArrow(DataSource):
        @classmethod
        def name(cls) -> str:
            return "noop_arrow"

        def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
            return Writer()

    return NoopArrow


def write(frame: Any, sink: str, bootstrap: str, topic: str, own: dict[str, Any]) -> None:
    """One batch job, with the settings that all contestants have."""
    writer = frame.write.format(sink).mode("append").option("topic", topic)
    if sink in ("noop", "noop_arrow"):
        writer.save()
        return
    settings = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": "true",
        "linger.ms": "5",
        "batch.size": "65536",
    }
    if sink == "cyproducer":
        settings |= {"sender.idle.timeout.ms": "120000", **{name: str(value) for name, value in own.items()}}
    for name, value in settings.items():
        writer = writer.option(f"kafka.{name}", value)
    writer.save()


def main() -> None:
    """Make the session and the rows, say so, and write until told to end."""
    order = json.loads(sys.argv[1])
    # Spark prints to its standard output; the answers go where nobody else writes.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = session()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(noop_arrow())
    frame = rows_of(spark, order["rows"], order["value_bytes"])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        if not line.startswith("{"):
            break
        job = json.loads(line)
        begin = time.monotonic_ns()
        write(frame, job["sink"], job["bootstrap"], job["topic"], order["settings"])
        end = time.monotonic_ns()
        print(json.dumps({"begin_ns": begin, "end_ns": end}), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
