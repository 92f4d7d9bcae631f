"""Runs one streaming query in a process that a test kills: text files -> `exactly_once`, until the file ``stop``.

The number of Spark's partitions of a micro-batch is drawn anew each time. `--die` is METHOD:before or METHOD:after, of
the class Owner: the process kills itself there, at the first call.
"""

import argparse
import os
import random
import signal
from pathlib import Path

from pyspark.sql import SparkSession

from cyproducer.spark import exactly_once
from cyproducer.spark.owner import Owner


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("brokers")
    parser.add_argument("topic")
    parser.add_argument("directory", type=Path, help="with the directory `in`; for checkpoint, scratch and `stop`")
    parser.add_argument("--master", default="local[2, 2]", help="Spark's master")
    parser.add_argument("--die", help="METHOD:before or METHOD:after")
    return parser.parse_args()


def die(point: str) -> None:
    """Let this process kill itself before or after the first call of a method of Owner."""
    name, when = point.split(":")
    method = getattr(Owner, name)

    def killed(*given: object) -> object:
        if when == "after":
            method(*given)
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    setattr(Owner, name, killed)


def session(master: str, scratch: Path) -> SparkSession:
    spark = (
        SparkSession.builder.master(master)
        .appName("cyproducer-chaos")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.task.maxFailures", "2")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.local.dir", str(scratch / "local"))
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.driver.extraJavaOptions", f"-Djava.io.tmpdir={scratch} -XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    chosen = arguments()
    scratch = chosen.directory / "scratch"
    scratch.mkdir(exist_ok=True)
    spark = session(chosen.master, scratch)
    if chosen.die:
        die(chosen.die)
    function = exactly_once(
        id=chosen.topic,
        topic=chosen.topic,
        bootstrap_servers=chosen.brokers,
        request_timeout_ms=10_000,
        sender_idle_timeout_ms=1_000,
        transaction_timeout_ms=60_000,
    )
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(chosen.directory / "in"))
    query = (
        rows.writeStream.foreachBatch(lambda df, number: function(df.repartition(random.randint(1, 4)), number))
        .option("checkpointLocation", str(chosen.directory / "checkpoint"))
        .start()
    )
    (chosen.directory / "started").touch()
    while not (chosen.directory / "stop").exists():
        if query.awaitTermination(1):
            raise SystemExit("the query has ended")
    query.processAllAvailable()
    query.stop()
    function.close()
    spark.stop()


if __name__ == "__main__":
    main()
