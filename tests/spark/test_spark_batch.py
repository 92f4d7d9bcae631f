"""Tests ``df.write.format("cyproducer")`` into a real Kafka, read back by another client."""

import json
import os
import time
from collections import Counter

import pytest
from pyspark.errors import PySparkException
from support.connections import assert_shared, broker_connections, ports_of
from support.consumer import read_topic
from support.process import senders

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)

HEADERS = (
    "array(struct('number' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value), "
    "struct('none' AS key, CAST(NULL AS BINARY) AS value))"
)


def numbers(spark, rows, partitions, columns):
    return spark.range(0, rows, 1, partitions).selectExpr(*columns)


@pytest.mark.parametrize(
    ("partitions", "kind"), [(2, "STRING"), (2, "BINARY"), pytest.param(200, "STRING", marks=pytest.mark.long)]
)
def test_every_row_arrives_once(spark, kafka, topic, save, partitions, kind):
    text = "concat('värde ', id)"
    save(numbers(spark, 20_000, partitions, [f"CAST({text} AS {kind}) AS value"]), topic)
    read = read_topic(kafka.bootstrap_servers, topic, 20_000)
    assert sorted(read.value) == sorted(f"värde {number}".encode() for number in range(20_000))
    assert set(read.key) == {None}
    assert set(map(len, read.headers)) == {0}


@pytest.mark.parametrize("kind", ["STRING", "BINARY"])
def test_a_keys_rows_stay_in_order_in_one_partition(spark, kafka, topic, save, kind):
    columns = [f"CAST(CAST(id % 17 AS STRING) AS {kind}) AS key", "CAST(id AS STRING) AS value"]
    save(numbers(spark, 30_000, 1, columns), topic)
    read = read_topic(kafka.bootstrap_servers, topic, 30_000)
    partitions_of, values_of = {}, {}
    for key, value, partition in zip(read.key, read.value, read.partition, strict=True):
        partitions_of.setdefault(key, set()).add(partition)
        values_of.setdefault(key, []).append(int(value))
    assert {len(found) for found in partitions_of.values()} == {1}
    assert values_of == {str(key).encode(): list(range(key, 30_000, 17)) for key in range(17)}


def test_all_columns_of_a_row_stay_together(spark, kafka, topic, save):
    columns = [
        # 2001-09-09T01:46:40Z plus `id` milliseconds and 999 microseconds, which are cut off.
        "timestamp_micros(1000000000000000 + id * 1000 + 999) AS timestamp",
        "CAST(id % 3 AS INT) AS partition",
        f"{HEADERS} AS headers",
        "CAST(id AS STRING) AS value",
        "concat('k', id) AS key",
    ]
    save(numbers(spark, 5_000, 2, columns), topic, includeHeaders="true")
    read = read_topic(kafka.bootstrap_servers, topic, 5_000)
    assert Counter(read.value) == Counter(str(number).encode() for number in range(5_000))
    for at, value in enumerate(read.value):
        number = int(value)
        assert read.key[at] == b"k%d" % number
        assert read.partition[at] == number % 3
        assert read.timestamp[at] == 1_000_000_000_000 + number
        assert read.headers[at] == [("number", value), ("none", None)]


def test_nulls_are_kafkas_nulls_and_a_null_timestamp_is_now(spark, kafka, topic, save):
    before = int(time.time() * 1000)
    columns = [
        "IF(id % 2 = 0, NULL, concat('v', id)) AS value",
        "IF(id % 3 = 0, NULL, concat('k', id)) AS key",
        f"IF(id % 5 = 0, NULL, {HEADERS}) AS headers",
        "IF(id % 2 = 0, NULL, CAST(1 AS INT)) AS partition",
        "IF(id % 2 = 0, NULL, timestamp_millis(1000000000000 + id)) AS timestamp",
    ]
    save(numbers(spark, 300, 2, columns), topic)
    read = read_topic(kafka.bootstrap_servers, topic, 300)
    assert Counter(read.value) == Counter({None: 150} | {b"v%d" % n: 1 for n in range(1, 300, 2)})
    assert Counter(read.key) == Counter({None: 100} | {b"k%d" % n: 1 for n in range(300) if n % 3})
    assert Counter(map(len, read.headers)) == Counter({2: 240, 0: 60})
    for value, partition, stamp in zip(read.value, read.partition, read.timestamp, strict=True):
        if value is None:
            assert before - 10 <= stamp <= time.time() * 1000
        else:
            assert (partition, stamp) == (1, 1_000_000_000_000 + int(value[1:]))


def test_rows_of_sparks_kafka_source_are_written_unchanged(spark, kafka, topic, save):
    columns = [  # in the order and of the types of format("kafka")
        "CAST(concat('k', id) AS BINARY) AS key",
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
        "'other' AS topic",
        "CAST(id % 3 AS INT) AS partition",
        "id AS offset",
        "timestamp_millis(1000000000000 + id) AS timestamp",
        "0 AS timestampType",
        f"{HEADERS} AS headers",
    ]
    frame = numbers(spark, 1_000, 2, columns)
    save(frame, topic, subscribe="other", startingOffsets="earliest", kafka__group__id="g", includeHeaders="true")
    read = read_topic(kafka.bootstrap_servers, topic, 1_000)
    assert sorted(map(int, read.value)) == list(range(1_000))
    for at, value in enumerate(read.value):
        number = int(value)
        assert (read.key[at], read.partition[at]) == (b"k%d" % number, number % 3)
        assert read.timestamp[at] == 1_000_000_000_000 + number
        assert read.headers[at] == [("number", value), ("none", None)]


def test_the_topic_column_and_the_option_that_overrides_it(spark, kafka, new_topic, save):
    even, odd = new_topic(2), new_topic(2)
    columns = ["CAST(id AS STRING) AS value", f"IF(id % 2 = 0, '{even}', '{odd}') AS topic"]
    frame = numbers(spark, 2_000, 2, columns)
    save(frame)
    for name, first in ((even, 0), (odd, 1)):
        read = read_topic(kafka.bootstrap_servers, name, 1_000)
        assert sorted(map(int, read.value)) == list(range(first, 2_000, 2))
    save(frame, f" {even} ")
    assert len(read_topic(kafka.bootstrap_servers, even, 3_000)) == 3_000


def test_a_null_topic_fails_the_job_and_says_so(spark, topic, save):
    frame = numbers(spark, 10, 1, ["CAST(id AS STRING) AS value", f"IF(id = 3, NULL, '{topic}') AS topic"])
    with pytest.raises(PySparkException, match=r"column 'topic'\[3\]: the topic is null"):
        save(frame)


@pytest.mark.parametrize("rows_per_batch", ["7", "100000"])
@pytest.mark.parametrize("large", ["true", "false"])
def test_arrow_batches_of_any_size_and_offset_width(spark, kafka, topic, save, rows_per_batch, large):
    wanted = {
        "spark.sql.execution.arrow.useLargeVarTypes": large,
        "spark.sql.execution.arrow.maxRecordsPerBatch": rows_per_batch,
    }
    columns = [
        "CAST(id AS STRING) AS value",
        "CAST(CAST(id AS STRING) AS BINARY) AS key",
        f"{HEADERS} AS headers",
    ]
    before = {name: spark.conf.get(name) for name in wanted}
    try:
        for name, value in wanted.items():
            spark.conf.set(name, value)
        save(numbers(spark, 3_000, 2, columns), topic)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    read = read_topic(kafka.bootstrap_servers, topic, 3_000)
    assert sorted(map(int, read.value)) == list(range(3_000))
    assert read.key == read.value
    assert all(headers[0][1] == value for headers, value in zip(read.headers, read.value, strict=True))


def test_rows_beyond_the_buffer_wait_for_it(spark, kafka, topic, save):
    # 40 MB through a buffer of 4 MB: `send_arrow` has to wait for memory many times over.
    frame = numbers(spark, 20_000, 2, ["CAST(id AS STRING) AS key", "repeat('x', 2000) AS value"])
    save(frame, topic, kafka__buffer__memory=4 << 20)
    read = read_topic(kafka.bootstrap_servers, topic, 20_000)
    assert sorted(map(int, read.key)) == list(range(20_000))
    assert set(map(len, read.value)) == {2_000}


@pytest.mark.parametrize("partitions", [1, 2, 50])
def test_an_empty_frame_and_empty_partitions(spark, kafka, topic, save, partitions):
    empty = numbers(spark, 0, partitions, ["CAST(id AS STRING) AS value"])
    save(empty, topic)
    save(numbers(spark, 100, partitions, ["CAST(id AS STRING) AS value"]).where("value = '42'"), topic)
    assert read_topic(kafka.bootstrap_servers, topic, 1).value == [b"42"]


def test_a_row_that_the_broker_refuses_fails_the_job(spark, new_topic, save):
    small = new_topic(1, configs={"max.message.bytes": "2000"})
    frame = numbers(spark, 1_000, 1, ["IF(id = 500, repeat('x', 100000), 'small') AS value"])
    with pytest.raises(PySparkException) as caught:
        save(frame, small)
    text = str(caught.value)
    assert "DeliveryFailedError" in text
    assert "at least one of the 1000 rows that this task sent was not acknowledged" in text
    assert "RecordTooLargeError" in text


def test_a_row_above_max_request_size_fails_the_job(spark, topic, save):
    frame = numbers(spark, 3, 1, ["repeat('x', 3000000) AS value"])
    with pytest.raises(PySparkException, match="RecordTooLargeError"):
        save(frame, topic)


def test_a_topic_that_is_not_there_fails_the_job(spark, save):
    with pytest.raises(PySparkException) as caught:
        save(numbers(spark, 10, 1, ["'v' AS value"]), "no-such-topic", kafka__max__block__ms=2_000)
    assert "no-such-topic" in str(caught.value)


def test_a_partition_that_is_not_there_fails_the_job(spark, topic, save):
    frame = numbers(spark, 10, 1, ["'v' AS value", "CAST(99 AS INT) AS partition"])
    with pytest.raises(PySparkException) as caught:
        save(frame, topic, kafka__max__block__ms=2_000)
    assert "99" in str(caught.value)


def test_two_jobs_share_one_sender_and_its_connection(spark, kafka, topic, save, spark_runtime):
    found, connected = [], []
    for _ in range(2):
        save(numbers(spark, 1_000, 4, ["CAST(id AS STRING) AS value"]), topic)
        found.append({process.pid for process in senders(spark_runtime)})
        connections = broker_connections(*ports_of(kafka.bootstrap_servers))
        # The test's own process asks the broker for topics.
        connected.append({pid: count for pid, count in connections.items() if pid != os.getpid()})
    assert found[0] == found[1] != set()
    for counts in connected:
        assert_shared(counts, *(found[0] & counts.keys()))
    assert connected[0].keys() == connected[1].keys()


def test_the_example(kafka, topic, example, capsys):
    example("spark_batch")(kafka.bootstrap_servers, topic)
    assert capsys.readouterr().out == f"100000 rows written to {topic}\n"
    read = read_topic(kafka.bootstrap_servers, topic, 100_000)
    rows = [json.loads(value) for value in read.value]
    assert sorted(row["id"] for row in rows) == list(range(100_000))
    assert all(row["square"] == row["id"] ** 2 for row in rows)
    assert all(key == b"%d" % (row["id"] % 10) for key, row in zip(read.key, rows, strict=True))
