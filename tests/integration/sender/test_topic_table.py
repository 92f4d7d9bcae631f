"""Tests that a process which asks for topic names without end gets a clear error, and that others go on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from kfake.scripted_broker import ScriptedBroker
from support.supervised import Foreground

from cyproducer import KafkaProducer
from cyproducer.errors import KafkaTimeoutError, SenderUnavailableError

ROOM = 20
SMALL_TABLE = f"""
from cyproducer.sender.cluster import metadata

class SmallTable(metadata.TopicShares):
    def add(self, attach_id, name, free):
        super().add(attach_id, name, free - (16384 - {ROOM}))
metadata.TopicShares = SmallTable
"""


@pytest.fixture
def sender(broker: ScriptedBroker, runtime_dir: Path) -> Iterator[Foreground]:
    """Yield a sender whose table of topics has space for ROOM names."""
    started = Foreground(runtime_dir / "s.sock", broker.bootstrap_servers, runtime_dir / "s.log", SMALL_TABLE).ready()
    yield started
    started.end()


def send(producer: KafkaProducer, topic: str) -> None:
    producer.send(topic, b"value")


def send_array(producer: KafkaProducer, topic: str) -> None:
    producer.send_array(topic, numpy.arange(3))


def send_async(producer: KafkaProducer, topic: str) -> None:
    async def main() -> None:
        await producer.send_async(topic, b"value")

    asyncio.run(main())


def fill(producer: KafkaProducer) -> int:
    """Send to new topics, which do not exist, until the sender refuses one. Return how many it did not refuse."""
    for number in range(ROOM):
        try:
            producer.send(f"greedy-{number}", b"value")
        except SenderUnavailableError:
            return number
        except KafkaTimeoutError:
            pass
    return ROOM


def test_names_without_end(sender: Foreground, broker: ScriptedBroker) -> None:
    address = str(sender.socket)
    with KafkaProducer(sender=address) as other, KafkaProducer(sender=address, max_block_ms=500) as greedy:
        other.send(broker.topic, b"first").result(30)
        assert fill(greedy) == 10  # 10 of its own, the topic of the other process, and 9 that are left
        for way in (send, send_array, send_async):
            with pytest.raises(SenderUnavailableError, match="refuses topic 'new': this process has added 10"):
                way(greedy, "new")
        assert greedy.send(broker.topic, b"second").result(30) is not None
        assert other.send(broker.topic, b"third").result(30) is not None
        with KafkaProducer(sender=address, max_block_ms=100) as third:
            with pytest.raises(KafkaTimeoutError, match="Topic new not present in metadata after 100 ms"):
                send(third, "new")
    assert len(sender.lines("cannot request metadata")) == 1
