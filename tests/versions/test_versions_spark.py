"""Tests Spark with a driver of one version and Python workers of another one."""

import stat
import sys
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.consumer import read_topic
from support.process import run_script
from support.spark_environment import spark_environment
from support.spark_jvm import short_lived_jvm
from versions.conftest import Version

pytestmark = pytest.mark.timeout(1800)  # the first test builds the former version

DRIVER = """
    import sys
    from pyspark.sql import SparkSession
    from cyproducer.spark import exactly_once, write
    way, servers, topic, worker, java, directory = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        .config("spark.pyspark.python", worker).config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.local.dir", directory).config("spark.sql.warehouse.dir", directory)
        .getOrCreate()
    )

    def rows(first):
        return spark.range(first, first + 1000, 1, 3).selectExpr("CAST(id AS STRING) AS value")

    settings = {"bootstrap_servers": servers, "sender_idle_timeout_ms": 200}
    if way == "alone":
        options = {"kafka.bootstrap.servers": servers, "topic": topic, "kafka.sender_idle_timeout_ms": "200"}
        rows(0).write.format("cyproducer").options(**options).mode("append").save()
        assert write(rows(1000), topic=topic, **settings).rows == 1000
    else:
        assert write(rows(0), topic=topic, atomic=True, **settings).rows == 1000
        rows(1000).write.text(directory + "/rows")
        with exactly_once(id=topic, topic=topic, **settings) as sink:
            stream = spark.readStream.text(directory + "/rows").writeStream.foreachBatch(sink)
            stream = stream.option("checkpointLocation", directory + "/checkpoint").trigger(availableNow=True)
            stream.start().awaitTermination()
    spark.stop()
"""


@pytest.mark.pooled_sockets
@pytest.mark.parametrize("way", ["alone", "transactions"])
def test_workers_of_another_version(
    pair: tuple[Version, Version], way: str, kafka: KafkaCluster, topic: str, tmp_path: Path, runtime_dir: Path
) -> None:
    """What the driver ships is pickled by one version and used by the other. Each row is in the topic once."""
    driver, workers = pair
    worker = tmp_path / "worker"
    worker.write_text(f'#!/bin/sh\nPYTHONPATH={workers.root}:"$PYTHONPATH" exec {sys.executable} "$@"\n')
    worker.chmod(worker.stat().st_mode | stat.S_IXUSR)
    environment = {**spark_environment(), **driver.environment}
    arguments = (way, kafka.bootstrap_servers, topic, worker, short_lived_jvm(), tmp_path / "spark")
    run_script(DRIVER, *arguments, env=environment, timeout=300)
    values = sorted(int(value) for value in read_topic(kafka.bootstrap_servers, topic, 2000).value)
    assert values == list(range(2000))
