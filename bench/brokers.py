"""Starts and stops the brokers of a run: a real Kafka with one node or three, and the native null broker."""

import contextlib
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from devkafka.keys import Keys
from devkafka.node import HOST, KafkaCluster, free_ports
from devkafka.security import Security

from bench.jmx import count_handshakes, count_requests, jmx_options
from bench.loads import Load
from bench.native import program
from bench.samples import Kept, count_committed, decode, read_sample

# Unlike the nodes of the tests, a measured node uses both compilers of the JVM.
JVM = ("-Xmx1g", "-XX:+UseSerialGC")
PROPERTIES = {
    "log.segment.delete.delay.ms": 0,
    "log.retention.check.interval.ms": 600_000,
    "message.max.bytes": 2_000_000,
    "replica.fetch.max.bytes": 2_000_000,
}
# Every client gets the same cipher, also that of the null broker.
TLS = {"ssl.enabled.protocols": "TLSv1.3", "ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}
LISTENER = "SSL"
HEADER = struct.Struct("=11Q")
FLAG = struct.Struct("=Q")


class NullCounters(NamedTuple):
    """The counters of the null broker.

    faults       batches and frames that it refused
    unread       responses that it could not write because the client had closed the connection
    handshakes   complete handshakes of TLS
    samples      batches that it kept
    wanted       1 if it must keep the next batch
    """

    records: int = 0
    batches: int = 0
    requests: int = 0
    bytes: int = 0
    faults: int = 0
    unread: int = 0
    connections: int = 0
    handshakes: int = 0
    samples: int = 0
    wanted: int = 0
    sample_size: int = 0


class KafkaBroker:
    """A running Kafka cluster, whose nodes answer JMX on `jmx_ports`.

    If it has secure listeners, the measured clients use TLS. What the benchmark itself asks for goes over PLAINTEXT.
    """

    sampling = True

    def __init__(self, cluster: KafkaCluster, jmx_ports: Sequence[int]) -> None:
        from confluent_kafka.admin import AdminClient

        self.cluster = cluster
        self._plain = cluster.bootstrap_servers
        if cluster.security is None:
            self.keys, self.bootstrap = None, self._plain
            self.ports = {node.port for node in cluster.nodes}
        else:
            self.keys, self.bootstrap = cluster.security.keys, cluster.address_of(LISTENER)
            self.ports = {node.secure_ports[LISTENER] for node in cluster.nodes}
        self.pids = cluster.pids()
        self._jmx_ports = jmx_ports
        self._admin = AdminClient({"bootstrap.servers": self._plain, "log_level": 2})

    @classmethod
    def start(cls, nodes: int, keys: Keys | None = None) -> "KafkaBroker":
        """Start a cluster, with TLS if there are keys; `cluster.stop()` ends it."""
        ports = free_ports(nodes)
        cluster = KafkaCluster(
            nodes,
            jvm_options=lambda node: (*JVM, *jmx_options(ports[node.number - 1])),
            properties=PROPERTIES if keys is None else {**PROPERTIES, **TLS},
            security=None if keys is None else Security(keys, client_auth="none", host=HOST),
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
            # The metadata may name a leader that does not know it yet and answers NOT_LEADER: ask the leader itself.
            try:
                if self.partitions(names) == len(names) * load.partitions and self.records(names) == 0:
                    return
            except (KafkaException, KeyError):
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise RuntimeError(f"topics {', '.join(names)} have no leaders after 30 s")
            time.sleep(0.05)

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics, so that the disk does not fill up over the rounds."""
        for deleted in self._admin.delete_topics(list(names), operation_timeout=30).values():
            deleted.result(30)

    def partitions(self, names: Sequence[str]) -> int:
        """Return the number of partitions of all these topics."""
        topics = self._admin.list_topics(timeout=30).topics
        return sum(len(topics[name].partitions) for name in names)

    def records(self, names: Sequence[str]) -> int:
        """Return the number of records in topics: the sum of their end offsets, because no record is deleted."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        topics = self._admin.list_topics(timeout=30).topics
        wanted = {
            TopicPartition(name, number): OffsetSpec.latest() for name in names for number in topics[name].partitions
        }
        return sum(future.result(30).offset for future in self._admin.list_offsets(wanted).values())

    def committed(self, names: Sequence[str]) -> int:
        """Return how many records of the topics a reader of committed records finds.

        The ends of transactions have offsets, too, so the end offsets do not tell it.
        """
        return count_committed(self._plain, names)

    def faults(self) -> int:
        """Return 0: after a fault, a real broker has too few records."""
        return 0

    def requests(self) -> int:
        """Return the number of Produce requests that the brokers have counted (JMX)."""
        return count_requests(self._jmx_ports)

    def handshakes(self) -> int:
        """Return the number of TLS handshakes that the brokers have completed (JMX)."""
        return count_handshakes(self._jmx_ports, LISTENER)

    def volume(self) -> int | None:
        """Return None: the number of bytes is not known."""
        return None

    def want_sample(self) -> None:
        """Do nothing: a real broker keeps all records."""

    def sample(self, names: Sequence[str], before: Sequence[int]) -> Kept:
        """Return some of the records in the first topic."""
        return read_sample(self._plain, names[0])

    def samples(self) -> Sequence[int]:
        """Return nothing: no comparison is needed, because each topic belongs to one round."""
        return ()


class NullBroker:
    """A cluster of native null brokers, where every topic exists and no record is kept. A context manager.

    With keys, all connections use TLS.
    """

    def __init__(self, partitions: int = 12, check_every: int = 16, nodes: int = 1, keys: Keys | None = None) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._arguments = [str(partitions), str(check_every)]
        self.sampling = check_every > 0
        self.keys = keys
        self._program = program("null_broker", tls=keys is not None)
        self._directory = Path(tempfile.mkdtemp(prefix="cyp-bench-null-"))
        self._keystore = [] if keys is None else [str(keys.broker.keystore)]
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
            [self._program, self._counters(number), *self._arguments, str(number), *self._keystore],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        self._processes.append(process)
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError("the null broker did not start; its standard error says why")
        return int(port)

    def _counters(self, number: int) -> Path:
        return self._directory / f"counters-{number}"

    def create_topics(self, names: Sequence[str], load: Load) -> None:
        """Do nothing: every topic exists."""

    def delete_topics(self, names: Sequence[str]) -> None:
        """Do nothing: topics hold no records."""

    def counters(self) -> NullCounters:
        """Return the sums of the counters of all nodes."""
        return NullCounters(*map(sum, zip(*self._each(), strict=True)))

    def _each(self) -> Iterator[tuple[int, ...]]:
        for number in range(len(self._processes)):
            with open(self._counters(number), "rb") as file:
                yield HEADER.unpack(file.read(HEADER.size))

    def records(self, names: Sequence[str]) -> int:
        """Return the number of records in all topics."""
        return self.counters().records

    def faults(self) -> int:
        """Return the number of refused batches and frames."""
        return self.counters().faults

    def requests(self) -> int:
        """Return the number of answered Produce requests."""
        return self.counters().requests

    def handshakes(self) -> int:
        """Return the number of TLS handshakes that were completed."""
        return self.counters().handshakes

    def volume(self) -> int | None:
        """Return the number of bytes of all batches."""
        return self.counters().bytes

    def samples(self) -> Sequence[int]:
        """Return for each node how many batches it has kept so far; each batch replaces the previous one."""
        return [NullCounters(*seen).samples for seen in self._each()]

    def want_sample(self) -> None:
        """Make each node keep the next batch that it receives, apart from its regular samples."""
        for number in range(len(self._processes)):
            with open(self._counters(number), "r+b", buffering=0) as file:
                file.seek(NullCounters._fields.index("wanted") * FLAG.size)
                file.write(FLAG.pack(1))

    def sample(self, names: Sequence[str], before: Sequence[int]) -> Kept:
        """Return the current samples of the nodes that have kept a batch since `samples()` returned `before`."""
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
    """The brokers of a run, each started at its first use. A context manager."""

    def __init__(self) -> None:
        self._null: dict[tuple[int, int, bool], NullBroker] = {}
        self._kafka: dict[tuple[str, bool], KafkaBroker] = {}
        self._keys: Keys | None = None

    def get(self, kind: str, load: Load) -> Broker:
        """Return the broker of a kind: "null" (with the load's partitions and brokers), "kafka", "kafka3" (3 nodes)."""
        keys = self._made_keys() if load.tls else None
        if kind == "null":
            key = load.partitions, load.brokers, load.tls
            if key not in self._null:
                self._null[key] = NullBroker(load.partitions, nodes=load.brokers, keys=keys)
            return self._null[key]
        wanted = kind, load.tls
        if wanted not in self._kafka:
            self.stop_kafka()
            self._kafka[wanted] = KafkaBroker.start(3 if kind == "kafka3" else 1, keys)
        return self._kafka[wanted]

    def _made_keys(self) -> Keys:
        """Return the keys of the run's brokers."""
        if self._keys is None:
            self._keys = Keys(tempfile.mkdtemp(prefix="cyp-bench-keys-"))
        return self._keys

    def stop_null(self) -> None:
        """Stop the null brokers, so that the next comparison begins with new ones."""
        while self._null:
            self._null.popitem()[1].stop()

    def stop_kafka(self) -> None:
        """Stop the real brokers, because an idle JVM still uses some CPU."""
        while self._kafka:
            self._kafka.popitem()[1].cluster.stop()

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_null()
        self.stop_kafka()
        if self._keys is not None:
            shutil.rmtree(self._keys.directory, ignore_errors=True)
