"""Runs Kafka's own Java producer as a contestant: its tool ProducerPerformance, in a JVM for each run."""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.contestants.base import OWN_DIRECTORY, Contestant, NotSupportedError
from bench.loads import Load

STEADY = re.compile(r"^(\d+) records sent.* ([0-9.]+) records/sec", re.MULTILINE)


class ProducerPerformance(Contestant):
    """Batches of 64 KiB. The CPU includes the JVM's start and its compiler; the rate only what comes after."""

    library = "java"
    warms_up = False

    @classmethod
    def given(cls, load: Load, settings: dict[str, Any]) -> dict[str, Any]:
        """See Contestant."""
        return {
            "acks": "all",
            "linger.ms": load.linger_ms,
            "enable.idempotence": "true",
            "batch.size": 65536,
            "compression.type": load.compression or "none",
            **settings,
        }

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Write the values into a file, of which the tool takes lines at random."""
        from devkafka.jars import kafka_jars
        from devkafka.maven import DownloadError, JavaMissingError, find_java

        try:
            java, jars = find_java(), kafka_jars()
        except (JavaMissingError, DownloadError) as error:
            raise NotSupportedError(str(error)) from None
        # In the run's own directory, which the run removes even if this process is killed.
        self.directory = tempfile.TemporaryDirectory(prefix="java-", dir=os.environ.get(OWN_DIRECTORY))
        payload = Path(self.directory.name) / "values"
        payload.write_bytes(b"\n".join(self.values) + b"\n")
        given = {"bootstrap.servers": bootstrap, **self.given(self.load, settings)}
        self.command = [
            *(str(java), "-XX:+UseSerialGC", "-Xmx512m", "-Xshare:auto", f"-Djava.io.tmpdir={self.directory.name}"),
            *("-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{jars}/*"),
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
