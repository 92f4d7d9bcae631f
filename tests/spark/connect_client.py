"""Uses cyproducer over Spark Connect, as a client in a process of its own: ACTION SERVER BROKERS TOPIC DIRECTORY.

It prints what it finds, as JSON. A process that has had a classic session cannot have one of Connect.
"""

import dataclasses
import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from cyproducer.spark import check_session, exactly_once, write

SETTINGS = {"delivery_timeout_ms": 20_000, "request_timeout_ms": 10_000, "sender_idle_timeout_ms": 500}


def main(action: str, server: str, brokers: str, topic: str, directory: str) -> object:
    spark = SparkSession.builder.remote(server).getOrCreate()
    settings = {"bootstrap_servers": brokers, **SETTINGS}

    def numbers(first: int, last: int):
        return spark.range(first, last, 1, 3).selectExpr("CAST(id AS STRING) AS value")

    if action == "check":
        return [dataclasses.asdict(each) for each in check_session(spark)]
    if action == "write":
        rows = write(numbers(0, 100), topic, **settings).rows
        rows += write(numbers(100, 200), topic, atomic=True, **settings).rows
        sink = numbers(200, 300).write.format("cyproducer").mode("append").option("topic", topic)
        sink.option("kafka.bootstrap.servers", brokers).option("kafka.sender.idle.timeout.ms", "500").save()
        return rows
    checkpoint = str(Path(directory, "checkpoint"))
    given = {} if action == "stream-without-checkpoint" else {"checkpoint": checkpoint}
    function = exactly_once(id=topic, topic=topic, **given, **settings)
    source = spark.readStream.option("maxFilesPerTrigger", 1).text(str(Path(directory, "in")))
    query = source.writeStream.foreachBatch(function).option("checkpointLocation", checkpoint)
    query = query.trigger(availableNow=True).start()
    try:
        query.awaitTermination(100)
    except Exception as error:
        return str(error)
    return query.isActive


if __name__ == "__main__":
    print("RESULT", json.dumps(main(*sys.argv[1:])))
