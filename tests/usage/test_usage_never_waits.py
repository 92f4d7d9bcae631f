"""Tests max_block_ms=0: a send that cannot be queued at once says why; what it lacks is fetched meanwhile."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from support.consumer import ReadRecords
from support.supervised import Foreground

from cyproducer import errors

TRIES_S = 30.0


@pytest.fixture(params=["found", "named"])
def never_waits(
    request: pytest.FixtureRequest, kafka: KafkaCluster, make_producer: Callable[..., Any], runtime_dir: Path
) -> Iterator[Callable[..., Any]]:
    """Return `never_waits(**settings)`: a producer with max_block_ms=0, whose sender it starts or which has a name."""
    if request.param == "found":
        yield lambda **settings: make_producer(max_block_ms=0, **settings)
        return
    sender = Foreground(runtime_dir / "named.sock", kafka.bootstrap_servers, runtime_dir / "named.log").ready()
    made = []

    def make(**settings: Any) -> Any:
        made.append(make_producer(sender=str(sender.socket), max_block_ms=0, **settings))
        return made[-1]

    yield make
    for producer in made:
        producer.close(10)
    sender.end()


def sooner_or_later(attempt: Callable[[], Any]) -> tuple[Any, list[errors.KafkaError]]:
    """Return the result of the first attempt that does not raise, and the errors of those before it."""
    raised: list[errors.KafkaError] = []
    deadline = time.monotonic() + TRIES_S
    while True:
        try:
            return attempt(), raised
        except (errors.SenderUnavailableError, errors.KafkaTimeoutError) as error:
            raised.append(error)
            assert time.monotonic() < deadline, Counter(map(str, raised))
            time.sleep(0.005)


def check(raised: list[errors.KafkaError], topic: str) -> None:
    """Check that the sender was missing first, then the metadata."""
    assert raised
    order = [isinstance(error, errors.KafkaTimeoutError) for error in raised]
    assert order == sorted(order)
    for error in raised:
        if isinstance(error, errors.SenderUnavailableError):
            assert "sender" in str(error)
        else:
            assert f"Topic {topic} not present in metadata after 0 ms." in str(error)


@pytest.mark.parametrize("way", ["send", "send_array", "send_async", "partitions_for"])
def test_without_sender_and_metadata(
    way: str, never_waits: Callable[..., Any], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    producer = never_waits()
    attempts: dict[str, Callable[[], Any]] = {
        "send": lambda: producer.send(topic, b"value"),
        "send_array": lambda: producer.send_array(topic, [b"value"]),
        "send_async": lambda: asyncio.run(producer.send_async(topic, b"value")),
        "partitions_for": lambda: producer.partitions_for(topic),
    }
    found, raised = sooner_or_later(attempts[way])
    check(raised, topic)
    if way == "partitions_for":
        assert found == {0, 1, 2}
        found = producer.send(topic, b"value")
    found.result(30)
    arrived(topic, 1)


def test_a_partition_that_is_not_there(never_waits: Callable[..., Any], topic: str) -> None:
    producer = never_waits()
    sooner_or_later(lambda: producer.partitions_for(topic))
    with pytest.raises(errors.KafkaTimeoutError, match=r"Partition 3 of topic .* count 3 .* after 0 ms\."):
        producer.send(topic, b"value", partition=3)


@pytest.mark.parametrize("way", ["send", "send_array", "send_async"])
def test_without_memory(
    way: str,
    kafka: KafkaCluster,
    never_waits: Callable[..., Any],
    topic: str,
    arrived: Callable[..., ReadRecords],
) -> None:
    producer = never_waits(buffer_memory=1 << 20)
    sooner_or_later(lambda: producer.send(topic, b"first"))[0].result(30)
    kafka.pause()
    futures: list[Any] = []
    value = bytes(10_000)

    async def send() -> None:
        futures.append(await producer.send_async(topic, value))

    def fill() -> None:
        for _ in range(1000):
            if way == "send_async":
                asyncio.run(send())
            elif way == "send":
                futures.append(producer.send(topic, value))
            else:
                futures.append(producer.send_array(topic, [value]))

    with pytest.raises(errors.BufferExhaustedError, match=r"max_block_ms=0: .* buffer_memory=1048576"):
        fill()
    assert 50 < len(futures) < 110
    kafka.resume()
    for future in futures:
        future.result(30)
    producer.send(topic, b"last").result(30)
    arrived(topic, len(futures) + 2)
