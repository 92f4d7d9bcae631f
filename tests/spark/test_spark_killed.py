"""Tests drivers of `exactly_once` that are killed at each step, and a few random kills. More: tests.spark_chaos."""

import signal
import tempfile
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from spark_chaos.run import ROWS, Driver, run, run_once
from support.consumer import read_topic
from support.process import kill_senders, wait_until
from support.spark_cluster import SparkCluster

# Spark starts several times, which takes long on a busy machine.
pytestmark = pytest.mark.timeout(600)

SEED = 7
KILLS = 6


def test_a_driver_is_killed_at_each_step(kafka, topic, tmp_path, spark_runtime):
    driver = Driver(kafka, topic, tmp_path / "run", [spark_runtime])
    driver.add(range(ROWS))
    # The rows and the marker are written; the next driver has fenced the last one; it has committed.
    for point, visible in (("add_offset:after", 0), ("open:after", 0), ("commit:after", ROWS)):
        assert run_once(driver, "--die", point) == -signal.SIGKILL
        # The sender aborts the transaction of a driver that was killed, so that it does not hold readers up.
        wait_until(lambda: committed_end(kafka, topic) == end(kafka, topic), 20, "the end of the transaction")
        assert len(read_topic(kafka.bootstrap_servers, topic, visible)) == visible, point
    driver.add(range(ROWS, ROWS + 10))
    (driver.directory / "stop").touch()
    assert run_once(driver) == 0
    read = read_topic(kafka.bootstrap_servers, topic, ROWS + 10)
    assert sorted(map(int, read.value)) == list(range(ROWS + 10))


def end(kafka, topic, isolation=IsolationLevel.READ_UNCOMMITTED):
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(3)}
    found = admin.list_offsets(asked, isolation_level=isolation)
    return {each.partition: offset.result(20).offset for each, offset in found.items()}


def committed_end(kafka, topic):
    return end(kafka, topic, IsolationLevel.READ_COMMITTED)


def test_random_kills(kafka3, new_topic, tmp_path, spark_runtime, short_tmp):
    """On a cluster of Spark with two hosts: drivers, executors, workers, senders and brokers are killed."""
    second = Path(tempfile.mkdtemp(dir=short_tmp))
    topic = new_topic(3, 3, cluster=kafka3)
    runtimes = [spark_runtime, second]
    with SparkCluster(tmp_path / "spark", runtimes) as spark:
        result = run(KILLS, SEED, kafka3, topic, tmp_path / "run", runtimes, spark)
    print(result.text())
    assert result.clean, result.text()
    assert result.killed.total() >= KILLS
    kill_senders(second)  # it stays until the time limit of the last transaction is over
