"""A stand-in sender, and a producer on it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from standin_sender import StandIn

from cyproducer import KafkaProducer


@pytest.fixture
def sender(short_tmp: Path) -> Iterator[StandIn]:
    """Its topics are "t" with four partitions and "one" with one."""
    with StandIn(short_tmp / f"s{time.monotonic_ns()}", {"t": 4, "one": 1}) as standin:
        yield standin


@pytest.fixture
def producer(sender: StandIn) -> Iterator[KafkaProducer]:
    with KafkaProducer(sender=sender.path) as made:
        yield made
