"""Runs the Spark part of the demo: ``python -m demo.spark_jobs BROKERS TOPICS DIRECTORY``, in a process of its own.

DIRECTORY has the directories `tree`, with the files of the batch job, and `waves`, whose directories hold the files of
the streaming query. TOPICS is what the names of the topics begin with.
"""

import sys
from pathlib import Path
from typing import Any

_IDENTIFIERS = "regexp_extract_all(decode(content, 'ISO-8859-1'), '(?<![0-9A-Za-z_])[A-Za-z_][0-9A-Za-z_]*', 0)"


def start_spark(scratch: Path) -> Any:
    """Return a session with two threads and all its files in `scratch`."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("cyproducer-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        # Many small files in one task, which reads each file as a whole.
        .config("spark.sql.files.openCostInBytes", "65536")
        .config("spark.sql.files.minPartitionNum", "1")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f'"-Djava.io.tmpdir={scratch}" -XX:+UseSerialGC')
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def batch(spark: Any, brokers: str, topic: str, tree: Path) -> None:
    """Count the identifiers of all files, and write one row for each of them."""
    files = spark.read.format("binaryFile").load(str(tree))
    words = files.selectExpr(f"explode({_IDENTIFIERS}) AS key").groupBy("key").count()
    rows = words.selectExpr("key", "CAST(count AS STRING) AS value")
    rows.write.format("cyproducer").mode("append").option("kafka.bootstrap.servers", brokers).option(
        "topic", topic
    ).save()


def stream(spark: Any, brokers: str, topic: str, scratch: Path) -> None:
    """Write the lines of files that arrive in waves. For each wave the query continues from its checkpoint."""
    arrivals = scratch / "arrivals"
    arrivals.mkdir()
    lines = spark.readStream.text(str(arrivals)).selectExpr(
        "_metadata.file_name AS key",
        "CAST(value AS BINARY) AS value",
        "array(struct('job' AS key, CAST('stream' AS BINARY) AS value)) AS headers",
    )
    for wave in sorted((scratch / "waves").iterdir()):
        for file in wave.iterdir():
            file.rename(arrivals / file.name)
        query = lines.writeStream.format("cyproducer").option("kafka.bootstrap.servers", brokers)
        query = query.option("topic", topic).option("checkpointLocation", str(scratch / "checkpoint"))
        query.trigger(availableNow=True).start().awaitTermination()


def main(brokers: str, topics: str, directory: str) -> None:
    """Run both jobs."""
    scratch = Path(directory)
    spark = start_spark(scratch)
    batch(spark, brokers, f"{topics}.identifiers", scratch / "tree")
    stream(spark, brokers, f"{topics}.stream", scratch)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
