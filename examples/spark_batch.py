"""Writes a DataFrame to Kafka: ``python spark_batch.py localhost:9092 topic``."""

import sys

from pyspark.sql import SparkSession


def main(brokers: str, topic: str) -> None:
    """Send the squares of 0..99999, keyed by their last digit, and print how many were sent."""
    spark = SparkSession.builder.appName("cyproducer-batch").getOrCreate()
    squares = spark.range(100_000).selectExpr(
        "CAST(id % 10 AS STRING) AS key",
        "to_json(struct(id, id * id AS square)) AS value",
        "current_timestamp() AS timestamp",
    )
    (
        squares.write.format("cyproducer")
        .mode("append")
        .option("kafka.bootstrap.servers", brokers)
        .option("kafka.linger.ms", 20)
        .option("topic", topic)
        .save()
    )
    # save() returns when every row is acknowledged, and raises when one is not.
    print(f"{squares.count()} rows written to {topic}")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
