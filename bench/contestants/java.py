"""The contestant of Kafka's own Java producer: its tool ProducerPerformance, in a JVM for each run."""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.contestants.base import Contestant

STEADY = re.compile(r"^(\d+) records sent.* ([0-9.]+) records/sec", re.MULTILINE)


class ProducerPerformance(Contestant):
    """Batches of 64 KiB. The CPU includes the JVM's start and its compiler; the rate only what comes after."""

    library = "java"
    warms_up = False

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """The values go into a file, of which the tool takes lines at random."""
        from cyproducer.cli.kafka_jars import kafka_jars
        from cyproducer.cli.maven_jars import find_java

        self.directory = tempfile.TemporaryDirectory(prefix="cyp-bench-java-")
        payload = Path(self.directory.name) / "values"
        payload.write_bytes(b"\n".join(self.values) + b"\n")
        given = {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": self.load.linger_ms,
            "enable.idempotence": "true",
            "batch.size": 65536,
            "compression.type": self.load.compression or "none",
            **settings,
        }
        self.command = [
            *(str(find_java()), "-XX:+UseSerialGC", "-Xmx512m", "-Xshare:auto"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{kafka_jars()}/*"),
            *("org.apache.kafka.tools.ProducerPerformance", "--topic", self.topic, "--throughput", "-1"),
            *("--payload-file", str(payload), "--reporting-interval", "600000"),
            *("--command-property", *(f"{name}={value}" for name, value in given.items())),
        ]

    def run(self, count: int) -> float:
        """See Contestant. Half of the records are the compiler's warm-up; their rate is not counted."""
        numbers = ["--num-records", str(count), "--warmup-records", str(count // 2)]
        run = subprocess.run([*self.command, *numbers], capture_output=True, text=True, timeout=300)
        found = STEADY.findall(run.stdout)
        if run.returncode or not found or sum(int(sent) for sent, _ in found) < count:
            raise RuntimeError(f"ProducerPerformance failed: {(run.stderr + run.stdout).strip()[-1000:]}")
        return count / float(found[-1][1])

    def close(self) -> None:
        """Remove the file."""
        self.directory.cleanup()
