"""Tests `exactly_once` with a reader of committed records: replays, failures of tasks and senders, other drivers."""

import logging
import pickle
import re
import shutil
import threading
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from support.consumer import read_topic
from support.process import kill_senders, senders, wait_until

from cyproducer.errors import KafkaConfigurationError
from cyproducer.observe import transactions
from cyproducer.producer.shared_transaction import sender_of
from cyproducer.spark import atomic, exactly_once, partition_for
from cyproducer.spark.atomic import AtomicWriteError
from cyproducer.spark.micro_batches import MarkerError
from cyproducer.spark.owner import FencedDriverError

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "spark.md"


@pytest.fixture
def sink(writer_settings, topic):
    """Return ``sink(id=topic, **settings)``: a function for foreachBatch into `topic`, closed at the end."""
    made = []

    def make(id=topic, **more):
        made.append(exactly_once(id=id, topic=topic, **writer_settings | more))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def start(spark, tmp_path):
    """Return ``start(function, checkpoint="checkpoint")``, which starts a query on the files."""

    def query(function, checkpoint="checkpoint"):
        rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
        sink = rows.writeStream.foreachBatch(function).trigger(availableNow=True)
        return sink.option("checkpointLocation", str(tmp_path / checkpoint)).start()

    return query


@pytest.fixture
def run(start):
    """Return ``run(function, checkpoint="checkpoint")``, which runs a query on the files to its end."""

    def query(function, checkpoint="checkpoint"):
        started = start(function, checkpoint)
        try:
            assert started.awaitTermination(200)
        finally:
            started.stop()

    return query


def test_each_micro_batch_is_written_once_and_an_empty_one_too(run, lines, sink, seen):
    lines(0, 10)
    lines(10, 30)
    function = sink()
    run(function)
    assert seen(30) == list(range(30))
    lines(30, 30)
    run(function)
    lines(31, 32)
    run(sink())  # another driver
    assert seen(31) == [*range(30), 31]


def test_a_micro_batch_without_rows_for_a_partition_is_written_once(batch, spark, sink, seen, caplog):
    """The marker of the commit before has the epoch of the new transaction in all partitions."""
    function = sink()
    for number in range(4):
        rows = spark.createDataFrame([(str(number), number % 2)], "value string, partition int")
        batch(function, rows, number)
    assert seen(4) == [0, 1, 2, 3]
    assert "is written again" not in caplog.text


def test_a_micro_batch_that_spark_has_not_recorded_is_not_written_again(run, lines, sink, seen, tmp_path):
    """The driver has died between its commit and Spark's."""
    lines(0, 10)
    run(sink())
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    lines(10, 20)
    run(sink())
    assert seen(20) == list(range(20))


def test_a_query_is_stopped_in_a_micro_batch(start, run, lines, held, sink, seen, caplog):
    lines(0, 1000)
    function, made = sink(), []

    def hold(frame, number):
        made.append(held(frame))
        function(made[0].frame, number)

    with caplog.at_level(logging.WARNING, "cyproducer.spark"):
        query = start(hold)
        wait_until(lambda: bool(made), 60, "the micro-batch")
        made[0].wait()
        query.stop()
    assert "is written again" not in caplog.text
    assert seen(0) == []
    run(sink())
    assert seen(1000) == list(range(1000))


def test_close_waits_for_one_attempt_only(batch, numbers, held, sink, seen, caplog, monkeypatch):
    """It is what a driver does that is interrupted by Ctrl-C while a micro-batch is repeated."""
    monkeypatch.setattr(atomic, "FIRST_PAUSE_S", 150)
    function, disturbed = sink(), held(numbers(0, 1000), fails=True)
    closing = threading.Thread(target=function.close)

    def close():
        closing.start()
        wait_until(function._closing.is_set, 20, "the call of close()")

    with disturbed.meanwhile(close), pytest.raises(AtomicWriteError, match="0 was not written in 1 attempt; "):
        batch(function, disturbed.frame)
    closing.join(60)
    assert "is written again" not in caplog.text
    assert seen(0) == []
    batch(function, numbers(0, 1000))  # a query that is still active attaches again
    assert seen(1000) == list(range(1000))


def test_a_deleted_checkpoint_is_noticed(run, lines, sink, seen, tmp_path):
    lines(0, 10)
    run(sink())
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(PySparkException, match=r"two queries use one id\. Give this query an id of its own\. It then"):
        run(sink())
    assert seen(10) == list(range(10))
    run(sink(id="another"), "checkpoint")
    assert seen(20) == sorted([*range(10)] * 2)


def test_an_older_checkpoint_and_a_missing_marker_are_noticed(batch, numbers, sink, seen):
    function = sink()
    with pytest.raises(MarkerError, match=r"is missing, and Spark writes micro-batch 7, not 0.* first_batch=7"):
        batch(function, numbers(0, 5), 7)
    function = sink(first_batch=7)
    batch(function, numbers(0, 5), 7)
    batch(function, numbers(5, 10), 8)
    for wrong in (6, 7, 10):
        text = rf"micro-batch 9 is the next one, and Spark writes micro-batch {wrong}.* another id and a new checkpoint"
        with pytest.raises(MarkerError, match=text):
            batch(function, numbers(10, 20), wrong)
    with pytest.raises(MarkerError, match=r"two queries use one id\. Give this query an id of its own and a new c"):
        batch(function, numbers(10, 20), 9, query="r")
    batch(function, numbers(5, 10), 8)  # Spark repeats the last one only
    assert seen(10) == list(range(10))


def test_a_task_that_fails_aborts_and_all_rows_are_written_again(batch, numbers, held, sink, seen, caplog):
    function = sink()
    with caplog.at_level(logging.WARNING, "cyproducer.spark"):
        batch(function, held(numbers(0, 1000, 2), fails=True).frame)
    assert "micro-batch 0 is written again, attempt 1 of 4 failed" in caplog.text
    batch(function, numbers(1000, 1100), 1)
    assert seen(1100) == list(range(1100))


def test_rows_that_fail_in_each_attempt_leave_nothing(batch, numbers, sink, seen, monkeypatch):
    monkeypatch.setattr(atomic, "ATTEMPTS", 2)
    function = sink()
    wrong = numbers(0, 1000).selectExpr("IF(value = '999', raise_error('wrong row'), value) AS value")
    with pytest.raises(atomic.AtomicWriteError, match=r"(?s)micro-batch 0 was not written in 2 attempts.*wrong row"):
        batch(function, wrong)
    assert seen(0) == []
    batch(function, numbers(0, 10, 3))  # repeated with other rows in other partitions
    assert seen(10) == list(range(10))


def test_a_sender_that_is_killed_continues(batch, numbers, held, sink, seen, one_host):
    function = sink()
    disturbed = held(numbers(0, 1000, 2))

    def kill():
        for process in senders(one_host):
            process.kill()

    with disturbed.meanwhile(kill):
        batch(function, disturbed.frame)
    batch(function, numbers(1000, 1010), 1)
    assert seen(1010) == list(range(1010))


def test_sender_and_supervisor_are_killed(batch, numbers, held, sink, seen, one_host):
    function = sink()
    disturbed = held(numbers(0, 1000, 2))
    with disturbed.meanwhile(lambda: kill_senders(one_host)):
        batch(function, disturbed.frame)
    batch(function, numbers(1000, 1010), 1)
    assert seen(1010) == list(range(1010))


def test_the_coordinator_moves(kafka3, new_topic, batch, numbers, held, writer_settings):
    """Its broker is killed in a micro-batch, and another one ends the transaction."""
    topic = new_topic(3, 3, cluster=kafka3)
    settings = writer_settings | {"bootstrap_servers": kafka3.bootstrap_servers}
    with exactly_once(id=topic, topic=topic, **settings) as function:
        batch(function, numbers(0, 10))

        def coordinator():
            (told,) = transactions.describe(sender_of(function._owner.producer).address, [f"cyproducer-{topic}"])
            return told["coordinator"]

        first, disturbed = coordinator(), held(numbers(10, 1000, 2))
        with disturbed.meanwhile(lambda: kafka3.kill(first)):
            batch(function, disturbed.frame, 1)
        assert coordinator() != first
        batch(function, numbers(1000, 1010), 2)
    read = read_topic(kafka3.bootstrap_servers, topic, 1010)
    assert sorted(map(int, read.value)) == list(range(1010))


def test_the_older_of_two_drivers_with_one_id_stops(batch, numbers, held, sink, seen):
    disturbed = held(numbers(0, 1000, 2))
    found = []

    def older():
        with pytest.raises(FencedDriverError, match="another driver writes with the transactional id 'cyproducer-t"):
            batch(sink(), disturbed.frame)
        found.append(True)

    thread = threading.Thread(target=older)
    thread.start()
    disturbed.wait()
    newer = sink()
    batch(newer, numbers(0, 10))
    disturbed.release()
    thread.join(60)
    assert found == [True]
    batch(newer, numbers(10, 20), 1)
    assert seen(20) == list(range(20))


def test_two_senders_of_one_partition_are_noticed(batch, spark, sink, seen, short_tmp, monkeypatch, caplog):
    """Each task runs as if on a host of its own. Then one task writes all rows of a partition."""
    places = [str(short_tmp / "a"), str(short_tmp / "b")]

    def run_elsewhere(job, batches):
        import os

        from pyspark import TaskContext

        from cyproducer.spark.atomic import run_task

        before = os.environ["CYPRODUCER_RUNTIME_DIR"]
        os.environ["CYPRODUCER_RUNTIME_DIR"] = place = places[TaskContext.get().partitionId() % 2]
        os.makedirs(place, 0o700, exist_ok=True)
        try:
            return run_task(job, batches)
        finally:
            os.environ["CYPRODUCER_RUNTIME_DIR"] = before

    monkeypatch.setattr(atomic, "run_task", run_elsewhere)
    function = sink(transaction_timeout_ms=10_000)
    frame = spark.range(0, 5000, 1, 2).selectExpr("CAST(id AS STRING) AS value", "concat('k', id % 50) AS key")
    with caplog.at_level(logging.WARNING, "cyproducer.spark"):
        batch(function, frame)
        assert "micro-batch 0 is written again" in caplog.text
        caplog.clear()
        batch(function, frame.selectExpr("CAST(CAST(value AS INT) + 5000 AS STRING) AS value", "key"), 1)
    assert "is written again" not in caplog.text  # it has learnt that the rows must be moved
    assert seen(10_000) == list(range(10_000))
    for place in places:
        wait_until(lambda place=place: not senders(place), 60, "the end of a sender")


def test_rows_that_are_moved_get_the_partition_of_their_key(batch, spark, kafka, topic, sink):
    function = sink()
    function._moves = True
    batch(
        function,
        spark.range(100).selectExpr(
            "CAST(id AS STRING) AS value",
            "IF(id < 50, concat('k', id), NULL) AS key",
            "IF(id % 10 = 0, 2, NULL) AS partition",
        ),
    )
    read = read_topic(kafka.bootstrap_servers, topic, 100)
    assert sorted(map(int, read.value)) == list(range(100))
    for value, key, partition in zip(map(int, read.value), read.key, read.partition, strict=True):
        if value % 10 == 0:
            assert partition == 2
        elif key is not None:
            assert partition == partition_for(key, 3) == partition_for(key.decode(), 3)


def order_of_keys(servers, topic, rows):
    """Check that all rows of a key are in the partition of the key. Return {key: its numbers, in the log's order}."""
    read = read_topic(servers, topic, rows)
    assert len(read) == rows
    found = {}
    for key, value, partition in zip(read.key, read.value, read.partition, strict=True):
        assert partition == partition_for(key, 3)
        found.setdefault(key, []).append(int(value))
    return found


def test_rows_of_a_key_are_in_order_in_one_partition(spark, kafka, topic, batch, sink):
    """The example of the guide, and a micro-batch whose rows are moved before they are written."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    (example,) = (block for block in blocks if "partition_for" in block)
    text = example.replace("localhost:9092", kafka.bootstrap_servers).replace('"events"', f'"{topic}"')
    names = {"__name__": "__main__"}
    exec(text.replace("atomic=True", "atomic=True, sender_idle_timeout_ms=500"), names)
    wanted = {b"customer-%d" % key: list(range(key, 1000, 10)) for key in range(10)}
    assert order_of_keys(kafka.bootstrap_servers, topic, 1000) == wanted
    function = sink()
    function._moves = True
    batch(function, names["rows"])
    found = order_of_keys(kafka.bootstrap_servers, topic, 2000)
    assert found == {key: numbers * 2 for key, numbers in wanted.items()}


def test_speculation_is_refused(spark, batch, sink):
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.speculation", "true")
    try:
        frame = spark.newSession().sql("SELECT 'v' AS value")
    finally:
        conf.remove("spark.speculation")
    with pytest.raises(ValueError, match=r"spark.speculation=true cannot be used with transactions"):
        batch(sink(), frame)


def test_without_a_streaming_query_it_is_refused(numbers, sink):
    with pytest.raises(RuntimeError, match="Spark does not tell the id of the streaming query here"):
        sink()(numbers(0, 10), 0)


def test_a_wrong_column_is_an_error_at_once(batch, numbers, sink):
    with pytest.raises(ValueError, match="'other' is not part of a Kafka record"):
        batch(sink(), numbers(0, 10).selectExpr("value AS other"))


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"id": ""}, "id is ''"),
        ({"topic": "a/b"}, "the name of a topic has 1 to 249"),
        ({"topic": None}, "needs the name of the topic"),
        ({"first_batch": -1}, "first_batch is -1"),
        ({"checkpoint": ""}, "checkpoint is ''"),
        ({"transactional_id": "x"}, "transactional_id is not supported by exactly_once"),
        ({"acks": 1}, "acks=1"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms"),
        ({"no_such_setting": 1}, "no_such_setting"),
    ],
)
def test_wrong_arguments_are_refused(writer_settings, wrong, text):
    with pytest.raises(KafkaConfigurationError, match=text):
        exactly_once(**{"id": "x", "topic": "t", **writer_settings, **wrong})


def test_the_function_can_be_pickled_and_shows_no_settings(writer_settings):
    function = exactly_once(id="x", topic="t", **writer_settings, client_id="secret")
    assert "secret" not in repr(function)
    for copy in (pickle.loads(pickle.dumps(function)), cloudpickle.loads(cloudpickle.dumps(function))):
        assert repr(copy) == repr(function)
