"""Tests, without a broker, that Spark discovers the sink and that the driver reports errors before any task."""

import itertools
import os
import re
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pyspark
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from support import spark_jvm
from support.process import wait_until

import cyproducer
from cyproducer.spark.stream import KafkaStreamWriter
from cyproducer.spark.writer import KafkaBatchWriter, NotWrittenError, Plan, TaskCommit

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)

BROKER = "127.0.0.1:1"
ROOT = Path(__file__).parents[2]
_groups = itertools.count()


def write(frame, mode="append", **options):
    options = {"kafka.bootstrap.servers": BROKER, "topic": "t"} | options
    given = {name: value for name, value in options.items() if value is not None}
    frame.write.format("cyproducer").mode(mode).options(**given).save()


@pytest.fixture
def refused(spark):
    """Return a function that writes, expects a refusal without a single Spark job, and returns its text."""

    def run(frame, **options):
        group = f"refused-{next(_groups)}"
        spark.sparkContext.setJobGroup(group, group)
        with pytest.raises(PySparkException) as caught:
            write(frame, **options)
        assert spark.sparkContext.statusTracker().getJobIdsForGroup(group) == []
        return str(caught.value)

    return run


@pytest.fixture(scope="module")
def frame(spark):
    return spark.sql("SELECT CAST(id AS STRING) AS value FROM range(10)")


def test_a_job_is_counted_when_there_is_one(spark, frame):
    spark.sparkContext.setJobGroup("counted", "counted")
    frame.collect()
    assert spark.sparkContext.statusTracker().getJobIdsForGroup("counted")


def test_the_jvm_uses_the_archive_of_classes(spark):
    mapped = [each.path for each in psutil.Process(spark.sparkContext._gateway.proc.pid).memory_maps()]
    assert any(re.search(r"/spark-[^/]+\.jsa$", path) for path in mapped), mapped


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_archive_of_sparks_classes_can_be_made(tmp_path):
    assert spark_jvm._run(tmp_path / "made.jsa")
    assert (tmp_path / "made.jsa").stat().st_size > 10 << 20


def test_the_sink_is_found_and_asks_for_brokers(frame, refused):
    text = refused(frame, **{"kafka.bootstrap.servers": None})
    assert "'kafka.bootstrap.servers' is missing" in text


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("id", "required column 'value' (binary or string) is missing"),
        ("id AS value", "column 'value' must be binary or string, not bigint"),
        ("'v' AS value, id AS key", "column 'key' must be binary or string, not bigint"),
        ("'v' AS value, id AS partition", "column 'partition' must be int, not bigint"),
        ("'v' AS value, TIMESTAMP_NTZ'2024-01-01 00:00:00' AS timestamp", "timestamp_ntz"),
        ("'v' AS value, array('k') AS headers", "'headers' must be array<struct<key:string,value:binary>>"),
        ("'v' AS value, 1 AS extra", "column 'extra' is not part of a Kafka record"),
        ("'v' AS Value", "'Value' is not part of a Kafka record (did you mean 'value'? names are case-sensitive)"),
    ],
)
def test_a_wrong_column_is_named_on_the_driver(spark, refused, columns, said):
    assert said in refused(spark.sql(f"SELECT {columns} FROM range(10)"))


def test_no_topic_anywhere(frame, refused):
    assert "no topic: give the option 'topic', or a column 'topic'" in refused(frame, topic=None)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("topics", "t", "did you mean 'topic'"),
        ("bootstrap.servers", BROKER, "did you mean 'kafka.bootstrap.servers'"),
        ("kafka.linger.mss", "5", "linger"),
        ("kafka.linger.ms", "soon", "linger"),
        ("kafka.acks", "7", "acks"),
        ("kafka.key.serializer", "x", "'kafka.key.serializer' is not supported"),
        ("kafka.value.serializer", "x", "'kafka.value.serializer' is not supported"),
        ("kafka.transactional.id", "x", "'kafka.transactional.id' is not supported"),
        ("topic", "no spaces", "the option 'topic' is 'no spaces'"),
        ("includeHeaders", "perhaps", "the option 'includeHeaders' is 'perhaps'"),
    ],
)
def test_a_wrong_option_is_named_on_the_driver(frame, refused, option, value, said):
    assert said in refused(frame, **{option: value})


def test_a_secret_under_a_wrong_name_is_not_printed(frame, refused):
    assert "hunter2" not in refused(frame, **{"kafka.sasl.plain.pasword": "hunter2"})


def test_overwrite_is_refused(frame, refused):
    assert "cannot overwrite a Kafka topic" in refused(frame, mode="overwrite")


def test_a_streaming_query_is_refused_before_its_first_task(spark, tmp_path):
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = (
        rows.selectExpr("value AS valeu")
        .writeStream.format("cyproducer")
        .option("kafka.bootstrap.servers", BROKER)
        .option("topic", "t")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(PySparkException, match="did you mean 'value'"):
        query.awaitTermination(60)


@pytest.mark.parametrize("messages", [[None], [TaskCommit(1, 1, {0: 1}), None]])
def test_a_task_that_never_wrote_is_not_committed(messages):
    stream = KafkaStreamWriter(Plan({}, "t", ("value",)))
    batch = KafkaBatchWriter(Plan({}, "t", ("value",)))
    said = f"1 of {len(messages)} tasks ended without a call of write()"
    with pytest.raises(NotWrittenError, match=re.escape(f"micro-batch 7: {said}")):
        stream.commit(messages, 7)
    with pytest.raises(NotWrittenError, match=re.escape(f"batch: {said}")):
        batch.commit(messages)


def test_tasks_that_wrote_are_committed():
    KafkaStreamWriter(Plan({}, "t", ("value",))).commit([TaskCommit(1, 1, {0: 1})], 0)
    # A DataFrame without partitions has no task.
    KafkaBatchWriter(Plan({}, "t", ("value",))).commit([])


def test_a_continuous_query_records_nothing_as_written(spark, frame, tmp_path):
    # Spark writes such a query's rows on the JVM only, and ends no query because of a commit() that raises.
    rows = spark.readStream.format("rate").option("rowsPerSecond", 10).load()
    query = (
        rows.selectExpr("CAST(value AS STRING) AS value")
        .writeStream.format("cyproducer")
        .option("kafka.bootstrap.servers", BROKER)
        .option("topic", "t")
        .option("checkpointLocation", str(tmp_path))
        .trigger(continuous="100 milliseconds")
        .start()
    )
    try:
        # Spark takes the events of all epochs in turn: when one has ended, commit() of those before it has run.
        wait_until(lambda: (tmp_path / "offsets" / "2").exists(), 120, "the end of the third epoch")
        assert os.listdir(tmp_path / "commits") == []
    finally:
        query.stop()


def test_in_another_thread_the_session_is_made_active_first(spark, frame):
    def found(prepare):
        prepare()
        with pytest.raises((PySparkException, Py4JJavaError)) as caught:
            write(frame, **{"kafka.bootstrap.servers": None})
        return str(caught.value)

    # The README's sentence: the session is active in the thread that made it, and in one that made a DataFrame
    # from local data. If the first of these fails, Spark has changed and the sentence can go.
    with ThreadPoolExecutor(1) as threads:
        assert "DATA_SOURCE_NOT_FOUND" in threads.submit(found, lambda: None).result()
        assert (
            "'kafka.bootstrap.servers' is missing"
            in threads.submit(found, lambda: spark.createDataFrame([(1,)], "a int")).result()
        )


DRIVER = """
import os, sys
from pyspark.sql import SparkSession
interpreter, by_environment = sys.argv[1], sys.argv[2] == "environment"
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
if by_environment:
    os.environ["PYSPARK_PYTHON"] = interpreter
else:
    builder = builder.config("spark.pyspark.python", interpreter)
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
try:
    spark.range(1).selectExpr("'v' AS value").write.format("cyproducer").mode("append").save()
except Exception as error:
    print(str(error))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("way", "said"),
    [("environment", "'kafka.bootstrap.servers' is missing"), ("setting", "DATA_SOURCE_NOT_FOUND")],
)
def test_outside_an_activated_environment_a_variable_names_the_interpreter(tmp_path, short_tmp, way, said):
    # The README's sentence. `python3` of the PATH is an interpreter that has no cyproducer; another one has it.
    venv.create(tmp_path / "other", symlinks=True)
    interpreter = short_tmp / f"python-{way}"
    root = Path(cyproducer.__file__).parents[1]
    interpreter.write_text(f'#!/bin/sh\nPYTHONPATH="{root}:$PYTHONPATH" exec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "PYTHON"))}
    env |= {"PATH": f"{tmp_path / 'other' / 'bin'}:{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    env |= {"SPARK_HOME": str(Path(pyspark.__file__).parent)}
    command = [sys.executable, "-c", DRIVER, str(interpreter), way]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


BROKEN = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise {error}("made to fail")
sys.meta_path.insert(0, Refuse())
import threading
import pyspark_cyproducer
print(hasattr(pyspark_cyproducer, "DefaultSource"), "cyproducer" in sys.modules, threading.active_count())
if hasattr(pyspark_cyproducer, "DefaultSource"):
    try:
        pyspark_cyproducer.DefaultSource({{}}).writer(None, False)
    except Exception as error:
        print(type(error).__name__, error)
"""


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError"])
@pytest.mark.parametrize(("missing", "found"), [(["pyspark"], False), (["cyproducer"], True)])
def test_the_discovered_module_imports_whatever_is_missing(error, missing, found):
    script = BROKEN.format(missing=missing, error=error)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{found} False 1\n")
    if found:
        assert "RuntimeError the Spark sink 'cyproducer' cannot be used" in done.stdout
        assert f"failed with {error}: made to fail" in done.stdout
