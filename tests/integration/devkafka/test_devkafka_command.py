"""Tests `python tools/devkafka`, which starts a Kafka node for a first try."""

import signal
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer
from devkafka.node import free_ports

COMMAND = [sys.executable, str(Path(__file__).resolve().parents[3] / "tools" / "devkafka")]


def test_a_node_runs_until_ctrl_c():
    (port,) = free_ports(1)
    with subprocess.Popen([*COMMAND, "--port", str(port)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "Starting a Kafka node ...\n"
            assert process.stdout.readline() == f"Kafka answers at 127.0.0.1:{port}. Ctrl-C ends it.\n"
            # The first record makes its topic, as in the quick start.
            outcomes: list[object] = []
            producer = Producer({"bootstrap.servers": f"127.0.0.1:{port}"})
            producer.produce("new", b"first", on_delivery=lambda error, message: outcomes.append(error))
            producer.flush(60)
            assert outcomes == [None]
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_a_missing_java_is_explained(tmp_path):
    environment = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("devkafka: ")
    assert "openjdk" in done.stderr
