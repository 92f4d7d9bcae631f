"""Tests ``df.writeStream.format("cyproducer")`` into a real Kafka: micro-batches, restarts, a failure."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from pyspark.errors import StreamingQueryException
from support.consumer import read_topic

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)


@pytest.fixture
def start(spark, kafka, tmp_path):
    """Return ``start(topic)``: runs a query until it has sent all files of ``tmp_path/in``, and ends it."""
    (tmp_path / "in").mkdir()

    def run(topic):
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
        query = (
            lines.selectExpr(
                "value",
                "_metadata.file_name AS key",
                "array(struct('length' AS key, encode(length(value), 'UTF-8') AS value)) AS headers",
            )
            .writeStream.format("cyproducer")
            .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
            .option("kafka.delivery.timeout.ms", 20_000)
            .option("kafka.request.timeout.ms", 10_000)
            .option("kafka.sender.idle.timeout.ms", 500)
            .option("topic", topic)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .queryName("lines")
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination(100)
        finally:
            query.stop()

    return run


def put(directory, name, lines):
    """Make a file that appears whole: Spark must not see it half written."""
    hidden = directory / f".{name}"
    hidden.write_text("".join(f"{line}\n" for line in lines))
    hidden.rename(directory / "in" / name)


def test_a_query_goes_on_from_its_checkpoint(kafka, topic, start, tmp_path):
    for number in range(3):
        put(tmp_path, f"first-{number}", [f"{number} {line}" for line in range(500)])
    start(topic)
    assert len(read_topic(kafka.bootstrap_servers, topic, 1_500)) == 1_500

    put(tmp_path, "second", [f"second {line}" for line in range(500)])
    start(topic)
    read = read_topic(kafka.bootstrap_servers, topic, 2_000)
    expected = [f"{number} {line}" for number in range(3) for line in range(500)]
    expected += [f"second {line}" for line in range(500)]
    assert Counter(read.value) == Counter(line.encode() for line in expected)
    for key, value, headers in zip(read.key, read.value, read.headers, strict=True):
        name = "second" if value.startswith(b"second") else f"first-{value.decode()[0]}"
        assert key == name.encode()
        assert headers == [("length", str(len(value)).encode())]
    assert [v for k, v in zip(read.key, read.value, strict=True) if k == b"second"] == [
        f"second {line}".encode() for line in range(500)
    ]


def test_a_micro_batch_that_failed_is_sent_again_after_a_restart(kafka, new_topic, start, tmp_path):
    topic = new_topic(1, configs={"max.message.bytes": "2000"})
    lines = [f"line {number}" for number in range(100)] + ["x" * 100_000]
    put(tmp_path, "lines", lines)
    with pytest.raises(StreamingQueryException) as caught:
        start(topic)
    text = str(caught.value)
    assert "at least one of the 101 rows that this task sent was not acknowledged" in text
    assert "RecordTooLargeError" in text

    resource = ConfigResource(
        ResourceType.TOPIC,
        topic,
        incremental_configs=[ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)],
    )
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(30)
    start(topic)
    # At least once: lines of the attempt that failed may be there twice, and none is missing.
    assert set(read_topic(kafka.bootstrap_servers, topic, 101).value) == {line.encode() for line in lines}


def test_output_mode_complete_sends_the_whole_result_each_time(spark, kafka, topic, tmp_path):
    (tmp_path / "in").mkdir()
    put(tmp_path, "one", ["a", "a", "b"])
    put(tmp_path, "two", ["a", "c"])
    words = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in"))
    query = (
        words.groupBy("value")
        .count()
        .selectExpr("value AS key", "CAST(count AS STRING) AS value")
        .writeStream.format("cyproducer")
        .outputMode("complete")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("topic", topic)
        .option("kafka.sender.idle.timeout.ms", 500)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(250)
    finally:
        query.stop()
    read = read_topic(kafka.bootstrap_servers, topic, 5)
    counts = Counter((key.decode(), int(value)) for key, value in zip(read.key, read.value, strict=True))
    # The files come in either order, and after both the result is the same.
    assert counts in (
        Counter({("a", 2): 1, ("b", 1): 2, ("a", 3): 1, ("c", 1): 1}),
        Counter({("a", 1): 1, ("c", 1): 2, ("a", 3): 1, ("b", 1): 1}),
    )


def test_a_query_without_files_writes_nothing(kafka, topic, start, tmp_path):
    start(topic)
    assert len(read_topic(kafka.bootstrap_servers, topic, 0)) == 0


def test_the_example(spark, kafka, topic, example, tmp_path):
    (tmp_path / "in").mkdir()
    places = (str(tmp_path / "in"), str(tmp_path / "checkpoint"))

    def feed_and_read():
        try:
            for count, name in enumerate(("one", "two"), 1):
                put(tmp_path, name, [f"{name} {line}" for line in range(100)])
                read = read_topic(kafka.bootstrap_servers, topic, 100 * count, timeout=100)
            return read
        finally:
            for query in spark.streams.active:
                query.stop()

    with ThreadPoolExecutor(1) as threads:
        # The example stays in this thread: Spark finds Python data sources only where its session is active.
        reading = threads.submit(feed_and_read)
        example("spark_streaming")(kafka.bootstrap_servers, topic, *places)
        read = reading.result()
    expected = {(name, f"{name} {line}") for name in ("one", "two") for line in range(100)}
    assert {(key.decode(), value.decode()) for key, value in zip(read.key, read.value, strict=True)} == expected
    assert all(headers == [("source", b"spark")] for headers in read.headers)
