"""Tests Spark jobs with a sender that was started explicitly, and with one that is killed during a job."""

import contextlib
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from support.consumer import read_topic
from support.process import kill9, kill_senders, senders, wait_until

from cyproducer.observe.status import status

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)

# Long enough for the sender of one job to be there for the next.
STAYS = {"kafka__sender__idle__timeout__ms": 10_000}
# The age of a batch that has been sent: many times its linger time, and an iteration of the sender's loop.
GONE_OUT_MS = 500
_groups = itertools.count()


def numbers(spark, begin, end):
    return spark.range(begin, end, 1, 2).selectExpr("CAST(id AS STRING) AS value")


def texts(begin, end):
    return {b"%d" % number for number in range(begin, end)}


@pytest.fixture
def sender_pid(spark_runtime) -> Callable[[], int]:
    """Return a function that returns the process id of the only sender of the Spark workers."""

    def find() -> int:
        (sender,) = wait_until(lambda: senders(spark_runtime), what="a sender")
        return sender.pid

    return find


@pytest.fixture
def failed_tasks(spark) -> Callable[[str], int]:
    """Return ``failed_tasks(group)``: failed task attempts of all jobs of a job group."""

    def count(group: str) -> int:
        tracker = spark.sparkContext.statusTracker()
        stages = [stage for job in tracker.getJobIdsForGroup(group) for stage in tracker.getJobInfo(job).stageIds]
        return sum(tracker.getStageInfo(stage).numFailedTasks for stage in stages)

    return count


@pytest.fixture
def foreground(kafka, short_tmp, spark_runtime) -> Iterator[Path]:
    """Yield the socket of a sender started at a shell; it gets SIGTERM at the end, and a second one.

    Spark's workers stay attached, which the first signal allows for as long as a drain may take.
    """
    socket = Path(tempfile.mkdtemp(dir=short_tmp)) / "s.sock"
    command = [sys.executable, "-m", "cyproducer", "sender", "--socket", str(socket)]
    command += ["--bootstrap-servers", kafka.bootstrap_servers]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        wait_until(lambda: socket.exists() or process.poll() is not None, 30, "the sender's socket")
        assert process.poll() is None, process.stderr.read()
        yield socket
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        process.terminate()
        process.communicate(timeout=30)


def save_under_a_kill(spark, kafka, topic, save, group, kill):
    """Save the second thousand of numbers; call `kill` when rows have been sent to a broker that is paused."""

    def rows_are_waiting():
        ages = [user["oldest_unacked_ms"] or 0 for sender in status() for user in sender["front_ends"]]
        return max(ages, default=0) > GONE_OUT_MS

    def kill_when_rows_wait():
        try:
            wait_until(rows_are_waiting, 60, "the wait of the job's rows for a broker that is paused")
            kill()
        finally:
            kafka.restore()

    kafka.pause()
    with ThreadPoolExecutor(1) as threads:
        # The job stays in this thread: Spark finds Python data sources only where its session is active.
        killing = threads.submit(kill_when_rows_wait)
        spark.sparkContext.setJobGroup(group, group)
        save(numbers(spark, 1_000, 2_000), topic, **STAYS)
        killing.result()


def test_a_sender_killed_under_a_job_is_not_noticed(spark, kafka, topic, save, sender_pid, failed_tasks):
    save(numbers(spark, 0, 1_000), topic, **STAYS)
    killed, group = sender_pid(), f"killed-{next(_groups)}"
    save_under_a_kill(spark, kafka, topic, save, group, lambda: kill9(killed))
    assert failed_tasks(group) == 0
    assert sender_pid() != killed
    read = read_topic(kafka.bootstrap_servers, topic, 2_000)
    assert (len(read), set(read.value)) == (2_000, texts(0, 2_000))


def test_sender_and_supervisor_killed_under_a_job_fail_its_tasks_and_the_retry_succeeds(
    spark, kafka, topic, save, sender_pid, failed_tasks, spark_runtime
):
    save(numbers(spark, 0, 1_000), topic, **STAYS)
    killed, group = sender_pid(), f"killed-{next(_groups)}"
    save_under_a_kill(spark, kafka, topic, save, group, lambda: kill_senders(spark_runtime))
    wait_until(lambda: failed_tasks(group), what="a failed attempt in Spark's books")
    assert sender_pid() != killed
    # At least once: what went out before the kill may be there twice.
    assert set(read_topic(kafka.bootstrap_servers, topic, 2_000).value) == texts(0, 2_000)


def test_a_sender_killed_between_jobs_is_replaced(spark, kafka, topic, save, sender_pid):
    save(numbers(spark, 0, 1_000), topic, **STAYS)
    killed = sender_pid()
    kill9(killed)
    save(numbers(spark, 1_000, 2_000), topic, **STAYS)
    assert sender_pid() != killed
    assert set(read_topic(kafka.bootstrap_servers, topic, 2_000).value) == texts(0, 2_000)


def test_a_job_through_a_sender_that_was_started_on_purpose(spark, kafka, topic, foreground, spark_runtime):
    before = {process.pid for process in senders(spark_runtime)}
    for option, begin in (("kafka.sender", 0), ("sender", 1_000)):
        frame = numbers(spark, begin, begin + 1_000)
        writer = frame.write.format("cyproducer").mode("append")
        writer.option(option, str(foreground)).option("topic", topic).save()
    assert {process.pid for process in senders(spark_runtime)} <= before
    read = read_topic(kafka.bootstrap_servers, topic, 2_000)
    assert (len(read), set(read.value)) == (2_000, texts(0, 2_000))
    (described,) = status(str(foreground))
    assert described["totals"]["records"] == 2_000


def test_a_sender_that_is_not_there_fails_the_job_by_its_path(spark, short_tmp):
    missing = str(short_tmp / "nobody.sock")
    writer = numbers(spark, 0, 10).write.format("cyproducer").mode("append")
    with pytest.raises(PySparkException) as caught:
        writer.option("sender", missing).option("topic", "t").option("kafka.max.block.ms", 2_000).save()
    assert missing in str(caught.value)
    assert "SenderUnavailableError" in str(caught.value)
