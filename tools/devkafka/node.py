"""Runs Apache Kafka with one node or three nodes on this machine from Python, for the demo and the tests.

Each node is a KRaft broker and controller in one process. It listens on 127.0.0.1, on the same port after each restart.
``mock_cluster`` runs librdkafka's mock cluster on a machine without Java.
"""

import base64
import contextlib
import functools
import importlib
import os
import random
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from devkafka.class_archive import class_archive, making, using
from devkafka.dump import LogBatch, LogRecord, parse_dump
from devkafka.jars import KAFKA_VERSION, kafka_jars
from devkafka.maven import DownloadError, JavaMissingError, find_java
from devkafka.metadata import Metadata, ask_metadata
from devkafka.security import LISTENERS, SCRAM_ITERATIONS, SCRAM_MECHANISMS, Security

__all__ = [
    "Access",
    "DownloadError",
    "JavaMissingError",
    "KafkaCluster",
    "KafkaNode",
    "KafkaStartError",
    "LogBatch",
    "LogRecord",
    "Rule",
    "find_java",
    "free_ports",
    "kafka_jars",
    "mock_cluster",
]

HOST = "127.0.0.1"
TIMEOUT = 30.0
ANSWER_S = 10.0  # how long an answer about a new topic is waited for
CLUSTER = "kafka-cluster"  # the only name of the resource CLUSTER
# Little memory, one thread for garbage collection, and only the fast compiler: a node runs for minutes on a shared
# machine.
SMALL_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-XX:-UsePerfData")
# The exit status of a JVM that has ended all its work after a SIGTERM.
ENDED_BY_SIGTERM = 128 + signal.SIGTERM
QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")

# Asks the kernel to kill this process when the starting thread ends, and then replaces itself with the node by exec.
# So a SIGKILL of a test run leaves no broker. The parent is compared because it may have ended before the request.
LAUNCHER = (
    "import ctypes, os, sys\n"
    "ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)\n"
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class KafkaStartError(RuntimeError):
    """A node ended or did not answer in time; the message contains the end of its log."""


def free_ports(count: int) -> list[int]:
    """Return TCP ports of 127.0.0.1 that are free now.

    They are below the kernel's range for outgoing connections, so that no connection can take the port of a node
    while the node is down.
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
    raise KafkaStartError(f"only {len(found)} of {count} free TCP ports were found below {span.stop}")


class KafkaNode:
    """One process of a KafkaCluster: its number (from 1), ports, directory and log.

    secure_ports   ports of the secure listeners by their name; empty without security
    """

    def __init__(
        self, number: int, port: int, controller_port: int, directory: Path, secure_ports: Mapping[str, int]
    ) -> None:
        self.number = number
        self.port = port
        self.controller_port = controller_port
        self.secure_ports = secure_ports
        self.data = directory / f"node-{number}"
        self.properties = directory / f"node-{number}.properties"
        self.log = directory / f"node-{number}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.paused = False

    @property
    def address(self) -> str:
        """The ``host:port`` that clients connect to."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id while the node runs, else None."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of the log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        except FileNotFoundError:
            return ""

    def launch(self, command: Sequence[str]) -> None:
        """Start the process, without waiting until the node answers."""
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.data.parent,
                start_new_session=True,  # only the caller gets Ctrl-C; it then stops the node
            )
        self.paused = False

    def signal(self, number: int) -> None:
        """Send a signal to the process if it runs."""
        if self.pid is not None and self.process is not None:
            self.process.send_signal(number)

    def stop(self) -> None:
        """Send SIGSTOP and wait until all threads have stopped (slow on a busy machine) or the process has ended."""
        pid = self.pid
        self.signal(signal.SIGSTOP)
        self.paused = True
        if pid is not None:
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def end(self, deadline: float) -> None:
        """Wait for the end of the process, and kill it at the deadline (of the monotonic clock)."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.paused = False


class KafkaCluster:
    """``nodes`` Kafka brokers (1 or 3) as a context manager, which is entered when all of them answer.

    directory       directory for data, properties and logs, created if missing; None: a temporary directory, which is
                    removed at the end
    properties      Kafka's broker settings by name, which override ours; or a function that returns them for a node
    auto_create     ``auto.create.topics.enable``
    num_partitions  number of partitions of an automatically created topic
    ports           one port per node for clients, instead of free ports
    jvm_options     options of every node's JVM, or a function that returns them for a node
    start_timeout   seconds until all nodes must answer
    version         of Kafka, from 2.8 on, where KRaft began
    plugins         directories and jars with further classes of the nodes
    features        levels of Kafka's features by name, instead of the newest ones of the version (from Kafka 4.0 on)
    security        listeners with TLS and SASL, and an authorizer (from Kafka 4.0 on)
    share_classes   start JVMs of the newest version from an archive of its classes; the first start of all makes it
                    in the user's cache, in some ten seconds

    Start the cluster from a thread that lives longer than the nodes: the kernel kills them when that thread ends.
    Raises JavaMissingError, DownloadError, KafkaStartError.
    """

    def __init__(
        self,
        nodes: int = 1,
        directory: str | os.PathLike[str] | None = None,
        *,
        properties: Mapping[str, object] | Callable[[KafkaNode], Mapping[str, object]] | None = None,
        auto_create: bool = False,
        num_partitions: int = 1,
        ports: Sequence[int] | None = None,
        jvm_options: Sequence[str] | Callable[[KafkaNode], Sequence[str]] = SMALL_JVM,
        start_timeout: float = 90.0,
        version: str = KAFKA_VERSION,
        plugins: Sequence[str | os.PathLike[str]] = (),
        features: Mapping[str, int] | None = None,
        security: Security | None = None,
        share_classes: bool = True,
    ) -> None:
        if nodes not in (1, 3):
            raise ValueError(f"nodes={nodes}: use 1 or 3")
        if ports is not None and len(ports) != nodes:
            raise ValueError(f"ports={list(ports)}: give {nodes}, one per node")
        self.start_timeout = start_timeout
        self._java = str(find_java())
        self._jars = kafka_jars(version)
        self._class_path = os.pathsep.join([str(self._jars / "*"), *(str(path) for path in plugins)])
        self._tools = str(kafka_jars() / "*")
        self._share_classes = share_classes and version == KAFKA_VERSION
        self._shared: tuple[str, ...] = ()
        self._jvm_options = jvm_options
        self._temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="cyproducer-kafka-") if directory is None else directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._given = properties
        self._features = [part for name, level in (features or {}).items() for part in ("-f", f"{name}={level}")]
        self._extra = {"auto.create.topics.enable": str(auto_create).lower(), "num.partitions": num_partitions}
        self.security = security
        secure = list(LISTENERS) if security is not None else []
        chosen = iter(free_ports((2 + len(secure)) * nodes))
        self.nodes = [
            KafkaNode(
                i + 1,
                ports[i] if ports else next(chosen),
                next(chosen),
                self.directory,
                {listener: next(chosen) for listener in secure},
            )
            for i in range(nodes)
        ]

    def __enter__(self) -> "KafkaCluster":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """The ``host:port`` of all nodes, separated by commas."""
        return ",".join(node.address for node in self.nodes)

    def address_of(self, listener: str, number: int | None = None) -> str:
        """Return the ``host:port`` of a listener of one node, or those of all nodes, separated by commas.

        The listener is PLAINTEXT or a secure one (see Security). Raise ValueError if the nodes do not have it.
        """
        nodes = self.nodes if number is None else [self.node(number)]
        if listener == "PLAINTEXT":
            return ",".join(node.address for node in nodes)
        if self.security is None or listener not in LISTENERS:
            known = ["PLAINTEXT", *(LISTENERS if self.security is not None else ())]
            raise ValueError(f"listener {listener!r} does not exist: the nodes have {', '.join(known)}")
        return ",".join(f"{self.security.host}:{node.secure_ports[listener]}" for node in nodes)

    @property
    def access(self) -> "Access":
        """What changes users, rules and certificates of the running nodes. Raise ValueError without ``security``."""
        if self.security is None:
            raise ValueError("the cluster has no secure listeners: start it with KafkaCluster(security=Security(…))")
        return Access(self, self.security)

    def node(self, number: int) -> KafkaNode:
        """Return the node of that number (``node.id``, from 1)."""
        return self.nodes[number - 1]

    def pid(self, number: int = 1) -> int:
        """Return the process id of a node. Raise ProcessLookupError if it does not run."""
        pid = self.node(number).pid
        if pid is None:
            raise ProcessLookupError(f"node {number} does not run")
        return pid

    def pids(self) -> list[int]:
        """Return the process ids of all running nodes."""
        return [node.pid for node in self.nodes if node.pid is not None]

    def start(self) -> None:
        """Format the storage, start all nodes and wait until each answers and knows the others."""
        try:
            if self._share_classes:
                self._shared = using(class_archive(f"kafka-{KAFKA_VERSION}", self._java, self._jars, _make_archive))
            self._format()
            for node in self.nodes:
                self._launch(node)
            for node in self.nodes:
                self._await_answer(node, len(self.nodes))
        except BaseException:
            self.stop(grace=0)
            raise

    def stop(self, grace: float = 5.0) -> None:
        """End all nodes with SIGTERM, and with SIGKILL after ``grace`` seconds (at once if 0). Can be repeated."""
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
        options = [*(given(node) if callable(given) else given)]
        if self.security is not None:
            options += self.security.jvm_options()
        node.launch(self._command("kafka.Kafka", str(node.properties), options=options))

    def kill(self, number: int = 1) -> None:
        """End a node with SIGKILL and wait for its end."""
        self.node(number).signal(signal.SIGKILL)
        self.node(number).end(time.monotonic() + 10)

    def pause(self, number: int = 1) -> None:
        """Stop a node with SIGSTOP: its connections stay open, but it does not answer."""
        self.node(number).stop()

    def resume(self, number: int = 1) -> None:
        """Continue a paused node with SIGCONT."""
        self.node(number).signal(signal.SIGCONT)
        self.node(number).paused = False

    def restart(self, number: int = 1, *, grace: float = 10.0, wait: bool = True) -> None:
        """End a node with SIGTERM if it runs, start it with the same port and data, and wait until it answers."""
        node = self.node(number)
        node.signal(signal.SIGCONT)
        node.signal(signal.SIGTERM)
        node.end(time.monotonic() + grace)
        self._launch(node)
        if wait:
            running = sum(other.pid is not None and not other.paused for other in self.nodes)
            self._await_answer(node, running)

    def restore(self) -> None:
        """Resume paused nodes and start ended ones, so that all nodes of the cluster run."""
        for node in self.nodes:
            if node.paused:
                self.resume(node.number)
        ended = [node.number for node in self.nodes if node.pid is None]
        for number in ended:
            self.restart(number, wait=False)
        for number in ended:
            self._await_answer(self.node(number), len(self.nodes))

    def metadata(self, topic: str | None = None, number: int = 1) -> Metadata:
        """Return one node's metadata of the cluster and of a topic. Raise OSError if the node does not answer."""
        return ask_metadata(HOST, self.node(number).port, topic)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
        timeout: float = 120.0,
    ) -> str:
        """Create a topic, wait until every running node knows a leader for each partition, and return its name.

        Use confluent_kafka's admin client if it is installed, else Kafka's TopicCommand (a JVM: about a second).
        """
        try:
            import confluent_kafka.admin
        except ImportError:
            self._create_by_tool(name, partitions, replication, configs or {})
        else:
            wanted = confluent_kafka.admin.NewTopic(name, partitions, replication, config=dict(configs or {}))
            self._create_by_client(wanted, timeout)

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
        """Return all batches of a partition on the disk of its leader (or of ``node``), read by DumpLogSegments.

        The call starts a JVM, which takes about half a second. ``records=True`` fills ``LogBatch.records``. Raise
        ValueError for a missing partition or a damaged segment.
        """
        segments = self.segments(topic, partition, node=node)
        wanted = "--print-data-log" if records else "--deep-iteration"
        tool = self.tool("org.apache.kafka.tools.DumpLogSegments", wanted, "--files", ",".join(map(str, segments)))
        batches = parse_dump(tool.stdout)
        if not records:  # --deep-iteration checks each record, and prints the records as well
            for batch in batches:
                batch.records.clear()
        return batches

    def segments(self, topic: str, partition: int = 0, *, node: int | None = None) -> list[Path]:
        """Return the files of a partition's log on the disk of its leader (or of ``node``), the oldest first.

        Raise ValueError for a missing partition.
        """
        if node is None:
            alive = next(n.number for n in self.nodes if n.pid is not None and not n.paused)
            node = self.metadata(topic, alive).leaders.get(partition, -1)
        found = sorted((self.node(node).data / f"{topic}-{partition}").glob("*.log")) if node > 0 else []
        if not found:
            raise ValueError(f"no log of partition {partition} of topic {topic}")
        return found

    def _command(self, main: str, *arguments: str, options: Sequence[str] = SMALL_JVM) -> list[str]:
        return [self._java, *self._shared, *options, *QUIET, "-cp", self._class_path, main, *arguments]

    def tool(self, main: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the command line tools of Kafka 4.3.1. Raise KafkaStartError with its output if it fails."""
        options = (
            *SMALL_JVM,
            "-Dfile.encoding=UTF-8",
            "-Dsun.stdout.encoding=UTF-8",
            "-Dstdout.encoding=UTF-8",
        )
        run = subprocess.run(
            [self._java, *self._shared, *options, *QUIET, "-cp", self._tools, main, *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
            timeout=120,
        )
        if run.returncode:
            raise KafkaStartError(f"{main} failed ({run.returncode}): {(run.stderr + run.stdout).strip()[-1500:]}")
        return run

    def _create_by_client(self, wanted: Any, timeout: float) -> None:
        """Create a topic, and try again without an answer: a broker that was paused may lose a request."""
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient

        lost = (KafkaError._TIMED_OUT, KafkaError.REQUEST_TIMED_OUT)
        until = time.monotonic() + timeout
        attempts = 0
        while True:
            admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
            limits = {"operation_timeout": ANSWER_S, "request_timeout": ANSWER_S}
            try:
                admin.create_topics([wanted], **limits)[wanted.topic].result(timeout)
                return
            except KafkaException as error:
                code = error.args[0].code()
                if attempts and code == KafkaError.TOPIC_ALREADY_EXISTS:
                    return  # the request without an answer has created it
                if code not in lost or time.monotonic() >= until:
                    raise
            attempts += 1

    def _create_by_tool(self, name: str, partitions: int, replication: int, configs: Mapping[str, str]) -> None:
        settings = [part for item in configs.items() for part in ("--config", "=".join(item))]
        self.tool(
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
        """Write each node's properties and format its storage, with one JVM per node at the same time."""
        # A Kafka Uuid has 22 characters of URL-safe base64. The first is not "-", and the four unused bits of the last
        # are zero.
        identity = "k" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:-1] + "A"
        tools = []
        users = self.security.format_arguments() if self.security is not None else []
        for node in self.nodes:
            if self.security is not None:
                node.properties.touch()
                node.properties.chmod(0o600)  # it has passwords
            node.properties.write_text("".join(f"{k}={v}\n" for k, v in self._properties(node).items()))
            settings = ["-t", identity, "-c", str(node.properties), *self._features, *users]
            command = self._command("kafka.tools.StorageTool", "format", *settings)
            node.data.mkdir(exist_ok=True)
            with open(node.log, "ab") as log:
                # With security, the tool prints salted passwords.
                printed = log if self.security is None else subprocess.DEVNULL
                tools.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=log))
        status = [tool.wait() for tool in tools]
        for node, failed in zip(self.nodes, status, strict=True):
            if failed:
                raise KafkaStartError(f"formatting node {node.number} failed: {node.log_tail()}")

    def _properties(self, node: KafkaNode) -> dict[str, object]:
        several = len(self.nodes) > 1
        copies = min(3, len(self.nodes))
        voters = ",".join(f"{n.number}@{HOST}:{n.controller_port}" for n in self.nodes)
        settings: dict[str, object] = {
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
            # The default of 50 partitions each makes the start slow.
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.num.partitions": 4,
            "min.insync.replicas": 2 if several else 1,
            "default.replication.factor": copies,
            "group.initial.rebalance.delay.ms": 0,
            # By default, records with a timestamp older than seven days are deleted 30 s after the start.
            "log.retention.ms": -1,
            # A killed leader is replaced after 2 s instead of 9 s.
            "broker.session.timeout.ms": 2000,
            "broker.heartbeat.interval.ms": 300,
            # With the default of 500 ms, a node that nobody uses takes a fourth more CPU time.
            "metadata.max.idle.interval.ms": 5000,
        }
        if self.security is not None:
            settings |= self.security.properties(node.secure_ports, HOST, settings)
        given = self._given(node) if callable(self._given) else self._given
        return {**settings, **self._extra, **(given or {})}

    def _await_answer(self, node: KafkaNode, brokers: int) -> None:
        self._until(
            lambda: len(self.metadata(number=node.number).brokers) >= brokers,
            self.start_timeout,
            node,
            f"does not answer with {brokers} brokers",
        )

    def _until(self, ready: Callable[[], bool], timeout: float, node: KafkaNode, problem: str) -> None:
        """Call ``ready`` until it returns true. Raise KafkaStartError if the node ends or the timeout expires."""
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OSError):
                if ready():
                    return
            if node.pid is None:
                raise KafkaStartError(f"node {node.number} at {node.address} ended:\n{node.log_tail()}")
            if time.monotonic() > deadline:
                raise KafkaStartError(
                    f"node {node.number} at {node.address} {problem} after {timeout:g} s:\n{node.log_tail()}"
                )
            time.sleep(0.05)


def _make_archive(archive: Path) -> bool:
    """Let a node write the archive of its classes at its end. Return whether it ended by itself."""
    try:
        with KafkaCluster(jvm_options=(*SMALL_JVM, making(archive)), share_classes=False) as cluster:
            cluster.stop(grace=120)
            process = cluster.nodes[0].process
            return process is not None and process.returncode == ENDED_BY_SIGTERM
    except KafkaStartError as error:
        raise OSError(str(error)) from None


@contextlib.contextmanager
def mock_cluster(brokers: int = 1) -> Iterator[str]:
    """Run librdkafka's embedded mock cluster in this process and return its bootstrap servers; for use without Java.

    The mock cluster checks less than Kafka: no CRC check, every topic exists, no TLS or SASL. It is useful for a first
    try and for error injection, but proves nothing. Raise RuntimeError if confluent-kafka is missing.
    """
    try:
        from confluent_kafka import Producer
    except ImportError:
        raise RuntimeError(
            "confluent-kafka, which contains the mock cluster, is not installed: pip install confluent-kafka"
        ) from None
    owner = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": brokers, "log_level": 0})
    known = owner.list_topics(timeout=30).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in known)
    del owner


# ---------------------------------------------------------------------- users, rules, certificates


class Rule(NamedTuple):
    """A rule of the authorizer (an ACL).

    principal    for example ``User:alice``
    operation    a name of Kafka's AclOperation, for example WRITE
    resource     TOPIC, GROUP, TRANSACTIONAL_ID or CLUSTER
    name         of the resource, ``*`` for all of them; for CLUSTER the default
    prefixed     the rule is for all resources whose names begin with ``name``
    permission   ALLOW or DENY
    """

    principal: str
    operation: str
    resource: str
    name: str = CLUSTER
    prefixed: bool = False
    permission: str = "ALLOW"


class Access:
    """The administration of a cluster with ``security``, over the listener PLAINTEXT with confluent-kafka.

    After each call, all running nodes have applied the change; connections that exist keep their user and their
    certificates. The calls raise confluent_kafka.KafkaException if Kafka refuses them, RuntimeError if a certificate
    is not loaded, and ImportError if confluent-kafka is not installed.
    """

    def __init__(self, cluster: KafkaCluster, security: Security) -> None:
        self._cluster = cluster
        self._security = security

    def set_scram_password(self, user: str, password: str) -> None:
        """Set the password of a user for both SCRAM mechanisms, and create the user if there is none."""
        kafka = _library()
        for mechanism in SCRAM_MECHANISMS:
            how = kafka.ScramCredentialInfo(kafka.ScramMechanism[mechanism.replace("-", "_")], SCRAM_ITERATIONS)
            change = kafka.UserScramCredentialUpsertion(user, how, password.encode())
            # Kafka takes one change of a user in a request.
            self._ask("alter_user_scram_credentials", [change])
        self._settle()

    def remove_scram_user(self, user: str) -> None:
        """Take a user's passwords for both SCRAM mechanisms away: both get a random one.

        A client sees no difference to a removed user. Nothing is removed because Kafka 4.3.1 can lose all SCRAM users
        at the next start of a node if one has been removed: ScramDelta.apply drops the whole map if the removal is the
        first change that it applies.
        """
        self.set_scram_password(user, secrets.token_urlsafe())

    def allow(
        self, principal: str, operation: str, resource: str, name: str = CLUSTER, *, prefixed: bool = False
    ) -> None:
        """Add a rule that allows an operation, see `Rule`."""
        self.add([Rule(principal, operation, resource, name, prefixed)])

    def deny(
        self, principal: str, operation: str, resource: str, name: str = CLUSTER, *, prefixed: bool = False
    ) -> None:
        """Add a rule that denies an operation, see `Rule`. It has priority over rules that allow the operation."""
        self.add([Rule(principal, operation, resource, name, prefixed, "DENY")])

    def add(self, rules: Sequence[Rule]) -> None:
        """Add several rules."""
        self._ask("create_acls", _as_kafka("AclBinding", rules))
        self._settle()

    def withdraw(self, rules: Sequence[Rule]) -> None:
        """Remove several rules. The other rules of their principals stay."""
        self._ask("delete_acls", _as_kafka("AclBindingFilter", rules))
        self._settle()

    def remove(self, principal: str) -> None:
        """Remove all rules of a principal."""
        kafka = _library()
        rules = kafka.AclBindingFilter(
            kafka.ResourceType.ANY,
            None,
            kafka.ResourcePatternType.ANY,
            principal,
            None,
            kafka.AclOperation.ANY,
            kafka.AclPermissionType.ANY,
        )
        self._ask("delete_acls", [rules])
        self._settle()

    def reload_certificates(self, number: int | None = None) -> None:
        """Make one node or all running nodes load the broker's certificate and the certificate of the CA again.

        The files are those of `Security.keys`, whose `reissue_broker` changes them.
        """
        kafka = _library()
        nodes = self._running() if number is None else [self._cluster.node(number)]
        # Kafka loads a changed file if its setting is altered, also to the value that it has.
        entries = [
            kafka.ConfigEntry(name, value, incremental_operation=kafka.AlterConfigOpType.SET)
            for name, value in self._security.stores().items()
        ]
        for node in nodes:
            resource = kafka.ConfigResource(kafka.ResourceType.BROKER, str(node.number), incremental_configs=entries)
            self._ask("incremental_alter_configs", [resource])
        # Each network thread of a listener has its own copy, so one answer with the new certificate would prove little.
        self._settle()
        for node in nodes:
            self._check_certificate(node)

    def _running(self) -> list[KafkaNode]:
        return [node for node in self._cluster.nodes if node.pid is not None and not node.paused]

    def _ask(self, request: str, things: list[Any]) -> None:
        """Send a request of the admin client, and wait until the controller has done it."""
        admin = _library().AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 0})
        for future in getattr(admin, request)(things, request_timeout=TIMEOUT).values():
            future.result(TIMEOUT)

    def _settle(self) -> None:
        """Wait until all running nodes have applied what the controller has decided up to now.

        A node applies changes of the metadata in their order, one group after the other, and shows the topics of a
        group before it applies its rules and passwords. So a node that shows the second of two topics, which was
        created after the node had shown the first, has applied all that was before the first.
        """
        names = [self._cluster.create_topic(f"applied-{uuid.uuid4()}") for _ in range(2)]
        self._ask("delete_topics", names)

    def _check_certificate(self, node: KafkaNode) -> None:
        """Raise RuntimeError if a TLS listener of a node does not present the broker's certificate."""
        wanted = ssl.PEM_cert_to_DER_cert(self._security.keys.broker.certificate.read_text())
        for listener, protocol in LISTENERS.items():
            host, _, port = self._cluster.address_of(listener, node.number).rpartition(":")
            if protocol.endswith("SSL") and _certificate_of(host, int(port)) != wanted:
                raise RuntimeError(
                    f"listener {listener} of node {node.number} does not present the certificate in "
                    f"{self._security.keys.broker.keystore}. Its log ends with:\n{node.log_tail()}"
                )


def _library() -> Any:
    """Return confluent-kafka's module of admin requests: an optional dependency, which does not export its names."""
    return importlib.import_module("confluent_kafka.admin")


def _as_kafka(kind: str, rules: Sequence[Rule]) -> list[Any]:
    """Return objects of confluent-kafka for rules. Their kind is AclBinding, or AclBindingFilter, which finds them."""
    kafka = _library()
    return [
        getattr(kafka, kind)(
            # confluent-kafka has the cluster's number under the name of a resource of other requests.
            kafka.ResourceType["BROKER" if rule.resource == "CLUSTER" else rule.resource],
            rule.name,
            kafka.ResourcePatternType["PREFIXED" if rule.prefixed else "LITERAL"],
            rule.principal,
            "*",
            kafka.AclOperation[rule.operation],
            kafka.AclPermissionType[rule.permission],
        )
        for rule in rules
    ]


def _certificate_of(host: str, port: int) -> bytes | None:
    """Return the certificate that a server presents."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is compared, so it needs no verification
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, port), TIMEOUT) as plain, context.wrap_socket(plain) as secure:
        return secure.getpeercert(binary_form=True)
