"""Defines fixtures for the tests that use cyproducer as applications do."""

from collections.abc import Callable
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.process import run_script

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run_example(kafka: KafkaCluster, retired_senders: None) -> Callable[..., str]:
    """Return ``run_example(name, *arguments)``: it runs a file of ``examples/`` and returns what it printed."""

    def run(name: str, *arguments: object) -> str:
        return run_script(EXAMPLES / name, kafka.bootstrap_servers, *arguments).stdout

    return run
