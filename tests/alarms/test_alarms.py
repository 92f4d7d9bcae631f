"""Tests calls that the handler of an alarm interrupts at random moments, for a minute."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster

SECONDS = 60


@pytest.mark.long
def test_exceptions_of_handlers_lose_and_leave_nothing(kafka: KafkaCluster, tmp_path: Path) -> None:
    # In another directory: the package that is installed is the one that is tested.
    command = [sys.executable, str(Path(__file__).with_name("__main__.py")), "--seconds", str(SECONDS)]
    command += ["--bootstrap-servers", kafka.bootstrap_servers]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
