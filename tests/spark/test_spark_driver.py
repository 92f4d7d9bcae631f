"""Without a broker: the sink is found by itself, and what is wrong is said on the driver, before any task."""

import itertools
import subprocess
import sys

import pytest
from pyspark.errors import PySparkException

BROKER = "127.0.0.1:1"
_groups = itertools.count()


def write(frame, mode="append", **options):
    options = {"kafka.bootstrap.servers": BROKER, "topic": "t"} | options
    given = {name: value for name, value in options.items() if value is not None}
    frame.write.format("cyproducer").mode(mode).options(**given).save()


@pytest.fixture
def refused(spark):
    """A function that writes, expects a refusal without a single Spark job, and gives its text."""

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
        ("'v' AS value, 1 AS extra", "column 'extra' has no place in a Kafka record"),
        ("'v' AS Value", "'Value' has no place in a Kafka record (did you mean 'value'? case matters)"),
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
        rows.selectExpr("value AS valeu").writeStream.format("cyproducer")
        .option("kafka.bootstrap.servers", BROKER).option("topic", "t")
        .option("checkpointLocation", str(tmp_path)).start()
    )
    with pytest.raises(PySparkException, match="did you mean 'value'"):
        query.awaitTermination(60)


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
