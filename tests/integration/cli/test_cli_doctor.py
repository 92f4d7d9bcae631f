"""Tests `cyproducer doctor` as users run it, on a real Kafka: the cluster, topics, shared senders, and that it ends."""

import contextlib
import json
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster, KafkaNode, free_ports
from support.process import cyproducer, wait_until
from support.supervised import the_sender

from cyproducer import errors

HOST = "127.0.0.1"
#: The command waits only for what does not answer.
TIMEOUT_S = 120


def doctor(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the command. Return its status and what it has found."""
    done = cyproducer("doctor", "--json", f"--timeout={TIMEOUT_S}", *arguments, timeout=3 * TIMEOUT_S)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)["findings"]


def texts(found: list[dict[str, Any]], check: str, status: str) -> str:
    return "\n".join(row["text"] for row in found if (row["check"], row["status"]) == (check, status))


def test_a_cluster_and_a_topic_without_a_problem(
    kafka: KafkaCluster, new_topic: Callable[..., str], runtime_dir: Path
) -> None:
    topic = new_topic(partitions=3)
    status, found = doctor("--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic)
    assert status == 0, found
    seen = texts(found, "brokers", "ok")
    assert f"{kafka.bootstrap_servers}: connected to {HOST} (" in seen
    assert "with 1 broker\n" in seen
    assert f"advertises {kafka.bootstrap_servers}, which can be reached" in seen
    assert f"topic {topic} has 3 partitions, each with a leader" in seen
    assert "no sender serves a producer with these settings" in texts(found, "sharing", "ok")
    assert list(runtime_dir.iterdir()) == []


def test_a_topic_that_is_missing_is_not_created(tmp_path: Path, register_cluster: Callable[..., Any]) -> None:
    """Also if the broker creates topics automatically."""
    with KafkaCluster(1, tmp_path / "kafka", auto_create=True) as cluster, register_cluster(cluster):
        for _ in range(2):
            status, found = doctor("--bootstrap-servers", cluster.bootstrap_servers, "--topic", "missing")
            assert status == 1
            (row,) = [row for row in found if row["status"] == "problem"]
            assert row["text"].startswith("topic missing: UNKNOWN_TOPIC_OR_PARTITION (3)")
            assert row["advice"] == "check the name, or create the topic"


def test_an_advertised_address_that_cannot_be_reached(tmp_path: Path, register_cluster: Callable[..., Any]) -> None:
    """The mistake of a broker that advertises an address which only its own network has."""
    port, nothing = free_ports(2)

    def properties(node: KafkaNode) -> dict[str, object]:
        return {
            "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port},OUT://{HOST}:{port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port},OUT://{HOST}:{nothing}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,OUT:PLAINTEXT",
        }

    with KafkaCluster(1, tmp_path / "kafka", properties=properties) as cluster, register_cluster(cluster):
        status, found = doctor("--bootstrap-servers", f"{HOST}:{port}")
    assert status == 1
    (row,) = [row for row in found if row["status"] == "problem"]
    assert f"advertises {HOST}:{nothing}, which cannot be reached from here: {HOST}: Connection refused" in row["text"]
    assert row["advice"].startswith("correct advertised.listeners")


def test_a_sender_that_is_shared_and_one_that_is_not(
    kafka: KafkaCluster, topic: str, make_producer: Callable[..., Any]
) -> None:
    make_producer(sender_idle_timeout_ms=200, request_timeout_ms=20_000).send(topic, b"1").result(60)
    pid, path = the_sender()["sender_pid"], the_sender()["socket"]
    status, found = doctor("--bootstrap-servers", kafka.bootstrap_servers, "--set", "request.timeout.ms=20000")
    assert status == 0, found
    assert texts(found, "sharing", "ok") == (
        f"a producer with these settings uses the sender with PID {pid} (1 process)"
    )
    assert not [row for row in found if (row["check"], row["status"]) == ("sharing", "warning")]
    status, found = doctor("--bootstrap-servers", kafka.bootstrap_servers)
    assert status == 0, found
    (row,) = [row for row in found if (row["check"], row["status"]) == ("sharing", "warning")]
    assert f"the sender with PID {pid}" in row["text"]
    assert row["text"].endswith("They differ in: request_timeout_ms (30000 and 20000)")
    assert "give all processes the same value" in row["advice"]
    status, found = doctor("--set", f"sender={path}", "--topic", topic)
    assert status == 0, found
    assert f"a producer with these settings uses the sender with PID {pid}" in texts(found, "sharing", "ok")
    assert f"topic {topic} has " in texts(found, "brokers", "ok")
    status, found = doctor()
    assert f"the sender with PID {pid} (1 process) serves {kafka.bootstrap_servers}" in texts(found, "sharing", "ok")


def test_a_sender_that_can_use_no_broker(make_producer: Callable[..., Any]) -> None:
    address = f"{HOST}:{free_ports(1)[0]}"
    with pytest.raises(errors.KafkaTimeoutError):
        make_producer(bootstrap_servers=address, max_block_ms=2000).send("t", b"1")
    status, found = doctor()
    assert status == 1
    (row,) = [row for row in found if row["status"] == "problem"]
    assert f"(1 process) can use no broker: broker {address}: Connection refused" in row["text"]
    assert row["advice"].endswith(f": cyproducer doctor --bootstrap-servers {address}")


def test_a_named_sender_that_does_not_run(runtime_dir: Path) -> None:
    status, found = doctor("--set", f"sender={runtime_dir}/none.sock")
    assert status == 1
    assert f"no sender at {runtime_dir}/none.sock" in texts(found, "brokers", "problem")
    (row,) = [row for row in found if row["check"] == "sharing"]
    assert row["advice"] == f"start its service, or `cyproducer sender --socket {runtime_dir}/none.sock`"


def test_limits_that_are_too_low() -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    command = [sys.executable, "-m", "cyproducer", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, preexec_fn=lower)
    assert done.returncode == 1, done.stderr
    problems = texts(json.loads(done.stdout)["findings"], "limits", "problem")
    assert "20 descriptors (ulimit -Hn) are too few for a sender" in problems
    assert "files of at most 1 MiB (ulimit -Hf) are too small for the shared memory" in problems


def test_ctrl_c_ends_the_sender_too(runtime_dir: Path) -> None:
    """The broker accepts connections and never answers, so the command waits for its sender."""
    with socket.create_server((HOST, 0)) as silent, contextlib.ExitStack() as stack:
        address = f"{HOST}:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "cyproducer", "doctor", "--timeout=600", "--bootstrap-servers", address]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        stack.callback(process.kill)
        wait_until(lambda: list(runtime_dir.glob("doctor-*/*.sock")), TIMEOUT_S, "the sender")
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    assert b"Traceback" not in output + errors
    assert list(runtime_dir.iterdir()) == []


def test_a_broker_that_does_not_answer() -> None:
    with socket.create_server((HOST, 0)) as silent:
        address = f"{HOST}:{silent.getsockname()[1]}"
        done = cyproducer("doctor", "--timeout", 3, "--bootstrap-servers", address, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert "problem  brokers: " in done.stdout
