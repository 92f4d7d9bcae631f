"""A real Apache Kafka on this machine, for the demo and the tests: one node, or three, run from Python.

Each node is a KRaft broker and controller in one process, listening on 127.0.0.1 at a port that stays its own
over restarts. ``mock_cluster`` is librdkafka's imitation for a machine without Java.
"""

import base64
import contextlib
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from cyproducer.cli.kafka_dump import LogBatch, LogRecord, parse_dump
from cyproducer.cli.kafka_jars import kafka_jars
from cyproducer.cli.kafka_metadata import Metadata, ask_metadata
from cyproducer.cli.maven_jars import DownloadError, JavaMissingError, find_java

__all__ = [
    "DownloadError",
    "JavaMissingError",
    "KafkaCluster",
    "KafkaNode",
    "KafkaStartError",
    "LogBatch",
    "LogRecord",
    "find_java",
    "free_ports",
    "kafka_jars",
    "mock_cluster",
]

HOST = "127.0.0.1"
# Little memory, one collector thread, and only the fast compiler: a node lives for minutes on a shared
# machine.
SMALL_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")
QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")

# Becomes the node by exec, after it has asked the kernel to be killed when the starting thread ends, so that
# a SIGKILL of a test run leaves no broker. The parent is compared since it may have died before the request.
LAUNCHER = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class KafkaStartError(RuntimeError):
    """A node ended or did not answer in time; the message has the end of its log."""


def free_ports(count: int) -> list[int]:
    """TCP ports of 127.0.0.1 that nobody listens on now.

    They lie below the kernel's range for outgoing connections, which could otherwise take the port of a node
    while it is down.
    """
    try:
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        low = 32768
    span = range(10000, low) if low > 12000 else range(61000, 65500)
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.SystemRandom().sample(span, len(span)):
            attempt = held.enter_context(socket.socket())
            try:
                attempt.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise KafkaStartError(f"{count} free TCP ports wanted below {span.stop}, {len(found)} found")


class KafkaNode:
    """One process of a KafkaCluster: its number (from 1), port, directory and log."""

    def __init__(self, number: int, port: int, controller_port: int, directory: Path) -> None:
        self.number = number
        self.port = port
        self.controller_port = controller_port
        self.data = directory / f"node-{number}"
        self.properties = directory / f"node-{number}.properties"
        self.log = directory / f"node-{number}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False

    @property
    def address(self) -> str:
        """``host:port`` that clients connect to."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs, else None."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def launch(self, command: Sequence[str]) -> None:
        """Start the process; it does not answer yet."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data.parent,
                start_new_session=True,  # Ctrl-C is for the caller, who then stops the node
            )
        self.paused = False

    def signal(self, number: int) -> None:
        """Send a signal if the process runs."""
        if self.pid is not None and self.process is not None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """SIGSTOP; returns when the last of its threads has stopped (a busy machine takes a while) or it has ended."""
        pid = self.pid
        self.signal(signal.SIGSTOP)
        self.paused = True
        if pid is not None:
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def end(self, deadline: float) -> None:
        """Wait for the process, and kill it at the deadline (of the monotonic clock)."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.paused = False


class KafkaCluster:
    """``nodes`` Kafka brokers (1 or 3) as a context manager; entering it returns when all of them answer.

    directory       where data, properties and logs go (made if missing); a temporary one, removed at the end,
    if None properties      Kafka's own broker settings by name, stronger than ours
    auto_create     ``auto.create.topics.enable``
    num_partitions  partitions of a topic created by itself
    ports           ports for clients, one a node, instead of free ones
    jvm_options     those of every node, or a function that says them for a node
    start_timeout   seconds until all must answer

    Start it from a thread that lives as long as the nodes shall: the kernel kills them when that thread ends.
    Raises JavaMissingError, DownloadError, KafkaStartError.
    """

    def __init__(
        self,
        nodes: int = 1,
        directory: str | os.PathLike[str] | None = None,
        *,
        properties: Mapping[str, object] | None = None,
        auto_create: bool = False,
        num_partitions: int = 1,
        ports: Sequence[int] | None = None,
        jvm_options: Sequence[str] | Callable[[KafkaNode], Sequence[str]] = SMALL_JVM,
        start_timeout: float = 90.0,
    ) -> None:
        if nodes not in (1, 3):
            raise ValueError(f"nodes={nodes}: a cluster has 1 or 3")
        if ports is not None and len(ports) != nodes:
            raise ValueError(f"ports={list(ports)}: {nodes} wanted, one a node")
        self.start_timeout = start_timeout
        self._java = str(find_java())
        self._class_path = str(kafka_jars() / "*")
        self._jvm_options = jvm_options
        self._temporary = directory is None
        self.directory = Path(
            tempfile.mkdtemp(prefix="cyproducer-kafka-") if directory is None else directory
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        self._extra = {
            "auto.create.topics.enable": str(auto_create).lower(),
            "num.partitions": num_partitions,
            **(properties or {}),
        }
        chosen = free_ports(2 * nodes)
        self.nodes = [
            KafkaNode(i + 1, ports[i] if ports else chosen[i], chosen[nodes + i], self.directory)
            for i in range(nodes)
        ]

    def __enter__(self) -> "KafkaCluster":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """``host:port`` of all nodes, joined by commas."""
        return ",".join(node.address for node in self.nodes)

    def node(self, number: int) -> KafkaNode:
        """The node of that number (``node.id``, from 1)."""
        return self.nodes[number - 1]

    def pid(self, number: int = 1) -> int:
        """Process id of a node. Raises ProcessLookupError if it does not run."""
        pid = self.node(number).pid
        if pid is None:
            raise ProcessLookupError(f"node {number} does not run")
        return pid

    def pids(self) -> list[int]:
        """Process ids of all nodes that run."""
        return [node.pid for node in self.nodes if node.pid is not None]

    def start(self) -> None:
        """Format the storage, start all nodes and wait until each answers and knows the others."""
        try:
            self._format()
            for node in self.nodes:
                self._launch(node)
            for node in self.nodes:
                self._await_answer(node, len(self.nodes))
        except BaseException:
            self.stop(grace=0)
            raise

    def stop(self, grace: float = 5.0) -> None:
        """End all nodes: SIGTERM, and SIGKILL after ``grace`` seconds (at once if 0). Twice is harmless."""
        for node in self.nodes:
            node.signal(signal.SIGCONT)
            node.signal(signal.SIGTERM if grace > 0 else signal.SIGKILL)
        deadline = time.monotonic() + grace
        for node in self.nodes:
            node.end(deadline)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _launch(self, node: KafkaNode) -> None:
        given = self._jvm_options
        options = given(node) if callable(given) else given
        node.launch(self._command("kafka.Kafka", str(node.properties), options=options))

    def kill(self, number: int = 1) -> None:
        """SIGKILL a node and wait for its end."""
        self.node(number).signal(signal.SIGKILL)
        self.node(number).end(time.monotonic() + 10)

    def pause(self, number: int = 1) -> None:
        """SIGSTOP a node: its connections stay, it answers nothing."""
        self.node(number).stop()

    def resume(self, number: int = 1) -> None:
        """SIGCONT a node that was paused."""
        self.node(number).signal(signal.SIGCONT)
        self.node(number).paused = False

    def restart(self, number: int = 1, *, grace: float = 10.0, wait: bool = True) -> None:
        """End a node (SIGTERM) if it runs, start it on the same port and data, and wait until it answers."""
        node = self.node(number)
        node.signal(signal.SIGCONT)
        node.signal(signal.SIGTERM)
        node.end(time.monotonic() + grace)
        self._launch(node)
        if wait:
            running = sum(other.pid is not None and not other.paused for other in self.nodes)
            self._await_answer(node, running)

    def heal(self) -> None:
        """Resume nodes that are paused and start those that ended, so that the cluster is whole again."""
        for node in self.nodes:
            if node.paused:
                self.resume(node.number)
        dead = [node.number for node in self.nodes if node.pid is None]
        for number in dead:
            self.restart(number, wait=False)
        for number in dead:
            self._await_answer(self.node(number), len(self.nodes))

    def metadata(self, topic: str | None = None, number: int = 1) -> Metadata:
        """What one node knows of the cluster and of a topic. Raises OSError if it does not answer."""
        return ask_metadata(HOST, self.node(number).port, topic)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> str:
        """Create a topic, wait until every running node knows a leader for each partition, return its name.

        Through confluent_kafka's admin client, else Kafka's TopicCommand (a JVM: about a second).
        """
        try:
            from confluent_kafka.admin import AdminClient
            from confluent_kafka.cimpl import NewTopic
        except ImportError:
            self._create_by_tool(name, partitions, replication, configs or {})
        else:
            admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
            wanted = NewTopic(name, partitions, replication, config=dict(configs or {}))
            created = admin.create_topics([wanted], operation_timeout=timeout, request_timeout=timeout)
            created[name].result(timeout)

        def known(node: KafkaNode) -> bool:
            leaders = self.metadata(name, node.number).leaders
            return len(leaders) == partitions and min(leaders.values()) >= 0

        for node in self.nodes:
            if node.pid is not None and not node.paused:
                self._until(functools.partial(known, node), timeout, node, f"does not know topic {name}")
        return name

    def dump_log(
        self, topic: str, partition: int = 0, *, records: bool = False, node: int | None = None
    ) -> list[LogBatch]:
        """All batches of a partition on the disk of its leader (or of ``node``), by Kafka's DumpLogSegments.

        Starts a JVM: about half a second. ``records=True`` fills ``LogBatch.records``. Raises ValueError for
        a partition that is not there or a damaged segment.
        """
        segments = self.segments(topic, partition, node=node)
        wanted = "--print-data-log" if records else "--deep-iteration"
        tool = self._tool(
            "org.apache.kafka.tools.DumpLogSegments", wanted, "--files", ",".join(map(str, segments))
        )
        batches = parse_dump(tool.stdout)
        if not records:  # deep iteration, which checks each record, prints them as well
            for batch in batches:
                batch.records.clear()
        return batches

    def segments(self, topic: str, partition: int = 0, *, node: int | None = None) -> list[Path]:
        """The files of a partition's log on the disk of its leader (or of ``node``), the oldest first.

        Raises ValueError for a partition that is not there.
        """
        if node is None:
            alive = next(n.number for n in self.nodes if n.pid is not None and not n.paused)
            node = self.metadata(topic, alive).leaders.get(partition, -1)
        found = sorted((self.node(node).data / f"{topic}-{partition}").glob("*.log")) if node > 0 else []
        if not found:
            raise ValueError(f"no log of partition {partition} of topic {topic}")
        return found

    def _command(self, main: str, *arguments: str, options: Sequence[str] = SMALL_JVM) -> list[str]:
        return [self._java, *options, *QUIET, "-cp", self._class_path, main, *arguments]

    def _tool(self, main: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of Kafka's command line tools; raises KafkaStartError with what it printed if it fails."""
        options = (
            *SMALL_JVM,
            "-Dfile.encoding=UTF-8",
            "-Dsun.stdout.encoding=UTF-8",
            "-Dstdout.encoding=UTF-8",
        )
        run = subprocess.run(
            self._command(main, *arguments, options=options),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=120,
        )
        if run.returncode:
            raise KafkaStartError(
                f"{main} failed ({run.returncode}): {(run.stderr + run.stdout).strip()[-1500:]}"
            )
        return run

    def _create_by_tool(
        self, name: str, partitions: int, replication: int, configs: Mapping[str, str]
    ) -> None:
        settings = [part for item in configs.items() for part in ("--config", "=".join(item))]
        self._tool(
            "org.apache.kafka.tools.TopicCommand",
            "--bootstrap-server",
            self.bootstrap_servers,
            "--create",
            "--topic",
            name,
            "--partitions",
            str(partitions),
            "--replication-factor",
            str(replication),
            *settings,
        )

    def _format(self) -> None:
        """Write each node's properties and format its storage (a JVM each, side by side)."""
        # A Kafka Uuid: 22 characters of URL-safe base64, the first not "-", the last with its four spare bits
        # zero.
        identity = "k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:-1] + "A"
        tools = []
        for node in self.nodes:
            node.properties.write_text("".join(f"{k}={v}\n" for k, v in self._properties(node).items()))
            command = self._command(
                "kafka.tools.StorageTool", "format", "-t", identity, "-c", str(node.properties)
            )
            node.data.mkdir(exist_ok=True)
            with open(node.log, "ab") as log:
                tools.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        status = [tool.wait() for tool in tools]
        for node, failed in zip(self.nodes, status, strict=True):
            if failed:
                raise KafkaStartError(f"formatting node {node.number} failed: {node.log_tail()}")

    def _properties(self, node: KafkaNode) -> dict[str, object]:
        several = len(self.nodes) > 1
        copies = min(3, len(self.nodes))
        voters = ",".join(f"{n.number}@{HOST}:{n.controller_port}" for n in self.nodes)
        return {
            "process.roles": "broker,controller",
            "node.id": node.number,
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": node.data,
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": 2 if several else 1,
            # The default of 50 each is slow to come up.
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.num.partitions": 4,
            "min.insync.replicas": 2 if several else 1,
            "default.replication.factor": copies,
            "group.initial.rebalance.delay.ms": 0,
            # A leader that was killed is replaced after 2 s instead of 9 s.
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 300,
            **self._extra,
        }

    def _await_answer(self, node: KafkaNode, brokers: int) -> None:
        self._until(
            lambda: len(self.metadata(number=node.number).brokers) >= brokers,
            self.start_timeout,
            node,
            f"does not answer with {brokers} brokers",
        )

    def _until(self, ready: Callable[[], bool], timeout: float, node: KafkaNode, complaint: str) -> None:
        """Poll ``ready`` until it is true; raises KafkaStartError if the node ends or time is up."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError):
                if ready():
                    return
            if node.pid is None:
                raise KafkaStartError(f"node {node.number} at {node.address} ended:\n{node.log_tail()}")
            if time.monotonic() > deadline:
                raise KafkaStartError(
                    f"node {node.number} at {node.address} {complaint} "
                    f"after {timeout:g} s:\n{node.log_tail()}"
                )
            time.sleep(0.05)


@contextlib.contextmanager
def mock_cluster(brokers: int = 1) -> Iterator[str]:
    """librdkafka's embedded mock cluster as bootstrap list, for a machine without Java.

    Lenient (no CRC check, every topic exists, no TLS or SASL): for a first try and for error injection, never
    a proof. Lives in this process while the context does. Raises RuntimeError without confluent-kafka.
    """
    try:
        from confluent_kafka import Producer
    except ImportError:
        raise RuntimeError(
            "the mock cluster is part of confluent-kafka: pip install confluent-kafka"
        ) from None
    owner = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": brokers, "log_level": 0})
    known = owner.list_topics(timeout=30).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in known)
    del owner
