"""Defines fixtures: a stand-in sender, a producer on it, and a control plane that the test runs step by step."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_rig import Sender
from standin_sender import StandIn
from support.violations import no_violation_in_an_engine  # noqa: F401

from cyproducer import KafkaProducer


@pytest.fixture
def sender(short_tmp: Path) -> Iterator[StandIn]:
    """Yield a stand-in sender. Its topics are "t" with four partitions and "one" with one."""
    with StandIn(short_tmp / f"s{time.monotonic_ns()}", {"t": 4, "one": 1}) as standin:
        yield standin


@pytest.fixture
def producer(sender: StandIn) -> Iterator[KafkaProducer]:
    with KafkaProducer(sender=sender.path) as made:
        yield made


@pytest.fixture
def make(short_tmp: Path) -> Iterator[Callable[..., Sender]]:
    """Return ``make(**facts) -> Sender``: a control plane without a process."""
    made = []

    def make(**facts: Any) -> Sender:
        made.append(Sender(short_tmp, **facts))
        return made[-1]

    yield make
    for sender in made:
        sender.close()
