"""The brokers that a benchmark runs on: a real Kafka node, one that is given, or the native null broker."""

import contextlib
import hashlib
import os
import shlex
import shutil
import struct
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cyproducer.cli.kafka_node import KafkaCluster
from cyproducer.cli.maven_jars import cache_directory

HOST = "127.0.0.1"
SOURCE = Path(__file__).with_name("null_broker.c")
# A node that is measured for seconds deserves the whole compiler, unlike those of the tests.
JVM = ("-Xmx1g", "-XX:+UseSerialGC")


class NullCounters(NamedTuple):
    """What the null broker has seen; ``faults`` are batches and frames that it refused."""

    records: int
    batches: int
    requests: int
    bytes: int
    faults: int
    connections: int


class KafkaBroker:
    """A Kafka cluster, ours or given, and its topics."""

    def __init__(self, bootstrap: str, pid: int | None) -> None:
        from confluent_kafka.admin import AdminClient

        self.bootstrap = bootstrap
        self.pid = pid
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic and wait until all of its partitions have a leader."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        self._admin.create_topics([NewTopic(name, partitions, 1)], operation_timeout=30)[name].result(30)
        deadline = time.monotonic() + 30
        while True:
            # Metadata names a leader before that leader knows of it, and refuses with NOT_LEADER: ask it itself.
            try:
                if self._partitions(name) == partitions and self.records(name) == 0:
                    return
            except KafkaException:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise RuntimeError(f"topic {name} has no leaders")
            time.sleep(0.05)

    def _partitions(self, name: str) -> int:
        return len(self._admin.list_topics(name, timeout=10).topics[name].partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic: the disk shall not fill up over the rounds."""
        self._admin.delete_topics([name], operation_timeout=30)[name].result(30)

    def records(self, name: str) -> int:
        """Records that a topic holds: the sum of its end offsets, nothing having been deleted."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        partitions = self._admin.list_topics(name, timeout=30).topics[name].partitions
        wanted = {TopicPartition(name, number): OffsetSpec.latest() for number in partitions}
        return sum(future.result(30).offset for future in self._admin.list_offsets(wanted).values())

    def faults(self) -> int:
        """A real broker refuses what is wrong; then records are missing."""
        return 0


class NullBroker:
    """The native null broker: every topic exists, nothing is kept. A context manager."""

    def __init__(self, partitions: int = 12, check_every: int = 16) -> None:
        self._directory = tempfile.mkdtemp(prefix="cyproducer-null-")
        self._counters = Path(self._directory) / "counters"
        self._process = subprocess.Popen(
            [null_broker_program(), self._counters, str(partitions), str(check_every)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            self.stop()
            raise RuntimeError("the null broker did not start")
        self.bootstrap = f"{HOST}:{port}"
        self.pid = self._process.pid

    def create_topic(self, name: str, partitions: int) -> None:
        """Nothing to do."""

    def delete_topic(self, name: str) -> None:
        """Nothing to do."""

    def counters(self) -> NullCounters:
        """What it has seen so far."""
        return NullCounters._make(struct.unpack("=6Q", self._counters.read_bytes()))

    def records(self, name: str) -> int:
        """Records of all topics together."""
        return self.counters().records

    def faults(self) -> int:
        """Batches and frames that it refused."""
        return self.counters().faults

    def stop(self) -> None:
        """End it and remove its file."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "NullBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


Broker = KafkaBroker | NullBroker


def null_broker_program() -> Path:
    """The compiled null broker, made on first use and kept in the user's cache.

    Raises RuntimeError if there is no C compiler, or it refuses.
    """
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        compiler = ["cc"]
    # For this machine only, so that the CRC check has the processor's own instruction.
    command = [*compiler, "-O2", "-march=native", "-Wall", "-Wextra", "-o"]
    digest = hashlib.sha256(SOURCE.read_bytes() + repr(command).encode()).hexdigest()[:16]
    target = cache_directory() / f"null-broker-{digest}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        made = Path(work) / "null_broker"
        try:
            run = subprocess.run([*command, made, SOURCE], capture_output=True, text=True)
        except FileNotFoundError:
            raise RuntimeError("the null broker needs a C compiler: install gcc, or set CC") from None
        if run.returncode:
            raise RuntimeError(f"the null broker does not compile: {run.stderr.strip()}")
        made.replace(target)
    return target


@contextlib.contextmanager
def broker(kind: str, bootstrap: str | None, partitions: int) -> Iterator[Broker]:
    """``kind`` "null", or "kafka": the one at ``bootstrap``, else a node of our own."""
    if kind == "null":
        with NullBroker(partitions) as null:
            yield null
    elif bootstrap is not None:
        yield KafkaBroker(bootstrap, None)
    else:
        properties = {"log.segment.delete.delay.ms": 0, "log.retention.check.interval.ms": 600_000}
        with KafkaCluster(1, jvm_options=JVM, properties=properties) as cluster:
            yield KafkaBroker(cluster.bootstrap_servers, cluster.pid())
