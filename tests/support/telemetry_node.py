"""Runs a real Kafka node with a plugin that writes the metrics of clients into a file (KIP-714)."""

import base64
import contextlib
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from devkafka.jars import kafka_jars
from devkafka.maven import find_java
from devkafka.node import SMALL_JVM, KafkaCluster

from support.otlp_payload import Payload

SOURCE = Path(__file__).parent / "java" / "TelemetryFile.java"


class Push(NamedTuple):
    """What the plugin got."""

    client_id: str
    client_instance_id: uuid.UUID
    terminating: bool
    content_type: str
    payload: Payload


class TelemetryNode:
    """The node. `subscribe()` makes a subscription of clients with one client id."""

    def __init__(self, cluster: KafkaCluster, file: Path) -> None:
        self.cluster = cluster
        self._file = file

    def subscribe(self, client_id: str, metrics: str, interval_ms: int) -> None:
        """Subscribe to the metrics whose names begin with one of `metrics`, which are separated by commas."""
        self.cluster.tool(
            "org.apache.kafka.tools.ClientMetricsCommand", "--bootstrap-server", self.cluster.bootstrap_servers,
            "--alter", "--name", client_id, "--metrics", metrics, "--interval", str(interval_ms),
            "--match", f"client_id={client_id}",
        )  # fmt: skip

    def pushes(self, client_id: str) -> list[Push]:
        """Return what was pushed by clients with this id."""
        if not self._file.exists():
            return []
        found = []
        for line in self._file.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue  # it is being written
            name, identity, terminating, content_type, data = line.split()
            if name == client_id:
                number = uuid.UUID(bytes=base64.urlsafe_b64decode(identity + "=="))
                payload = Payload(base64.b64decode(data[1:]))
                found.append(Push(name, number, terminating == "true", content_type, payload))
        return found


@contextlib.contextmanager
def telemetry_node(directory: Path) -> Iterator[TelemetryNode]:
    """Compile the plugin and run a node with it."""
    classes, file = directory / "classes", directory / "pushes"
    javac = find_java().with_name("javac")
    run = subprocess.run(
        [javac, "-cp", str(kafka_jars() / "*"), "-d", classes, SOURCE], capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    with KafkaCluster(
        1,
        directory / "kafka",
        properties={"metric.reporters": "TelemetryFile"},
        jvm_options=(*SMALL_JVM, f"-Dtelemetry.file={file}"),
        plugins=[classes],
    ) as cluster:
        yield TelemetryNode(cluster, file)
        cluster.stop(grace=0)
