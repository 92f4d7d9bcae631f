"""Runs one streaming query in a process that a test kills: text files -> `exactly_once`, until the file ``stop``.

The number of Spark's partitions of a micro-batch is drawn anew each time. `--die` is METHOD:before or METHOD:after, of
the class Owner: the process kills itself there, at the first call. With `--hold`, a task writes the file ``reached``
when half of its rows are read, and waits for the file ``released``.

With PYSPARK_GATEWAY_PORT and PYSPARK_GATEWAY_SECRET, the query runs in the session of a JVM that has started already,
and that stays when this process is killed.
"""

import argparse
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import DataFrame, SparkSession

from cyproducer.spark import exactly_once
from cyproducer.spark.owner import Owner


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("brokers")
    parser.add_argument("topic")
    parser.add_argument("directory", type=Path, help="with the directory `in`; for checkpoint, scratch and `stop`")
    parser.add_argument("--master", default="local[2, 2]", help="Spark's master")
    parser.add_argument("--die", help="METHOD:before or METHOD:after")
    parser.add_argument("--hold", action="store_true", help="let the first task wait")
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


def holding(reached: str, released: str) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function for mapInArrow that holds the first task."""

    def hold(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if TaskContext.get().partitionId() == 0:
                time.sleep(0.3)  # what was yielded is sent meanwhile
                Path(reached).touch()
                while not os.path.exists(released):
                    time.sleep(0.02)
            yield batch.slice(half)

    return hold


def running_session() -> SparkSession:
    """Return the session of a JVM that runs already."""
    gateway = launch_gateway()
    jvm = gateway.jvm
    context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    conf = SparkConf(_jvm=jvm, _jconf=context.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=context, conf=conf))


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
    is_running = "PYSPARK_GATEWAY_PORT" in os.environ
    spark = running_session() if is_running else session(chosen.master, scratch)
    if chosen.die:
        die(chosen.die)
    function = exactly_once(
        id=chosen.topic,
        topic=chosen.topic,
        bootstrap_servers=chosen.brokers,
        request_timeout_ms=10_000,
        sender_idle_timeout_ms=1_000,
        transaction_timeout_ms=600_000 if chosen.hold else 60_000,
    )
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(chosen.directory / "in"))

    def write(df: DataFrame, number: int) -> None:
        drawn = df.repartition(random.randint(1, 4))
        if chosen.hold:
            hold = holding(str(chosen.directory / "reached"), str(chosen.directory / "released"))
            drawn = drawn.mapInArrow(hold, df.schema)
        function(drawn, number)

    query = (
        rows.writeStream.foreachBatch(write).option("checkpointLocation", str(chosen.directory / "checkpoint")).start()
    )
    (chosen.directory / "started").touch()
    while not (chosen.directory / "stop").exists():
        if query.awaitTermination(1):
            raise SystemExit("the query has ended")
    query.processAllAvailable()
    query.stop()
    function.close()
    if not is_running:
        spark.stop()


if __name__ == "__main__":
    main()
