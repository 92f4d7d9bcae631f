"""Tests rows of Spark's own Kafka source, read by its connector and written by this package."""

import json
import re
from collections import Counter

import pytest
from confluent_kafka import Producer
from devkafka.maven import DownloadError, JavaMissingError
from pyspark.errors import IllegalArgumentException
from support.consumer import read_topic

from bench.spark_jars import spark_kafka_jars
from cyproducer.spark.options import parse_options

# The session's start, tens of seconds on a busy machine, does not count as the test's own time.
pytestmark = pytest.mark.timeout(300, func_only=True)

FIRST_MS = 1_000_000_000_000


@pytest.fixture(scope="module")
def spark_jars():
    """Return the jars of Spark's Kafka connector, which the first run on a machine fetches."""
    try:
        return spark_kafka_jars()
    except (DownloadError, JavaMissingError) as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture
def options(kafka):
    """Return one set of options for both sides, as applications have: each side ignores those of the other."""

    def options_of(source, target):
        return {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            # options of the source
            "subscribe": source,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "maxOffsetsPerTrigger": "150",
            "kafka.isolation.level": "read_committed",
            "kafka.max.poll.records": "100",
            # options of the sink
            "topic": target,
            "kafka.delivery.timeout.ms": "20000",
            "kafka.request.timeout.ms": "10000",
            "kafka.sender.idle.timeout.ms": "500",
        }

    return options_of


def fill(kafka, topic, first, last):
    """Send records that use every column, on each of three partitions, with another client."""
    headers = [
        None,
        [("a", b"1"), ("a", b"2")],
        [("none", None), ("empty", b""), ("имя", b"\xff\x00")],
    ]
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for number in range(first, last):
        producer.produce(
            topic,
            key=(None, b"", b"\xfe key %d" % number)[number % 5 % 3],
            value=(None, b"", b"\x80 value %d" % number, b"x" * number)[number % 4],
            headers=headers[number % 7 % 3],
            partition=number % 3,
            timestamp=FIRST_MS + number,
        )
    assert producer.flush(60) == 0


def records(kafka, topic, count):
    """Return all fields of a topic's records, by partition and in its order."""
    read = read_topic(kafka.bootstrap_servers, topic, count)
    assert len(read) == count
    found = {}
    for at, partition in enumerate(read.partition):
        fields = (read.offset[at], read.key[at], read.value[at], read.headers[at], read.timestamp[at])
        found.setdefault(partition, []).append(fields)
    return found


def test_a_batch_copies_a_topic_as_sparks_own_sink_does_and_keeps_the_time(spark, kafka, new_topic, options):
    source, ours, theirs = new_topic(3), new_topic(3), new_topic(3)
    fill(kafka, source, 0, 400)
    given = options(source, ours)
    frame = spark.read.format("kafka").options(**given).load()
    frame.write.format("cyproducer").mode("append").options(**given).save()
    frame.write.format("kafka").options(**options(source, theirs)).save()
    wanted = records(kafka, source, 400)
    assert records(kafka, ours, 400) == wanted
    found = records(kafka, theirs, 400)
    assert {at: [fields[:-1] for fields in rows] for at, rows in found.items()} == {
        at: [fields[:-1] for fields in rows] for at, rows in wanted.items()
    }
    # Spark's own sink has no column for the time.
    assert min(fields[-1] for rows in found.values() for fields in rows) > FIRST_MS + 400


@pytest.mark.long
def test_a_topic_is_copied_by_a_query_that_goes_on_from_its_checkpoint(spark, kafka, new_topic, options, tmp_path):
    source, target = new_topic(3), new_topic(3)
    given = options(source, target)
    for first, last in ((0, 400), (400, 600)):
        fill(kafka, source, first, last)
        query = (
            spark.readStream.format("kafka")
            .options(**given)
            .load()
            .writeStream.format("cyproducer")
            .options(**given)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(250)
        finally:
            query.stop()
        assert records(kafka, target, last) == records(kafka, source, last)


def test_no_consumer_setting_that_the_source_takes_is_refused(spark):
    clients = spark._jvm.org.apache.kafka.clients
    named = set(clients.consumer.ConsumerConfig.configNames()) - set(clients.producer.ProducerConfig.configNames())
    taken = set()
    for name in (f"kafka.{name}" for name in sorted(named) if not name.startswith("internal.")):
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", "b:1").option("subscribe", "t")
        try:
            reader.option(name, "1").load()
        except IllegalArgumentException:
            continue
        taken.add(name)
    assert taken
    for name in taken:
        # The producer has some of these settings as well (client.rack). It takes them then.
        parse_options({"kafka.bootstrap.servers": "b:1", name: "1"})


def check_progress(printed, count):
    """Check what the listener of the pipeline has printed for a run with so many new records."""
    first, *progress, last = (line for line in printed.splitlines() if line.startswith(("query ", "micro-batch ")))
    started = re.fullmatch(r"query ([0-9a-f-]{36}) has started", first)
    assert started, printed
    assert last == f"query {started[1]} has ended: without an error"
    found = [re.fullmatch(r"micro-batch (\d+): (\d+) rows read", line) for line in progress]
    numbers = [int(each[1]) for each in found]
    assert numbers == sorted(set(numbers))
    assert sum(int(each[2]) for each in found) == count


def test_the_pipeline_counts_each_record_once(example, kafka, new_topic, one_host, tmp_path, caplog, capsys):
    """`examples/spark_pipeline.py`, started three times: with and without new records."""
    source, target = new_topic(3), new_topic(2)
    main = example("spark_pipeline")
    sent = Counter()
    amounts = Counter()
    for first, last in ((0, 300), (300, 300), (300, 500)):
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        for number in range(first, last):
            shop, minute = f"shop-{number % 3}", number % 2
            row = {"shop": shop, "amount": number, "at": f"2026-01-31T12:0{minute}:05Z"}
            producer.produce(source, value=json.dumps(row), partition=number % 3)
            sent[shop, minute] += 1
            amounts[shop, minute] += number
        assert producer.flush(60) == 0
        main(kafka.bootstrap_servers, source, target, str(tmp_path / "checkpoint"), until_end="yes")
        check_progress(capsys.readouterr().out, last - first)
    read = read_topic(kafka.bootstrap_servers, target, 12)
    assert len(read) == 12  # six windows, each in two micro-batches
    rows = [json.loads(value) for value in read.value]
    assert {key.decode() for key in read.key} == {row["shop"] for row in rows} == {"shop-0", "shop-1", "shop-2"}
    last = {}
    for row in sorted(rows, key=lambda row: row["purchases"]):
        minute = int(row["start"].split(":")[1]) % 10
        last[row["shop"], minute] = row["purchases"], row["amount"]
    assert last == {window: (sent[window], amounts[window]) for window in sent}
    assert "is written again" not in caplog.text
