"""Defines fixtures for the tests that use cyproducer as applications do."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.consumer import ReadRecords, read_topic
from support.process import run_script, sender_processes, senders, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def retired_senders(nothing_left: None, runtime_dir: Path) -> Iterator[None]:
    """End senders after the test, because applications run with the default idle timeout."""
    yield
    for sender in senders(runtime_dir):
        sender.send_signal(signal.SIGTERM)
    wait_until(lambda: not sender_processes(runtime_dir), 10, "the end of the sender after SIGTERM")


@pytest.fixture
def run_example(kafka: KafkaCluster, retired_senders: None) -> Callable[..., str]:
    """Return ``run_example(name, *arguments)``: it runs a file of ``examples/`` and returns what it printed."""

    def run(name: str, *arguments: object) -> str:
        return run_script(EXAMPLES / name, kafka.bootstrap_servers, *arguments).stdout

    return run


@pytest.fixture
def arrived(kafka: KafkaCluster) -> Callable[..., ReadRecords]:
    """Return ``arrived(topic, count)``: check with a foreign consumer that exactly `count` records are there."""

    def read(topic: str, count: int, timeout: float = 30.0) -> ReadRecords:
        records = read_topic(kafka.bootstrap_servers, topic, count, timeout)
        assert len(records) == count, f"{len(records)} records arrived, {count} were sent"
        return records

    return read
