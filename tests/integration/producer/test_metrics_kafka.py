"""Tests every metric against known work on a real Kafka node: counts, bytes, times, and Kafka's names."""

import math
import multiprocessing
import os
import threading
import time

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from support.process import kill9, wait_until
from support.supervised import another, pair, the_sender

from cyproducer import errors
from cyproducer.observe.status import status
from cyproducer.producer.shared_transaction import sender_of

#: The names of Kafka's Java producer, without those that it declares deprecated.
JAVA_NAMES = """
batch-size-avg batch-size-max compression-rate-avg record-queue-time-avg record-queue-time-max request-latency-avg
request-latency-max produce-throttle-time-avg produce-throttle-time-max record-send-rate record-send-total
records-per-request-avg record-retry-rate record-retry-total record-error-rate record-error-total record-size-avg
record-size-max requests-in-flight metadata-age batch-split-rate batch-split-total waiting-threads buffer-total-bytes
buffer-available-bytes bufferpool-wait-ratio bufferpool-wait-time-ns-total buffer-exhausted-rate
buffer-exhausted-total flush-time-ns-total metadata-wait-time-ns-total txn-init-time-ns-total txn-begin-time-ns-total
txn-send-offsets-time-ns-total txn-commit-time-ns-total txn-abort-time-ns-total txn-prepare-time-ns-total
connection-count connection-creation-rate connection-creation-total connection-close-rate connection-close-total
successful-authentication-rate successful-authentication-total failed-authentication-rate failed-authentication-total
successful-reauthentication-rate successful-reauthentication-total failed-reauthentication-rate
failed-reauthentication-total successful-authentication-no-reauth-total reauthentication-latency-avg
reauthentication-latency-max network-io-rate network-io-total outgoing-byte-rate outgoing-byte-total
incoming-byte-rate incoming-byte-total request-rate request-total request-size-avg request-size-max response-rate
response-total select-rate select-total io-wait-time-ns-avg io-wait-ratio io-wait-time-ns-total io-time-ns-avg
io-ratio io-time-ns-total
"""
JAVA = JAVA_NAMES.split()
OURS = ["record-accepted-total", "byte-total", "batch-total", "batch-error-total", "batches-pending"]
NODE_NAMES = """
request-rate request-total request-size-avg request-size-max outgoing-byte-rate outgoing-byte-total response-rate
response-total incoming-byte-rate incoming-byte-total request-latency-avg request-latency-max
"""
NODE = NODE_NAMES.split()
TOPIC_NAMES = """
record-send-rate record-send-total byte-rate byte-total compression-rate record-retry-rate record-retry-total
record-error-rate record-error-total
"""
TOPIC = TOPIC_NAMES.split()
#: What a Java producer without transactions and authentication shows.
ABSENT = {name: 0.0 for name in JAVA if name.startswith(("txn-", "successful-", "failed-"))}

HEADER = 61  # bytes of a batch without records
TOPIC_ID = 16  # bytes
VALUE = b"v" * 100
#: length 2, attributes 1, timestamp delta 1, offset delta 1 (below 64), no key 1, value length 2, value, no headers 1
RECORD = 9 + len(VALUE)
ROUND = 50  # records of a batch
BATCH = HEADER + ROUND * RECORD
NOW = 1_700_000_000_000
MS = 1_000_000


def own(producer):
    return producer.metrics()["producer-metrics"]


def of_topic(producer, topic):
    return producer.metrics()[f"producer-topic-metrics.{topic}"]


def send_round(producer, topic, count=ROUND, **more):
    """Send one batch in one request, and wait for its outcome."""
    futures = [producer.send(topic, VALUE, partition=0, timestamp_ms=NOW, **more) for _ in range(count)]
    producer.flush(30)
    assert all(future.succeeded() for future in futures)


def equal(found, expected):
    assert {name: found[name] for name in expected} == pytest.approx(expected, nan_ok=True)


def test_the_names_are_those_of_kafka(make_producer, topic):
    producer = make_producer()
    send_round(producer, topic)
    metrics = producer.metrics()
    assert len(set(JAVA)) == len(JAVA) == 73
    assert sorted(set(metrics["producer-metrics"]) - set(OURS)) == sorted(JAVA)
    assert [group for group in metrics if not group.startswith(("producer-node", "producer-topic"))] == [
        "producer-metrics", "app-info",
    ]  # fmt: skip
    assert set(metrics["producer-node-metrics.node-1"]) == set(NODE)
    assert set(metrics[f"producer-topic-metrics.{topic}"]) == set(TOPIC)
    assert set(metrics["app-info"]) == {"version", "commit-id", "start-time-ms"}
    equal(metrics["producer-metrics"], ABSENT)
    for name in ("reauthentication-latency-avg", "reauthentication-latency-max"):
        assert math.isnan(metrics["producer-metrics"][name])


def test_a_new_producer_has_done_nothing(make_producer):
    before = time.time()
    producer = make_producer(buffer_memory=2 << 20)
    metrics = producer.metrics()
    assert set(metrics) == {"producer-metrics", "app-info"}
    for name, number in metrics["producer-metrics"].items():
        if name in ("buffer-total-bytes", "buffer-available-bytes"):
            assert number == 2 << 20
        elif name.endswith(("-avg", "-max", "-age")):
            assert math.isnan(number), name
        else:
            assert number == 0, name
    assert before - 1 <= metrics["app-info"]["start-time-ms"] / 1000 <= time.time()


def test_known_batches(make_producer, topic, kafka):
    producer = make_producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    began = time.monotonic()
    for _ in range(4):
        send_round(producer, topic)
    took = time.monotonic() - began
    assert [(batch.size, batch.count) for batch in kafka.dump_log(topic)] == [(BATCH, ROUND)] * 4
    metrics = producer.metrics()
    equal(
        metrics["producer-metrics"],
        {
            "batch-size-avg": BATCH,
            "batch-size-max": BATCH,
            "compression-rate-avg": 1,
            "record-send-total": 4 * ROUND,
            "records-per-request-avg": ROUND,
            "record-retry-total": 0,
            "record-error-total": 0,
            "record-size-avg": RECORD,
            "record-size-max": RECORD,
            "batch-split-total": 0,
            "requests-in-flight": 0,
            "record-accepted-total": 4 * ROUND,
            "batch-total": 4,
            "byte-total": 4 * ROUND * RECORD,
        },
    )
    expected = {
        "record-send-total": 4 * ROUND,
        "byte-total": 4 * BATCH,
        "compression-rate": 1,
        "record-retry-total": 0,
        "record-retry-rate": 0,
        "record-error-total": 0,
        "record-error-rate": 0,
    }
    equal(metrics[f"producer-topic-metrics.{topic}"], expected)
    # one window of 30 s, which Kafka assumes to lie before the first event, and the time since then
    for group, name, total in (
        ("producer-metrics", "record-send-rate", 4 * ROUND),
        (f"producer-topic-metrics.{topic}", "record-send-rate", 4 * ROUND),
        (f"producer-topic-metrics.{topic}", "byte-rate", 4 * BATCH),
    ):
        assert total / (30 + took + 30) <= metrics[group][name] <= total / 30, name


def test_sizes_are_averages_of_batches(make_producer, topic):
    producer = make_producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    send_round(producer, topic, 10)
    send_round(producer, topic, 30)
    producer.send(topic, b"v" * 20, partition=0, timestamp_ms=NOW)
    producer.flush(30)
    sizes = [HEADER + 10 * RECORD, HEADER + 30 * RECORD, HEADER + 20 + 8 - 1]
    small = sizes[2] - HEADER  # its length and that of its value need one byte each
    found = own(producer)
    equal(
        found,
        {
            "batch-size-avg": sum(sizes) / 3,
            "batch-size-max": max(sizes),
            "records-per-request-avg": 41 / 3,
            "record-size-avg": (2 * RECORD + small) / 3,
            "record-size-max": RECORD,
        },
    )


def request_bytes(client_id):
    """Return the size of a Produce request (v13) with one batch: frame, header, fields, topic, partition."""
    header = 4 + 2 + 2 + 4 + 2 + len(client_id) + 1
    return header + 1 + 2 + 4 + 1 + TOPIC_ID + 1 + 4 + 2 + BATCH + 1 + 1 + 1


def response_bytes():
    """Return the size of its response."""
    partition = 4 + 2 + 8 + 8 + 8 + 1 + 1 + 1
    return 4 + 4 + 1 + 1 + TOPIC_ID + 1 + partition + 1 + 4 + 1


def test_requests_and_bytes_of_the_connection(make_producer, topic):
    """Nothing but Produce requests is sent between the two looks."""
    producer = make_producer(linger_ms=60_000, delivery_timeout_ms=120_000, client_id="counted")
    send_round(producer, topic)
    before = producer.metrics()
    for _ in range(3):
        send_round(producer, topic)
    after = producer.metrics()
    size, answer = request_bytes("counted"), response_bytes()
    expected = {
        "request-total": 3,
        "response-total": 3,
        "outgoing-byte-total": 3 * size,
        "incoming-byte-total": 3 * answer,
    }
    for group in ("producer-metrics", "producer-node-metrics.node-1"):
        found = {name: after[group][name] - before[group][name] for name in expected}
        assert found == expected
        assert after[group]["request-size-max"] == size
        requests, sent = after[group]["request-total"], after[group]["outgoing-byte-total"]
        assert after[group]["request-size-avg"] == pytest.approx(sent / requests)
        for rate, total in (("request-rate", requests), ("outgoing-byte-rate", sent)):
            assert total / 60 < after[group][rate] <= total / 30
        assert after[group]["response-rate"] == pytest.approx(after[group]["request-rate"], rel=0.05)
        received = after[group]["incoming-byte-total"]
        assert received / 60 < after[group]["incoming-byte-rate"] <= received / 30
    # at least one write and one read for each request
    assert after["producer-metrics"]["network-io-total"] - before["producer-metrics"]["network-io-total"] >= 6
    assert after["producer-metrics"]["network-io-rate"] >= after["producer-metrics"]["network-io-total"] / 60
    everything = [group for group in after if group.startswith("producer-node-metrics.")]
    assert sum(after[group]["request-total"] for group in everything) == after["producer-metrics"]["request-total"]


def test_a_slow_broker(make_producer, topic, kafka):
    """The time of a request, what is in flight, and the waits of flush() and for the sockets."""
    producer = make_producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    send_round(producer, topic)
    assert own(producer)["requests-in-flight"] == 0
    kafka.pause()
    producer.send(topic, VALUE, partition=0)
    waiter = threading.Thread(target=producer.flush, args=(30,))
    waiter.start()
    wait_until(lambda: own(producer)["requests-in-flight"] == 1, what="a request in flight")
    seen = time.monotonic()
    wait_until(lambda: time.monotonic() - seen >= 0.3, what="the pause")
    kafka.resume()
    waiter.join(30)
    metrics = producer.metrics()
    for group in ("producer-metrics", "producer-node-metrics.node-1"):
        slowest = metrics[group]["request-latency-max"]
        assert slowest >= 300
        # two requests
        assert slowest / 2 <= metrics[group]["request-latency-avg"] < slowest
    found = metrics["producer-metrics"]
    assert found["requests-in-flight"] == 0
    assert found["flush-time-ns-total"] >= 300 * MS
    assert found["io-wait-time-ns-total"] >= 300 * MS
    assert found["select-total"] > 0
    assert found["io-wait-time-ns-avg"] == pytest.approx(found["io-wait-time-ns-total"] / found["select-total"])
    assert found["io-wait-ratio"] >= 0.3 / 60
    assert found["select-rate"] >= found["select-total"] / 60
    assert 0 < found["io-time-ns-total"] < found["io-wait-time-ns-total"]
    assert 0 < found["io-time-ns-avg"] <= found["io-time-ns-total"]
    assert 0 < found["io-ratio"] < found["io-wait-ratio"]


def test_the_time_in_the_queue_is_that_of_lingering(make_producer, topic):
    producer = make_producer(linger_ms=300)
    producer.send(topic, VALUE, partition=0).result(30)
    found = own(producer)
    assert found["record-queue-time-max"] >= 300
    assert found["record-queue-time-avg"] == found["record-queue-time-max"]


def test_compression(make_producer, topic, kafka):
    producer = make_producer(compression_type="gzip", linger_ms=60_000, delivery_timeout_ms=120_000)
    for _ in range(2):
        send_round(producer, topic)
    sizes = [batch.size for batch in kafka.dump_log(topic)]
    rates = [(size - HEADER) / (ROUND * RECORD) for size in sizes]
    assert max(rates) < 0.5
    metrics = producer.metrics()
    assert metrics["producer-metrics"]["compression-rate-avg"] == pytest.approx(sum(rates) / 2, abs=1e-6)
    equal(metrics["producer-metrics"], {"batch-size-avg": sum(sizes) / 2, "batch-size-max": max(sizes)})
    found = metrics[f"producer-topic-metrics.{topic}"]
    assert found["compression-rate"] == pytest.approx(sum(rates) / 2, abs=1e-6)
    assert found["byte-total"] == sum(sizes)


def test_records_that_fail(make_producer, kafka, new_topic):
    """Each counts once: in the log's check, and in the call."""
    topic = new_topic(1, configs={"cleanup.policy": "compact"})
    producer = make_producer(max_request_size=100_000, value_serializer=lambda value: value)
    refused = [producer.send(topic, VALUE) for _ in range(3)]
    assert all(isinstance(future.exception(30), errors.KafkaError) for future in refused)
    found = producer.metrics()
    assert found["producer-metrics"]["record-error-total"] == 3
    assert 3 / 60 < found["producer-metrics"]["record-error-rate"] <= 3 / 30
    assert found[f"producer-topic-metrics.{topic}"]["record-error-total"] == 3
    assert 3 / 60 < found[f"producer-topic-metrics.{topic}"]["record-error-rate"] <= 3 / 30
    with pytest.raises(errors.RecordTooLargeError):
        producer.send(topic, b"x" * 200_000, key=b"k")
    with pytest.raises(errors.SerializationError):
        producer.send(topic, 17, key=b"k")
    with pytest.raises(TypeError):
        producer.send(topic, VALUE, key=17)
    found = producer.metrics()
    assert found["producer-metrics"]["record-error-total"] == 5
    assert found[f"producer-topic-metrics.{topic}"]["record-error-total"] == 3
    wait_until(
        lambda: the_sender()["metrics"]["producer-metrics"]["record-error-total"] == 5, what="the sum of the sender"
    )


def test_records_that_are_sent_again(make_producer, topic, kafka):
    """The broker does not answer in time, so the batch is sent once more. Each attempt counts as sent."""
    producer = make_producer(request_timeout_ms=500, linger_ms=60_000, delivery_timeout_ms=120_000)
    send_round(producer, topic)
    kafka.pause()
    futures = [producer.send(topic, VALUE, partition=0, timestamp_ms=NOW) for _ in range(7)]
    waiter = threading.Thread(target=producer.flush, args=(60,))
    waiter.start()
    wait_until(lambda: own(producer)["record-retry-total"] > 0, 30, "the time-out of the request")
    kafka.resume()
    waiter.join(60)
    assert all(future.succeeded() for future in futures)
    metrics = producer.metrics()
    for group in ("producer-metrics", f"producer-topic-metrics.{topic}"):
        found = metrics[group]
        retries = found["record-retry-total"]
        assert retries >= 7 and retries % 7 == 0
        equal(found, {"record-send-total": ROUND + 7 + retries, "record-error-total": 0})
        assert retries / 90 < found["record-retry-rate"] <= retries / 30
    attempts = 1 + retries / 7
    assert metrics[f"producer-topic-metrics.{topic}"]["byte-total"] == BATCH + attempts * (HEADER + 7 * RECORD)


def test_a_quota(make_producer, topic, kafka):
    """The broker says how long it throttles the client; the responses without that count as 0."""
    config = ("--bootstrap-server", kafka.bootstrap_servers, "--alter", "--entity-type", "clients")
    name = ("--entity-name", "throttled")
    kafka.tool("kafka.admin.ConfigCommand", *config, *name, "--add-config", "producer_byte_rate=2000")
    try:
        producer = make_producer(client_id="throttled", linger_ms=60_000, delivery_timeout_ms=120_000)
        send_round(producer, topic, 5)
        assert own(producer)["produce-throttle-time-max"] == 0
        send_round(producer, topic, 500)  # 27 times the rate for two seconds
        found = own(producer)
        slowest = found["produce-throttle-time-max"]
        assert slowest >= 100
        # every response has a throttle time
        assert found["produce-throttle-time-avg"] == pytest.approx(slowest / found["response-total"])
    finally:
        kafka.tool("kafka.admin.ConfigCommand", *config, *name, "--delete-config", "producer_byte_rate")


def test_memory_that_is_used_up(make_producer, topic, kafka):
    producer = make_producer(buffer_memory=1 << 20, max_block_ms=400, max_request_size=1 << 20)
    wait_until(lambda: _attached(producer, topic), 60, "a sender")  # its start may take longer than max_block_ms
    send_round(producer, topic)
    kafka.pause()
    began = time.monotonic_ns()
    with pytest.raises(errors.BufferExhaustedError):
        while True:
            producer.send(topic, bytes(60_000), partition=0)
    took = time.monotonic_ns() - began
    found = own(producer)
    equal(found, {"buffer-exhausted-total": 1, "record-error-total": 1, "waiting-threads": 0})
    assert 1 / 60 < found["buffer-exhausted-rate"] <= 1 / 30
    assert 400 * MS <= found["bufferpool-wait-time-ns-total"] <= took
    assert 0.4 / 60 < found["bufferpool-wait-ratio"] <= took / 30e9
    assert found["buffer-total-bytes"] == 1 << 20
    assert found["buffer-available-bytes"] < 65_536
    blocked = threading.Thread(target=_try_to_send, args=(producer, topic))
    blocked.start()
    wait_until(lambda: own(producer)["waiting-threads"] == 1, what="a thread that waits")
    of_all = the_sender()["metrics"]["producer-metrics"]
    equal(of_all, {"waiting-threads": 1, "buffer-exhausted-total": 1, "buffer-total-bytes": 1 << 20})
    kafka.resume()
    blocked.join(30)
    producer.flush(30)
    wait_until(lambda: own(producer)["buffer-available-bytes"] == 1 << 20, what="all memory")


def _attached(producer, topic):
    try:
        return producer.partitions_for(topic)
    except errors.KafkaError:
        return None


def _try_to_send(producer, topic):
    try:
        producer.send(topic, bytes(60_000), partition=0)
    except errors.BufferExhaustedError:
        pass


def test_waiting_for_metadata(make_producer, new_topic):
    topics = new_topic(), new_topic()
    producer = make_producer()
    producer.send(topics[0], VALUE).result(30)
    first = own(producer)["metadata-wait-time-ns-total"]
    assert first > 0
    producer.send(topics[0], VALUE).result(30)
    assert own(producer)["metadata-wait-time-ns-total"] == first
    began = time.monotonic_ns()
    producer.partitions_for(topics[1])
    took = time.monotonic_ns() - began
    assert first < own(producer)["metadata-wait-time-ns-total"] <= first + took
    with pytest.raises(errors.KafkaError):
        producer.send("not a name", VALUE)
    assert 0 <= own(producer)["metadata-age"] < 300


def test_connections(make_producer, topic, kafka):
    producer = make_producer(delivery_timeout_ms=60_000, request_timeout_ms=10_000)
    send_round(producer, topic)
    found = own(producer)
    equal(found, {"connection-count": 1, "connection-creation-total": 1, "connection-close-total": 0})
    assert 1 / 60 < found["connection-creation-rate"] <= 1 / 30
    kafka.restart()
    # the outcome of a record that the node receives while it ends may be unknown
    producer.send(topic, VALUE, partition=0, timestamp_ms=NOW).exception(60)
    send_round(producer, topic)
    found = own(producer)
    assert found["connection-count"] == 1
    assert found["connection-creation-total"] >= 2
    # attempts that the restarting node has refused are closed without having been established
    assert found["connection-close-total"] >= found["connection-creation-total"] - 1
    assert found["connection-close-total"] / 60 < found["connection-close-rate"] <= found["connection-close-total"] / 30


def test_each_process_sees_its_share_and_the_sender_the_sum(make_producer, new_topic, kafka):
    """The batches of both producers go into one batch, whose bytes are divided."""
    shared, other = new_topic(1), new_topic(1)
    first, second = make_producer(linger_ms=500), make_producer(linger_ms=500)
    for producer in (first, second):
        producer.partitions_for(shared)
    futures = [first.send(shared, VALUE, timestamp_ms=NOW) for _ in range(30)]
    futures += [second.send(shared, VALUE, timestamp_ms=NOW) for _ in range(10)]
    for future in futures:
        future.result(30)
    second.send(other, VALUE, timestamp_ms=NOW).result(30)
    assert own(first)["record-send-total"] == 30
    assert own(second)["record-send-total"] == 11
    assert f"producer-topic-metrics.{other}" not in first.metrics()
    in_log = sum(batch.size for batch in kafka.dump_log(shared))
    assert of_topic(first, shared)["byte-total"] + of_topic(second, shared)["byte-total"] == in_log
    status = the_sender()
    of_all = status["metrics"]
    assert of_all["producer-metrics"]["record-send-total"] == 41
    assert of_all[f"producer-topic-metrics.{shared}"]["byte-total"] == in_log
    assert of_all[f"producer-topic-metrics.{shared}"]["record-send-total"] == 40
    assert of_all["producer-metrics"]["buffer-total-bytes"] == 2 * own(first)["buffer-total-bytes"]
    assert of_all["producer-metrics"]["request-total"] == own(first)["request-total"] == own(second)["request-total"]
    assert status["host_metrics"]["record-send-total"] == 41
    assert of_all["producer-metrics"]["reauthentication-latency-avg"] is None
    first.send_array(shared, [VALUE, VALUE], partition=0).result(30)
    assert own(first)["record-send-total"] == 32
    first.close(10)
    wait_until(lambda: len(the_sender()["front_ends"]) == 1, what="the end of the first producer")
    after = the_sender()["metrics"]["producer-metrics"]
    assert after["record-send-total"] == 43
    assert after["metadata-wait-time-ns-total"] == of_all["producer-metrics"]["metadata-wait-time-ns-total"]


def test_a_sender_that_is_killed(make_producer, topic):
    """Its successor continues every total. The connections are new."""
    producer = make_producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    send_round(producer, topic)
    before = producer.metrics()
    former = pair()
    kill9(former[0])
    another(former)
    send_round(producer, topic)
    after = producer.metrics()
    assert after["producer-metrics"]["record-send-total"] == 2 * ROUND
    assert after[f"producer-topic-metrics.{topic}"]["byte-total"] == 2 * BATCH
    assert after["producer-metrics"]["connection-count"] == 1
    assert the_sender()["metrics"]["producer-metrics"]["record-send-total"] == 2 * ROUND
    fallen = [
        (group, name)
        for group, values in before.items()
        for name, value in values.items()
        if name.endswith("-total") and after[group][name] < value
    ]
    assert fallen == []


def test_another_sender(make_producer, topic):
    """The totals of the process continue; the sender counts from the start."""
    producer = make_producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    send_round(producer, topic)
    with pytest.raises(errors.RecordTooLargeError):
        producer.send(topic, bytes(2 << 20))
    for pid in reversed(pair()):
        kill9(pid)
    channel = producer._channel()
    wait_until(lambda: not channel.session.alive or producer.metrics() is None, what="the end of the session")
    found = producer.metrics()
    assert found["producer-metrics"]["record-send-total"] == ROUND
    assert found[f"producer-topic-metrics.{topic}"]["record-send-total"] == ROUND
    send_round(producer, topic)
    found = producer.metrics()
    equal(found["producer-metrics"], {"record-send-total": 2 * ROUND, "record-error-total": 1})
    assert found[f"producer-topic-metrics.{topic}"]["byte-total"] == 2 * BATCH
    of_all = the_sender()["metrics"]["producer-metrics"]
    equal(of_all, {"record-send-total": ROUND, "record-error-total": 0})


def _in_child(producer, topic, results):
    before = own(producer)["record-send-total"]
    producer.send(topic, VALUE).result(30)
    results.put((before, own(producer)["record-send-total"], os.getpid()))
    producer.close(10)


def test_a_forked_child_counts_for_itself(make_producer, topic):
    producer = make_producer()
    send_round(producer, topic)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_in_child, args=(producer, topic, results))
    child.start()
    assert results.get(timeout=60)[:2] == (0, 1)
    child.join(30)
    assert own(producer)["record-send-total"] == ROUND
    wait_until(lambda: the_sender()["metrics"]["producer-metrics"]["record-send-total"] == ROUND + 1, what="the sum")


def test_the_windows_are_settings(make_producer, topic):
    """What concerns the connections keeps windows of 30 s: other processes share it."""
    producer = make_producer(metrics_sample_window_ms=100, metrics_num_samples=3)
    send_round(producer, topic)
    wait_until(lambda: own(producer)["record-send-rate"] == 0, what="the end of the windows")
    found = own(producer)
    assert math.isnan(found["batch-size-avg"])
    assert found["record-send-total"] == ROUND
    assert found["request-rate"] > 0


@pytest.mark.parametrize("samples", [1, 2, 3, 10])
def test_the_number_of_windows_is_a_setting(make_producer, topic, samples):
    """A rate is divided by the time of all windows but the last one, and by what has passed of that one."""
    window_s = 600
    producer = make_producer(metrics_sample_window_ms=window_s * 1000, metrics_num_samples=samples)
    with pytest.raises(errors.RecordTooLargeError):
        producer.send(topic, bytes(2 << 20))
    send_round(producer, topic)
    found = own(producer)
    for events, rate in ((ROUND, "record-send-rate"), (1, "record-error-rate")):
        assert (samples - 1) * window_s <= events / found[rate] < samples * window_s, rate
    assert (samples - 1) * window_s <= ROUND / of_topic(producer, topic)["record-send-rate"] < samples * window_s


def test_more_topics_than_rows_are_counted_together(make_producer, kafka):
    """A process has 256 rows. The records of the topics without a row are in the sum, and in one group."""
    names = [f"row-{number}" for number in range(280)]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        created.result(60)
    producer = make_producer()
    for future in [producer.send(name, VALUE) for name in names]:
        future.result(60)
    groups = {g: values for g, values in producer.metrics().items() if g.startswith("producer-topic-metrics.")}
    assert len(groups) <= 257
    # a leader that is not ready yet refuses a record, which then counts once more
    sent = {g: values["record-send-total"] - values["record-retry-total"] for g, values in groups.items()}
    assert sent.pop("producer-topic-metrics.(other)") == 280 - len(sent)
    assert set(sent.values()) == {1}


def test_the_sender_counts_the_time_of_the_calls_for_transactions(kafka, topic, make_producer):
    """It pushes them to the brokers, also those of producers that have ended."""
    make_producer().send(topic, b"x").result(30)  # keeps the sender
    producer = make_producer(transactional_id=topic)
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.send(topic, b"x")
        producer.send_offsets_to_transaction({(topic, 0): 1}, topic)
        end()

    def times(metrics):
        return {name: metrics["producer-metrics"][name] for name in JAVA if name.startswith("txn-")}

    path = sender_of(producer).address
    found = times(producer.metrics())
    assert {name for name, took in found.items() if not took} == {"txn-prepare-time-ns-total"}
    assert times(status(path)[0]["metrics"]) == found
    producer.close()
    assert times(status(path)[0]["metrics"]) == found
