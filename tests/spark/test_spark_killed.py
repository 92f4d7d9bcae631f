"""Tests drivers of `exactly_once` that are killed at each step, and a few random kills. More: tests.spark_chaos."""

import signal
import tempfile
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from spark_chaos.run import CLUSTER_WEIGHTS, ROWS, WEIGHTS, Driver, run, run_once
from support.consumer import read_topic
from support.process import kill_senders, wait_until
from support.spark_cluster import SparkCluster

# Spark starts several times, which takes long on a busy machine.
pytestmark = pytest.mark.timeout(600)

SEED = 7
KILLS = 6
#: Each with the number of rows that are visible afterwards.
POINTS = [
    ("open:after", 0),
    ("offset:after", 0),
    ("begin:after", 0),
    ("hold", 0),
    ("sequences:after", 0),
    ("add_offset:after", 0),
    # In recovery: the marker has been written in a transaction that the last driver did not end.
    ("open:after", 0),
    ("offset:after", 0),
    ("commit:before", 0),
    ("commit:after", ROWS),
    # In recovery: Spark repeats a micro-batch that is committed.
    ("open:after", ROWS),
    ("offset:after", ROWS),
]


def test_a_driver_is_killed_at_each_step(spark, kafka, topic, tmp_path, spark_runtime):
    """The JVM stays, so that the tasks of a driver that was killed go on."""
    gateway = spark.sparkContext._gateway.gateway_parameters
    more = {"PYSPARK_GATEWAY_PORT": str(gateway.port), "PYSPARK_GATEWAY_SECRET": gateway.auth_token}
    driver = Driver(kafka, topic, tmp_path / "run", [spark_runtime], more=more)
    driver.add(range(ROWS))
    for point, visible in POINTS:
        if point == "hold":
            kill_while_a_task_runs(driver)
        else:
            assert run_once(driver, "--die", point) == -signal.SIGKILL, (point, driver.log()[-3000:])
        wait_until(lambda: not spark.streams.active, 60, f"the end of the query, killed at {point}")
        check_after_kill(driver, kafka, topic, visible, point)
    finish(driver, kafka, topic)


def kill_while_a_task_runs(driver):
    driver.start("--hold")
    wait_until((driver.directory / "reached").exists, 60, "a task to be held")
    driver.kill()
    (driver.directory / "released").touch()


def check_after_kill(driver, kafka, topic, visible, point):
    """Check that nothing holds readers up, that they see so many rows, and that Spark has recorded no micro-batch."""
    # The sender aborts the transaction of a driver that was killed.
    wait_until(lambda: committed_end(kafka, topic) == end(kafka, topic), 20, f"the end of the transaction: {point}")
    assert len(read_topic(kafka.bootstrap_servers, topic, visible)) == visible, point
    checkpoint = driver.directory / "checkpoint"
    assert (checkpoint / "offsets" / "0").exists(), point
    assert not (checkpoint / "commits" / "0").exists(), point


def finish(driver, kafka, topic):
    """Let a driver write the last micro-batch. Check that each row is visible once."""
    driver.add(range(ROWS, ROWS + 10))
    (driver.directory / "stop").touch()
    assert run_once(driver) == 0, driver.log()[-3000:]
    read = read_topic(kafka.bootstrap_servers, topic, ROWS + 10)
    assert sorted(map(int, read.value)) == list(range(ROWS + 10))


@pytest.mark.long
def test_a_driver_and_its_jvm_are_killed(kafka, topic, tmp_path, spark_runtime):
    driver = Driver(kafka, topic, tmp_path / "run", [spark_runtime])
    driver.add(range(ROWS))
    for point, visible in (("commit:before", 0), ("commit:after", ROWS)):
        assert run_once(driver, "--die", point) == -signal.SIGKILL, (point, driver.log()[-3000:])
        check_after_kill(driver, kafka, topic, visible, point)
    finish(driver, kafka, topic)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_drivers_on_one_checkpoint(kafka, topic, tmp_path, spark_runtime, short_tmp):
    """The second one is started on another host while the first one is in a micro-batch."""
    other = Path(tempfile.mkdtemp(dir=short_tmp))
    older = Driver(kafka, topic, tmp_path / "run", [other], log="older.log")
    newer = Driver(kafka, topic, tmp_path / "run", [spark_runtime])
    older.add(range(ROWS))
    try:
        older.start("--hold")
        wait_until((older.directory / "reached").exists, 300, "a task to be held")
        newer.start()
        wait_until((newer.directory / "checkpoint" / "commits" / "0").exists, 300, "the commit of the newer driver")
        assert older.process.poll() is None
        (older.directory / "released").touch()
        assert older.wait() == 1
        assert "FencedDriverError: another driver writes with the transactional id" in older.log()
        newer.add(range(ROWS, ROWS + 10))
        (newer.directory / "stop").touch()
        assert newer.wait() == 0, newer.log()[-3000:]
    finally:
        for driver in (older, newer):
            if driver.process is not None:
                driver.kill()
    read = read_topic(kafka.bootstrap_servers, topic, ROWS + 10)
    assert sorted(map(int, read.value)) == list(range(ROWS + 10))
    assert committed_end(kafka, topic) == end(kafka, topic)
    kill_senders(other)  # it stays until it has asked what has become of the older driver's transaction


def end(kafka, topic, isolation=IsolationLevel.READ_UNCOMMITTED):
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(3)}
    found = admin.list_offsets(asked, isolation_level=isolation)
    return {each.partition: offset.result(20).offset for each, offset in found.items()}


def committed_end(kafka, topic):
    return end(kafka, topic, IsolationLevel.READ_COMMITTED)


@pytest.mark.long
def test_random_kills(kafka3, new_topic, tmp_path, spark_runtime, short_tmp):
    """On a cluster of Spark with two hosts. Drivers, executors, workers, senders and brokers are killed, each once."""
    second = Path(tempfile.mkdtemp(dir=short_tmp))
    topic = new_topic(3, 3, cluster=kafka3)
    runtimes = [spark_runtime, second]
    with SparkCluster(tmp_path / "spark", runtimes) as spark:
        result = run(KILLS, SEED, kafka3, topic, tmp_path / "run", runtimes, spark)
    print(result.text())
    assert result.clean, result.text()
    assert all(result.killed[name] for name in WEIGHTS | CLUSTER_WEIGHTS), result.text()
    assert result.killed.total() >= KILLS
    kill_senders(second)  # it stays until the time limit of the last transaction is over
