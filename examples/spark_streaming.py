"""Streams text files to Kafka: ``python spark_streaming.py localhost:9092 topic DIRECTORY CHECKPOINT``."""

import sys

from pyspark.sql import SparkSession


def main(brokers: str, topic: str, directory: str, checkpoint: str) -> None:
    """Send each line of the files that are in, or appear in, the directory, keyed by the file's name."""
    spark = SparkSession.builder.appName("cyproducer-streaming").getOrCreate()
    lines = spark.readStream.text(directory).selectExpr(
        "_metadata.file_name AS key",
        "value",
        "array(struct('source' AS key, CAST('spark' AS BINARY) AS value)) AS headers",
    )
    query = (
        lines.writeStream.format("cyproducer")
        .option("kafka.bootstrap.servers", brokers)
        .option("topic", topic)
        # The query goes on from here after a restart; a micro-batch that was cut short is sent again.
        .option("checkpointLocation", checkpoint)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
