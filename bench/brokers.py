"""The brokers that a run measures on: real Kafka, of one or three nodes, and the native null broker."""

import contextlib
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.jmx import count_requests, jmx_options
from bench.loads import Load
from bench.native import program
from bench.samples import Kept, decode, read_sample
from cyproducer.cli.kafka_node import HOST, KafkaCluster, free_ports

# A node that is measured for seconds deserves the whole compiler, unlike those of the tests.
JVM = ("-Xmx1g", "-XX:+UseSerialGC")
PROPERTIES = {
    "log.segment.delete.delay.ms": 0,
    "log.retention.check.interval.ms": 600_000,
    "message.max.bytes": 2_000_000,
    "replica.fetch.max.bytes": 2_000_000,
}
HEADER = struct.Struct("=10Q")
FLAG = struct.Struct("=Q")


class NullCounters(NamedTuple):
    """What the null broker has seen.

    faults    batches and frames that it refused
    unread    answers that it could not write since the client had gone
    samples   batches that it kept; wanted: 1 if it is to keep the next one
    """

    records: int = 0
    batches: int = 0
    requests: int = 0
    bytes: int = 0
    faults: int = 0
    unread: int = 0
    connections: int = 0
    samples: int = 0
    wanted: int = 0
    sample_size: int = 0


class KafkaBroker:
    """The topics of a Kafka cluster that runs, whose nodes answer JMX at `jmx_ports`."""

    sampling = True

    def __init__(self, cluster: KafkaCluster, jmx_ports: Sequence[int]) -> None:
        from confluent_kafka.admin import AdminClient

        self.cluster = cluster
        self.bootstrap = cluster.bootstrap_servers
        self.pids = cluster.pids()
        self.ports = {node.port for node in cluster.nodes}
        self._jmx_ports = jmx_ports
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})

    @classmethod
    def start(cls, nodes: int) -> "KafkaBroker":
        """A cluster of our own; `cluster.stop()` ends it."""
        ports = free_ports(nodes)
        cluster = KafkaCluster(
            nodes, jvm_options=lambda node: (*JVM, *jmx_options(ports[node.number - 1])), properties=PROPERTIES
        )
        cluster.start()
        return cls(cluster, ports)

    def create_topics(self, names: Sequence[str], load: Load) -> None:
        """Create topics and wait until all of their partitions have a leader."""
        from confluent_kafka import KafkaException
        from confluent_kafka.admin import NewTopic

        wanted = [NewTopic(name, load.partitions, load.replication) for name in names]
        for made in self._admin.create_topics(wanted, operation_timeout=30).values():
            made.result(30)
        deadline = time.monotonic() + 30
        while True:
            # Metadata names a leader before that leader knows of it, and refuses with NOT_LEADER: ask it itself.
            try:
                if self.partitions(names) == len(names) * load.partitions and self.records(names) == 0:
                    return
            except (KafkaException, KeyError):
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise RuntimeError(f"topics {', '.join(names)} have no leaders")
            time.sleep(0.05)

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics: the disk shall not fill up over the rounds."""
        for deleted in self._admin.delete_topics(list(names), operation_timeout=30).values():
            deleted.result(30)

    def partitions(self, names: Sequence[str]) -> int:
        """Partitions of the topics together."""
        topics = self._admin.list_topics(timeout=30).topics
        return sum(len(topics[name].partitions) for name in names)

    def records(self, names: Sequence[str]) -> int:
        """Records that topics hold: the sum of their end offsets, nothing having been deleted."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        topics = self._admin.list_topics(timeout=30).topics
        wanted = {
            TopicPartition(name, number): OffsetSpec.latest()
            for name in names
            for number in topics[name].partitions
        }
        return sum(future.result(30).offset for future in self._admin.list_offsets(wanted).values())

    def faults(self) -> int:
        """A real broker refuses what is wrong; then records are missing."""
        return 0

    def requests(self) -> int:
        """Produce requests that the brokers have had, by their own count (JMX)."""
        return count_requests(self._jmx_ports)

    def volume(self) -> int | None:
        """Not known."""
        return None

    def want_sample(self) -> None:
        """Nothing to do: everything is kept."""

    def sample(self, names: Sequence[str], before: Sequence[int]) -> Kept:
        """Some of the records that the first topic holds."""
        return read_sample(self.bootstrap, names[0])

    def samples(self) -> Sequence[int]:
        """Nothing to compare with: each topic belongs to one round."""
        return ()


class NullBroker:
    """Native null brokers, which make up one cluster: every topic exists, nothing is kept. A context manager."""

    def __init__(self, partitions: int = 12, check_every: int = 16, nodes: int = 1) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="cyp-bench-null-"))
        self._processes: list[subprocess.Popen[str]] = []
        self._arguments = [str(partitions), str(check_every)]
        self.sampling = check_every > 0
        try:
            ports = [self._start(number) for number in range(nodes)]
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(" ".join(map(str, ports)) + "\n")
                process.stdin.flush()
        except BaseException:
            self.stop()
            raise
        self.ports = set(ports)
        self.bootstrap = ",".join(f"{HOST}:{port}" for port in ports)
        self.pids = [process.pid for process in self._processes]

    def _start(self, number: int) -> int:
        process = subprocess.Popen(
            [program("null_broker"), self._counters(number), *self._arguments, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._processes.append(process)
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError("the null broker did not start")
        return int(port)

    def _counters(self, number: int) -> Path:
        return self._directory / f"counters-{number}"

    def create_topics(self, names: Sequence[str], load: Load) -> None:
        """Nothing to do."""

    def delete_topics(self, names: Sequence[str]) -> None:
        """Nothing to do."""

    def counters(self) -> NullCounters:
        """What all nodes have seen so far."""
        return NullCounters(*map(sum, zip(*self._each(), strict=True)))

    def _each(self) -> Iterator[tuple[int, ...]]:
        for number in range(len(self._processes)):
            with open(self._counters(number), "rb") as file:
                yield HEADER.unpack(file.read(HEADER.size))

    def records(self, names: Sequence[str]) -> int:
        """Records of all topics together."""
        return self.counters().records

    def faults(self) -> int:
        """Batches and frames that were refused."""
        return self.counters().faults

    def requests(self) -> int:
        """Produce requests that have been answered."""
        return self.counters().requests

    def volume(self) -> int | None:
        """Bytes of all batches."""
        return self.counters().bytes

    def samples(self) -> Sequence[int]:
        """How many batches each node has kept so far, each in the place of the one before."""
        return [NullCounters(*seen).samples for seen in self._each()]

    def want_sample(self) -> None:
        """Have each node keep the next batch it gets, whether it is its turn or not."""
        for number in range(len(self._processes)):
            with open(self._counters(number), "r+b", buffering=0) as file:
                file.seek(NullCounters._fields.index("wanted") * FLAG.size)
                file.write(FLAG.pack(1))

    def sample(self, names: Sequence[str], before: Sequence[int]) -> Kept:
        """The batches that are kept now, of the nodes that have kept one since `samples` were `before`."""
        found = Kept([], set())
        for number, (seen, count) in enumerate(zip(self._each(), before, strict=True)):
            counters = NullCounters(*seen)
            if counters.samples != count:
                with open(self._counters(number), "rb") as file:
                    file.seek(HEADER.size)
                    kept = decode(file.read(counters.sample_size))
                found.records.extend(kept.records)
                found.codecs.update(kept.codecs)
        return found

    def stop(self) -> None:
        """End the processes and remove their files."""
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.wait()
            process.stdout.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> "NullBroker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


Broker = KafkaBroker | NullBroker


class Brokers:
    """The brokers of a run, each started when it is first asked for. A context manager."""

    def __init__(self) -> None:
        self._null: dict[tuple[int, int], NullBroker] = {}
        self._kafka: dict[str, KafkaBroker] = {}

    def get(self, kind: str, load: Load) -> Broker:
        """`kind` "null" (of the load's partitions and brokers), "kafka", or "kafka3" with three nodes."""
        if kind == "null":
            key = load.partitions, load.brokers
            if key not in self._null:
                self._null[key] = NullBroker(load.partitions, nodes=load.brokers)
            return self._null[key]
        if kind not in self._kafka:
            self.stop_kafka()
            self._kafka[kind] = KafkaBroker.start(3 if kind == "kafka3" else 1)
        return self._kafka[kind]

    def stop_null(self) -> None:
        """End the null brokers: the next comparison begins with fresh ones."""
        while self._null:
            self._null.popitem()[1].stop()

    def stop_kafka(self) -> None:
        """End the real ones: an idle JVM is not quite idle."""
        while self._kafka:
            self._kafka.popitem()[1].cluster.stop()

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_null()
        self.stop_kafka()
