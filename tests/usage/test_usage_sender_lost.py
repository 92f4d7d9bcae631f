"""Tests sender and supervisor killed at once: unsent records arrive, those in flight have an unknown outcome."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from devkafka.node import KafkaCluster
from support.consumer import ReadRecords, read_topic
from support.process import kill_senders, run_script, wait_until

from cyproducer import as_completed, errors
from cyproducer.observe.status import status


def check(sent: list[tuple[bytes, Any]], records: ReadRecords) -> tuple[int, int]:
    """Compare the log with the sent records, (value, future) in order; return (acknowledged, unknown).

    Acknowledged: there once, at its offset, in the order of the sends. Unknown: there at most once.
    """
    places = dict(zip(zip(records.partition, records.offset, strict=True), records.value, strict=True))
    counts = Counter(records.value)
    acknowledged: list[bytes] = []
    unknown: set[bytes] = set()
    last: dict[int, int] = {}
    for value, future in sent:
        error = future.exception(30)
        if error is None:
            record = future.result(0)
            assert places[record.partition, record.offset] == value
            assert last.get(record.partition, -1) < record.offset, "out of order"
            last[record.partition] = record.offset
            acknowledged.append(value)
        else:
            assert type(error) is errors.SenderLostError, error
            assert not error.retriable
            unknown.add(value)
    assert all(counts[value] == 1 for value in acknowledged)
    assert all(counts[value] <= 1 for value in unknown)
    assert counts.keys() <= {*acknowledged, *unknown}
    return len(acknowledged), len(unknown)


def test_outstanding_records_arrive_and_the_next_send_works(
    kafka: KafkaCluster, make_producer: Callable[..., Any], topic: str, runtime_dir: Path
) -> None:
    producer = make_producer(linger_ms=0, buffer_memory=16 << 20)
    sent = [(b"first", producer.send(topic, b"first"))]
    sent[0][1].result(30)
    kafka.pause()
    for number in range(20_000):
        sent.append((b"%d" % number, producer.send(topic, b"%d" % number, partition=number % 3)))
    # on a busy machine the sender may not have run yet
    wait_until(lambda: any(row["in_flight"] for each in status() for row in each["connections"]), 30, "a request")
    kill_senders(runtime_dir)
    # If the producer notices the loss before this send, the send waits for metadata from the brokers.
    resuming = threading.Timer(1, kafka.resume)
    resuming.start()
    try:
        sent.append((b"last", producer.send(topic, b"last", partition=0)))
    finally:
        resuming.join()
    producer.flush(60)
    known = sum(future.exception(0) is None for _, future in sent)
    acknowledged, unknown = check(sent, read_topic(kafka.bootstrap_servers, topic, known))
    assert unknown > 0, "nothing had gone out"
    assert acknowledged > 1, "nothing was kept for the next sender"


def test_under_load_outcomes_are_true(
    kafka: KafkaCluster, make_producer: Callable[..., Any], topic: str, runtime_dir: Path
) -> None:
    producer = make_producer()
    sent: list[tuple[bytes, Any]] = []
    arrays: list[Any] = []
    stop = threading.Event()

    def stream() -> None:
        while not stop.is_set():
            value = b"%d" % len(sent)
            sent.append((value, producer.send(topic, value, partition=len(sent) % 2)))

    def stream_arrays() -> None:
        while not stop.is_set():
            first = 100 * len(arrays)
            rows = np.array([b"array %07d" % n for n in range(first, first + 100)])
            arrays.append(producer.send_array(topic, rows, partition=2))

    threads = [threading.Thread(target=stream), threading.Thread(target=stream_arrays)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        known = len(sent)
        wait_until(lambda known=known: len(sent) > known + 5000, 20, "more sends")
        kill_senders(runtime_dir)
        known = len(sent)
        wait_until(lambda known=known: len(sent) > known + 100, 20, "sends after the kill")
    stop.set()
    for thread in threads:
        thread.join()
    producer.flush(60)
    least = sum(future.exception(0) is None for _, future in sent)
    least += sum(100 for future in arrays if future.exception(0) is None)
    records = read_topic(kafka.bootstrap_servers, topic, least)
    rows = records.values_of(2)
    expected = [
        b"array %07d" % n
        for number, future in enumerate(arrays)
        if future.exception(0) is None
        for n in range(100 * number, 100 * number + 100)
    ]
    counts = Counter(rows)
    assert set(counts.values()) == {1}
    wanted = set(expected)
    assert [row for row in rows if row in wanted] == expected
    for name in ("partition", "offset", "key", "value", "headers", "timestamp"):
        column = getattr(records, name)
        if name != "partition":
            setattr(records, name, [v for p, v in zip(records.partition, column, strict=True) if p != 2])
    records.partition = [p for p in records.partition if p != 2]
    check(sent, records)


def test_callbacks_and_awaiting_tasks_live_on(
    kafka: KafkaCluster, make_producer: Callable[..., Any], topic: str, runtime_dir: Path
) -> None:
    """Lingering batches had certainly not been sent: every one of them is written."""
    producer = make_producer(linger_ms=60_000, delivery_timeout_ms=120_000)
    producer.send(topic, b"first")
    producer.flush(30)
    heard: list[object] = []
    for number in range(10):
        producer.send(
            topic, b"%d" % number, partition=0, on_delivery=lambda error, record, n=number: heard.append((n, error))
        )

    async def main() -> list[Any]:
        futures = [await producer.send_async(topic, b"y", partition=1) for _ in range(10)]
        asyncio.get_running_loop().call_later(0.2, kill_senders, runtime_dir)
        return await asyncio.wait_for(asyncio.gather(*futures), 20)

    ends = asyncio.run(main())
    assert [record.offset - ends[0].offset for record in ends] == list(range(10))
    wait_until(lambda: len(heard) == 10, 10, "ten callbacks")
    assert heard == [(number, None) for number in range(10)]
    last = producer.send(topic, b"z")
    producer.flush(30)
    assert [f.result().topic for f in as_completed([last], 30)] == [topic]
    assert len(read_topic(kafka.bootstrap_servers, topic, 22)) == 22


def test_threads_that_wait_all_return(
    kafka: KafkaCluster,
    make_producer: Callable[..., Any],
    topic: str,
    runtime_dir: Path,
) -> None:
    """One in result(), one in flush(), and one in send() that waits for memory."""
    producer = make_producer(buffer_memory=1 << 20)
    producer.send(topic, b"first").result(30)
    kafka.pause()
    future = producer.send(topic, b"pending", partition=0)
    returned: dict[str, object] = {}
    blocked: list[Any] = []

    def fill() -> None:
        while not returned:
            value = b"%09d" % len(blocked) + bytes(10_000)
            blocked.append((value, producer.send(topic, value, partition=1)))

    def note(name: str, function: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                returned[name] = function()
            except BaseException as error:
                returned[name] = error

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    threads = [note("result", lambda: future.exception(60)), note("send", fill)]
    wait_until(lambda: producer.metrics()["producer-metrics"]["waiting-threads"] == 1, 10, "a full buffer")
    threads.append(note("flush", lambda: producer.flush(60)))
    kill_senders(runtime_dir)
    kafka.resume()
    for thread in threads:
        thread.join(30)
    assert returned.keys() == {"result", "flush", "send"}
    assert returned["result"] is None or type(returned["result"]) is errors.SenderLostError
    assert returned["flush"] is None
    assert returned["send"] is None
    assert blocked[-1][1].result(30).topic == topic
    acknowledged = [value for value, f in blocked if f.exception(30) is None]
    found = read_topic(kafka.bootstrap_servers, topic, len(acknowledged)).values_of(1)
    known = set(acknowledged)
    assert [value for value in found if value in known] == acknowledged


SENDS_AND_LOSES_ITS_SENDER = """
    import sys
    from cyproducer import KafkaProducer
    from support.process import kill_senders
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000, delivery_timeout_ms=120_000,
                             sender_idle_timeout_ms=200, exit_flush_timeout_ms=0)
    for number in range(1000):
        producer.send(sys.argv[2], b"%d" % number, partition=0)
    kill_senders(sys.argv[3])
    {ending}
"""


@pytest.mark.parametrize("ending", ["pass", "del producer", "producer.close()", "sys.exit(3)"])
def test_an_exit_hands_over_unsent_batches_of_a_lost_sender(
    ending: str, kafka: KafkaCluster, topic: str, runtime_dir: Path, retired_senders: None
) -> None:
    script = SENDS_AND_LOSES_ITS_SENDER.format(ending=ending)
    run = run_script(script, kafka.bootstrap_servers, topic, runtime_dir, check=False)
    assert run.returncode == (3 if "exit" in ending else 0), run.stderr
    records = read_topic(kafka.bootstrap_servers, topic, 1000)
    assert records.values_of(0) == [b"%d" % number for number in range(1000)]
