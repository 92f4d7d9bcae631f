"""Tests the functions of cyproducer.spark on a standalone cluster of one master and two workers, each a host."""

import json
import os
import site
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

import pytest
from pyspark.sql.functions import udf
from support.process import kill_senders, senders, wait_until
from support.spark_cluster import SparkCluster
from support.spark_environment import spark_environment

import cyproducer
from cyproducer.spark import check_session, exactly_once, write

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)

AGAIN = "is written again"


@pytest.fixture(scope="module")
def second_host(short_tmp):
    """Yield the CYPRODUCER_RUNTIME_DIR of the second host."""
    path = Path(tempfile.mkdtemp(dir=short_tmp))
    yield path
    kill_senders(path)  # it stays until the time limit of the last transaction is over


@pytest.fixture(scope="module")
def cluster(nothing_left, spark_runtime, second_host, tmp_path_factory):
    with SparkCluster(tmp_path_factory.mktemp("cluster"), [spark_runtime, second_host]) as made:
        yield made


@pytest.fixture(scope="module")
def spark_master(cluster):
    return cluster.url


@pytest.fixture(scope="module")
def spark_settings():
    """Let an executor fetch shuffle files in many small pieces, and give up soon if one is lost."""
    return {
        "spark.reducer.maxSizeInFlight": "64k",
        "spark.shuffle.io.maxRetries": "1",
        "spark.shuffle.io.retryWait": "1s",
    }


@pytest.fixture
def spark_cluster(spark, cluster):
    """Return the cluster, when tasks run on both hosts."""

    def task(_):
        import os
        import time

        time.sleep(0.2)
        return os.environ["SPARK_LOCAL_IP"]

    where = udf(task, "string")
    frame = spark.range(0, 4, 1, 4).select(where("id").alias("host"))
    wait_until(lambda: len({row["host"] for row in frame.collect()}) == 2, 60, "tasks on both hosts")
    return cluster


@pytest.fixture
def sink(batch, topic, writer_settings):
    """Return ``sink(frame, number)``, which calls a function of `exactly_once` as Spark does in foreachBatch."""
    with exactly_once(id=topic, topic=topic, **writer_settings) as function:
        yield lambda frame, number: batch(function, frame, number)


@pytest.mark.long
def test_an_environment_that_is_shipped(cluster, tmp_path):
    """As docs/operations/spark.md says, with references to the packages of this host instead of copies.

    The executors have no PYTHONPATH, so they find the packages only by the environment. This test is the first one,
    since the session of the others has all cores.
    """
    source = str(Path(cyproducer.__file__).parents[1])
    venv.create(tmp_path / "env", symlinks=True)
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    (packages / "more.pth").write_text("\n".join([*site.getsitepackages(), source]))
    with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "env", ".")
    shipped = (
        "--conf",
        f"spark.archives={tmp_path}/env.tar.gz#env",
        "--conf",
        f"spark.executorEnv.PYTHONPATH={tmp_path}",
    )
    done = subprocess.run(
        [sys.executable, "-m", "cyproducer", "spark-check", "--json", "--master", cluster.url, *shipped],
        env={**os.environ, **spark_environment(), "PYSPARK_PYTHON": "./env/bin/python"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    found = json.loads(done.stdout)
    assert done.returncode == 0, found
    assert {each["level"] for each in found} == {"ok"}, found
    texts = {each["where"].split(" ")[0]: each["text"] for each in found}
    assert texts["archives"] == "env.tar.gz is unpacked as ./env; tasks run with ./env/bin/python"
    hosts = [each["text"] for each in found if each["where"].startswith("host ")]
    assert len(hosts) == 2
    assert all("/env/bin/python, Python 3" in text for text in hosts)


def test_each_host_has_one_sender(
    spark_cluster, numbers, topic, writer_settings, save, seen, spark_runtime, second_host
):
    assert write(numbers(0, 1000, 8), topic, **writer_settings).rows == 1000
    save(numbers(1000, 2000, 8), topic)
    assert [len(senders(place)) for place in (spark_runtime, second_host)] == [1, 1]
    assert seen(2000) == list(range(2000))


def test_the_check_shows_both_hosts(spark_cluster, spark):
    found = check_session(spark)
    assert {each.level for each in found} == {"ok"}, found
    assert sum(each.where.startswith("host ") for each in found) == 2
    assert any("2 senders, one for each host" in each.text for each in found)


def slowly(frame):
    """Return a frame each of whose tasks takes some time, so that both hosts run some."""

    def task(batches):
        import time

        time.sleep(0.2)
        yield from batches

    return frame.mapInArrow(task, frame.schema)


@pytest.mark.long
def test_two_hosts_that_write_the_same_partitions(spark_cluster, numbers, sink, seen, caplog):
    """It is noticed, and from then on one task has all rows of a partition."""
    for number in range(3):
        sink(slowly(numbers(number * 1000, (number + 1) * 1000, 6)), number)
    assert seen(3000) == list(range(3000))
    assert caplog.text.count(AGAIN) == 1  # Spark decides whether the first micro-batch has tasks on both hosts


@pytest.fixture
def spread(spark):
    """Return a frame of 1,000 numbers in two tasks, each with a Kafka partition of its own."""
    return spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) AS value", "CAST(id DIV 500 AS INT) AS partition")


@pytest.mark.long
def test_an_executor_is_killed_before_its_task_has_ended(spark_cluster, spread, held, sink, seen, caplog):
    frame = held(spread)
    with frame.meanwhile(lambda: spark_cluster.kill_executor(frame.host())):
        sink(frame.frame, 0)
    assert seen(1000) == list(range(1000))
    assert f"micro-batch 0 {AGAIN}" in caplog.text


def test_an_executor_is_killed_after_its_task_has_ended(spark_cluster, spread, spark, held, sink, seen, caplog):
    frame = held(spread)
    tracker = spark.sparkContext.statusTracker()

    def kill():
        (stage,) = tracker.getActiveStageIds()
        wait_until(lambda: tracker.getStageInfo(stage).numCompletedTasks == 1, 30, "the end of the other task")
        other = {"127.0.0.1": "127.0.0.2", "127.0.0.2": "127.0.0.1"}[frame.host()]
        spark_cluster.kill_executor(other)

    with frame.meanwhile(kill):
        sink(frame.frame, 0)
    assert seen(1000) == list(range(1000))
    assert AGAIN not in caplog.text


@pytest.mark.long
def test_a_stage_that_spark_repeats(spark_cluster, spark, held, sink, seen, caplog):
    """A shuffle file is lost with its executor. The tasks of the stage have the attempt number 0 again."""
    rows = spark.range(0, 200_000, 1, 20).selectExpr("CAST(id AS STRING) AS value", "sha2(value, 512) AS key")
    frame = held(slowly(rows).repartition(1))

    def kill():
        other = {"127.0.0.1": "127.0.0.2", "127.0.0.2": "127.0.0.1"}[frame.host()]
        spark_cluster.kill_executor(other)

    with frame.meanwhile(kill):
        sink(frame.frame, 0)
    assert seen(200_000) == list(range(200_000))
    assert "Spark has run stage" in caplog.text
