"""The Spark of a benchmark: one session of two threads that writes a cached DataFrame to Kafka on demand.

``python -m bench.spark_worker JSON``; a line {"sink", "bootstrap", "topic"} on its standard input is a write,
answered with what it took; any other line ends it.
"""

import json
import os
import sys
import time
from typing import Any

from bench.runner import ROOT
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


def write(frame: Any, sink: str, bootstrap: str, topic: str) -> None:
    """One batch job, with the settings that all contestants have."""
    writer = frame.write.format(sink).mode("append").option("topic", topic)
    settings = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": "true",
        "linger.ms": "5",
        "batch.size": "65536",
    }
    if sink == "cyproducer":
        settings["sender.idle.timeout.ms"] = "600000"
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
    frame = rows_of(spark, order["rows"], order["value_bytes"])
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        if not line.startswith("{"):
            break
        job = json.loads(line)
        begin = time.monotonic_ns()
        write(frame, job["sink"], job["bootstrap"], job["topic"])
        end = time.monotonic_ns()
        print(json.dumps({"begin_ns": begin, "end_ns": end}), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
