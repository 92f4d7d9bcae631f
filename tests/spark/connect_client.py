"""Uses cyproducer over Spark Connect, as a client in a process of its own: ACTION SERVER BROKERS TOPIC DIRECTORY.

`repeat` writes rows whose shuffle file the test loses: the task that reads them says in a file where it runs, and waits
for another file.

It prints what it finds, as JSON. A process that has had a classic session cannot have one of Connect.
"""

import dataclasses
import json
import logging
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from cyproducer.spark import check_session, exactly_once, write

OPTION, ARGUMENT, VISIBLE = "marked-secret-option", "marked-secret-argument", "a-client-id-that-can-be-seen"
# From docs/guides/spark_secured.md.
REDACTION = r'(?i)key: "[^"]*(?:password|secret|jaas)[^"]*"\s+value: "(?:[^"\\]|\\.)*"'
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
    if action == "secrets":
        return secrets(spark, numbers, topic, settings)
    if action == "repeat":
        return repeat(spark, topic, settings, directory)
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


def secrets(spark, numbers, topic, settings):
    """Give secrets as options and as arguments. The listener needs none."""
    frame = numbers(0, 10)
    for regex in ("", REDACTION):
        if regex:
            spark.conf.set("spark.sql.redaction.string.regex", regex)
        sink = frame.write.format("cyproducer").mode("append").option("topic", topic)
        sink = sink.option("kafka.bootstrap.servers", settings["bootstrap_servers"])
        sink = sink.option("kafka.client.id", f"{VISIBLE}-{bool(regex)}").option("kafka.sender.idle.timeout.ms", "500")
        sink.option("kafka.sasl.password", f"{OPTION}-{bool(regex)}").save()
    spark.conf.unset("spark.sql.redaction.string.regex")
    write(frame, topic, sasl_plain_password=ARGUMENT, **settings)
    write(frame, topic, atomic=True, sasl_plain_password=ARGUMENT, **settings)
    return None


def repeat(spark, topic, settings, directory):
    reached, released = str(Path(directory, "reached")), str(Path(directory, "released"))

    def slowly(batches):
        import time

        time.sleep(0.2)
        yield from batches

    def hold(batches):
        import os
        import time

        for number, batch in enumerate(batches):
            yield batch
            if not number and not os.path.exists(reached):
                with open(reached + ".new", "w") as file:
                    file.write(os.environ["SPARK_LOCAL_IP"])
                os.rename(reached + ".new", reached)
                while not os.path.exists(released):
                    time.sleep(0.02)

    rows = spark.range(0, 200_000, 1, 20).selectExpr("CAST(id AS STRING) AS value", "sha2(value, 512) AS key")
    held = rows.mapInArrow(slowly, rows.schema).repartition(1).mapInArrow(hold, rows.schema)
    logging.basicConfig(level=logging.WARNING, filename=Path(directory, "log"))
    return write(held, topic, atomic=True, **settings).rows


if __name__ == "__main__":
    print("RESULT", json.dumps(main(*sys.argv[1:])))
