"""Defines what the tests of job runners share: an environment for their programs, and who has used the sender."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster


@pytest.fixture
def environment(kafka: KafkaCluster, topic: str, tmp_path: Path, retired_senders: None) -> dict[str, str]:
    """Return what a job runner's programs have in their environment: their files are in a directory of the test."""
    return {"KAFKA": kafka.bootstrap_servers, "TOPIC": topic, "HOME": str(tmp_path)}


@pytest.fixture
def attached(runtime_dir: Path) -> Callable[[], set[int]]:
    """Return ``attached()``: the pids of all processes that the senders have served, from their logs."""

    def read() -> set[int]:
        text = "".join(log.read_text() for log in runtime_dir.glob("*.log"))
        return {int(pid) for pid in re.findall(r"msg=attached peer=(\d+) ", text)}

    return read
