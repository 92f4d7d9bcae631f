"""Counts purchases by shop and minute, exactly once: ``python spark_pipeline.py BROKERS SOURCE TARGET CHECKPOINT``.

The source has JSON such as {"shop": "north", "amount": 5, "at": "2026-01-31T12:00:05Z"}. Start the session with Spark's
Kafka connector: spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION
"""

import sys
import threading
from typing import Any

from pyspark.sql import SparkSession, functions
from pyspark.sql.streaming.listener import StreamingQueryListener

from cyproducer.spark import exactly_once


class Progress(StreamingQueryListener):
    """Prints one line for each micro-batch. `ended` is set at the end of the query."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def onQueryStarted(self, event: Any) -> None:
        print(f"query {event.id} has started")

    def onQueryProgress(self, event: Any) -> None:
        print(f"micro-batch {event.progress.batchId}: {event.progress.numInputRows} rows read", flush=True)

    def onQueryIdle(self, event: Any) -> None:
        pass

    def onQueryTerminated(self, event: Any) -> None:
        print(f"query {event.id} has ended: {event.exception or 'without an error'}", flush=True)
        self.ended.set()


def main(brokers: str, source: str, target: str, checkpoint: str, until_end: str = "") -> None:
    """Write the new count and sum of each window that changes, until the query is stopped.

    until_end: any text: end when everything that is in the source now is written.
    """
    spark = SparkSession.builder.appName("cyproducer-pipeline").getOrCreate()
    progress = Progress()
    spark.streams.addListener(progress)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", brokers)
        # A source that is written in transactions as well is read without their aborted records.
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .load()
    )
    purchases = records.select(
        functions.from_json(functions.col("value").cast("string"), "shop string, amount long, at timestamp").alias("p")
    ).select("p.*")
    windows = (
        purchases.withWatermark("at", "10 minutes")
        .groupBy(functions.window("at", "1 minute"), "shop")
        .agg(functions.count("*").alias("purchases"), functions.sum("amount").alias("amount"))
    )
    rows = windows.select(
        functions.col("shop").alias("key"),
        functions.to_json(functions.struct("shop", "window.start", "purchases", "amount")).alias("value"),
    )
    try:
        with exactly_once(id="purchases-by-minute", topic=target, bootstrap_servers=brokers) as sink:
            query = rows.writeStream.outputMode("update").foreachBatch(sink).option("checkpointLocation", checkpoint)
            if until_end:
                query = query.trigger(availableNow=True)
            query.start().awaitTermination()
        progress.ended.wait(10)  # Spark tells its listeners a short time later
    finally:
        spark.streams.removeListener(progress)


if __name__ == "__main__":
    main(*sys.argv[1:])
