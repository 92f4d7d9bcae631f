"""Tests ``cyproducer.spark.write(df)`` into a real Kafka: results, other threads, foreachBatch, failures."""

import threading
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import PySparkException
from pyspark.sql import functions
from support.consumer import read_topic

from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark import WriteResult, write

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture
def settings(kafka):
    return {
        "bootstrap_servers": [kafka.bootstrap_servers],
        "delivery_timeout_ms": 20_000,
        "request_timeout_ms": 10_000,
        "sender_idle_timeout_ms": 500,
    }


def numbers(spark, rows, partitions=2):
    return spark.range(0, rows, 1, partitions)


def test_every_row_arrives_once_and_the_result_counts_them(spark, kafka, topic, settings):
    frame = numbers(spark, 20_000, 7).selectExpr("CAST(id AS STRING) AS value", "concat('k', id % 10) AS key")
    result = write(frame, topic=topic, **settings)
    read = read_topic(kafka.bootstrap_servers, topic, 20_000)
    assert sorted(map(int, read.value)) == list(range(20_000))
    assert result == WriteResult(
        20_000, sum(map(len, read.value)) + 2 * 20_000, dict(sorted(Counter(read.partition).items()))
    )


def test_the_column_topic_chooses_and_columns_of_the_source_are_left_out(spark, kafka, topic, settings):
    other = f"{topic}-b"
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([NewTopic(other, 1, 1)])[other].result(60)
    frame = numbers(spark, 1_000).selectExpr(
        "encode(CAST(id AS STRING), 'UTF-8') AS value",
        f"IF(id % 2 = 0, '{topic}', '{other}') AS topic",
        "id AS offset",
        "0 AS timestampType",
    )
    assert write(frame, **settings).rows == 1_000
    assert sorted(map(int, read_topic(kafka.bootstrap_servers, other, 500).value)) == list(range(1, 1_000, 2))
    assert sorted(map(int, read_topic(kafka.bootstrap_servers, topic, 500).value)) == list(range(0, 1_000, 2))


def test_a_frame_without_rows(spark, topic, settings):
    assert write(numbers(spark, 0).selectExpr("CAST(id AS STRING) AS value"), topic, **settings) == WriteResult(
        0, 0, {}
    )


def test_another_thread_needs_no_active_session(spark, kafka, topic, settings):
    frame = numbers(spark, 100).selectExpr("CAST(id AS STRING) AS value")
    results = []
    thread = threading.Thread(target=lambda: results.append(write(frame, topic, **settings)))
    thread.start()
    thread.join(200)
    assert [result.rows for result in results] == [100]
    assert len(read_topic(kafka.bootstrap_servers, topic, 100)) == 100


def test_foreach_batch_writes_updates(spark, kafka, topic, settings, tmp_path):
    """The output mode update, which a Python data source cannot have."""
    (tmp_path / "in").mkdir()
    for number, text in enumerate(("a b a", "b c")):
        (tmp_path / f"{number}.txt").write_text(text.replace(" ", "\n") + "\n")
        (tmp_path / f"{number}.txt").rename(tmp_path / "in" / f"{number}.txt")
    words = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    written = []

    def sink(frame, batch_id):
        rows = frame.select(frame.value.alias("key"), functions.col("count").cast("string").alias("value"))
        written.append((batch_id, write(rows, topic, **settings).rows))

    query = (
        words.groupBy("value")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(200)
    finally:
        query.stop()
    assert [rows for _, rows in written] == [2, 2]
    read = read_topic(kafka.bootstrap_servers, topic, 4)
    last = dict(zip(read.key, read.value, strict=True))
    assert Counter(zip(read.key, read.value, strict=True)) == {
        (b"a", b"2"): 1,
        (b"b", b"1"): 1,
        (b"b", b"2"): 1,
        (b"c", b"1"): 1,
    }
    assert last.keys() == {b"a", b"b", b"c"}


def test_a_row_that_is_not_acknowledged_fails_the_write(spark, topic, settings):
    frame = numbers(spark, 10).selectExpr("CAST(id AS STRING) AS value", "99 AS partition")
    with pytest.raises(PySparkException, match="rows that this task sent was not acknowledged"):
        write(frame, topic, **settings | {"max_block_ms": 1_000})


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"topic": "a/b"}, "the name of a topic has 1 to 249"),
        ({"topic": 7}, "topic is 7"),
        ({"value_serializer": str.encode}, "value_serializer is not supported by write.*values are sent unchanged"),
        ({"transactional_id": "x"}, "transactional_id is not supported by write"),
        ({"partitioner": print}, "partitioner must be text, a number, True, False or None in write"),
        ({"linger_ms": "soon"}, "linger_ms"),
        ({"no_such_setting": 1}, "no_such_setting"),
        ({"bootstrap_servers": None}, "bootstrap_servers"),
    ],
)
def test_wrong_settings_are_refused_before_any_task(spark, settings, wrong, text):
    frame = numbers(spark, 10).selectExpr("raise_error('a task ran') AS value")
    with pytest.raises(KafkaConfigurationError, match=text):
        write(frame, **{"topic": "t", **settings, **wrong})


def test_wrong_columns_are_refused_before_any_task(spark, settings):
    with pytest.raises(ValueError, match=r"column 'id' is not part of a Kafka record.*required column 'value'"):
        write(numbers(spark, 10), "t", **settings)
    with pytest.raises(ValueError, match="there is no topic"):
        write(numbers(spark, 10).selectExpr("CAST(id AS STRING) AS value"), **settings)
