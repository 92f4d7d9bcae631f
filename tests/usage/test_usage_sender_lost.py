"""The sender is killed: every future gets its outcome or SenderUnavailableError, and the next send() works."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.consumer import read_topic
from support.process import kill_senders, wait_until

from cyproducer import as_completed, errors
from cyproducer.cli.kafka_node import KafkaCluster


def test_every_outstanding_future_ends_and_the_next_send_works(
    kafka: KafkaCluster, make_producer: Callable[..., Any], topic: str, runtime_dir: Path
) -> None:
    producer = make_producer(linger_ms=0, buffer_memory=16 << 20)
    producer.send(topic, b"first").result(30)
    kafka.pause()
    futures = [producer.send(topic, b"%d" % number, partition=number % 3) for number in range(20_000)]
    kill_senders(runtime_dir)
    ends = [future.exception(20) for future in futures]
    assert all(isinstance(end, errors.SenderUnavailableError) for end in ends), Counter(map(type, ends))
    assert all(topic in str(end) for end in ends[:3])
    kafka.resume()
    producer.send(topic, b"last").result(30)
    records = read_topic(kafka.bootstrap_servers, topic, 2)
    written = Counter(records.value)
    assert written.pop(b"first") == written.pop(b"last") == 1
    # What is known not to have gone out is not there; what may have gone out is there at most once.
    maybe = {b"%d" % i for i, end in enumerate(ends) if isinstance(end, errors.SenderLostError)}
    assert written.keys() <= maybe
    assert set(written.values()) <= {1}
    assert any(not isinstance(end, errors.SenderLostError) for end in ends)
    assert all(end.retriable != isinstance(end, errors.SenderLostError) for end in ends)


def test_under_load_outcomes_are_true(
    kafka: KafkaCluster, make_producer: Callable[..., Any], topic: str, runtime_dir: Path
) -> None:
    producer = make_producer()
    futures = []
    stop = threading.Event()

    def stream() -> None:
        while not stop.is_set():
            futures.append(producer.send(topic, b"%d" % len(futures)))

    thread = threading.Thread(target=stream)
    thread.start()
    for _ in range(3):
        known = len(futures)
        wait_until(lambda known=known: len(futures) > known + 5000, 20, "more sends")
        kill_senders(runtime_dir)
        known = len(futures)
        wait_until(lambda known=known: len(futures) > known + 100, 20, "sends after the kill")
    stop.set()
    thread.join()
    producer.flush(30)
    acknowledged, unknown = set(), set()
    for number, future in enumerate(futures):
        end = future.exception(20)
        if end is None:
            acknowledged.add(b"%d" % number)
        elif isinstance(end, errors.SenderLostError):
            unknown.add(b"%d" % number)
        else:
            assert type(end) is errors.SenderUnavailableError
    written = Counter(read_topic(kafka.bootstrap_servers, topic, len(acknowledged)).value)
    assert set(written.values()) == {1}
    assert acknowledged <= written.keys()
    assert written.keys() <= acknowledged | unknown


def test_callbacks_and_awaiting_tasks_hear_of_it(
    kafka: KafkaCluster, make_producer: Callable[..., Any], topic: str, runtime_dir: Path
) -> None:
    producer = make_producer()
    heard: list[object] = []
    producer.send(topic, b"first").result(30)
    kafka.pause()
    for _ in range(10):
        producer.send(topic, b"x", on_delivery=lambda error, record: heard.append(error))

    async def main() -> list[object]:
        futures = [await producer.send_async(topic, b"y") for _ in range(10)]
        asyncio.get_running_loop().call_later(0.2, kill_senders, runtime_dir)
        return await asyncio.wait_for(asyncio.gather(*futures, return_exceptions=True), 20)

    ends = asyncio.run(main())
    wait_until(lambda: len(heard) == 10, 10, "ten callbacks")
    assert all(isinstance(end, errors.SenderUnavailableError) for end in [*ends, *heard])
    kafka.resume()
    assert [f.result().topic for f in as_completed([producer.send(topic, b"z")], 30)] == [topic]


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
    future = producer.send(topic, b"pending")
    returned: dict[str, object] = {}
    blocked: list[Any] = []

    def fill() -> None:
        while not returned:
            blocked.append(producer.send(topic, bytes(10_000)))

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
    assert isinstance(returned["result"], errors.SenderUnavailableError)
    assert returned["flush"] is None
    assert returned["send"] is None
    assert blocked[-1].result(30).topic == topic
