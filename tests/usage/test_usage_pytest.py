"""Tests the example of an application with tests: pytest runs it, also in several processes, with a real Kafka."""

import subprocess
import sys
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.process import script_environment, sender_processes, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("processes", [0, 2])
def test_the_fixtures(processes: int, kafka: KafkaCluster, runtime_dir: Path, tmp_path: Path) -> None:
    """The sender of the tests ends soon after them."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", str(processes), "--rootdir", tmp_path]
    environment = script_environment({"KAFKA": kafka.bootstrap_servers, "PYTHONDONTWRITEBYTECODE": "1"})
    run = subprocess.run(
        [*command, "-c", "/dev/null", EXAMPLES / "tested"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "3 passed" in run.stdout
    assert list(runtime_dir.glob("*.log"))
    wait_until(lambda: not sender_processes(runtime_dir), 60, "the end of the sender")
