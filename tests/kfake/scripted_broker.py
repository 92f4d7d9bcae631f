"""Drives a cluster of stand-in brokers by a thread and real sockets, with faults on command.

What a correct producer never sends is added to `complaints`, which tests expect to be empty.
"""

import contextlib
import random
import selectors
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from support.dropped_packets import drop_arriving

from cyproducer.codes import (
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    UNKNOWN_PRODUCER_ID,
    UNSUPPORTED_VERSION,
)
from kfake.answers import ConnectionEndedError
from kfake.cluster import Cluster, Node, Request, View
from kfake.codes import API_VERSIONS, DESCRIBE_PRODUCERS, INIT_PRODUCER_ID, METADATA, PRODUCE
from kfake.partition_log import ATTRIBUTES_AT, LogBatch, Partition
from kfake.scripted_coordinators import ScriptedCoordinators

SEQUENCE_ERRORS = (OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, UNKNOWN_PRODUCER_ID)


@dataclass(slots=True)
class Fault:
    """The fault of one Produce request: the first one that `node` receives (None: any node).

    code: the error for `partitions` (None: all), with nothing appended; after_append: the records are appended.
    close: the connection is closed "before" or "after" the append, without a response. partial: the connection is
    closed after so many bytes of the response. split: the response is sent in pieces of so many bytes. delay: seconds
    before the response, and so before later responses of the connection. hang: no response; "appended" appends the
    records, "lost" does not. omit: the response does not contain `partitions`. move: all leaders move to the next node
    first. forget: the state of all producers is lost. restart: only the last batch of each producer is remembered, as
    in the snapshot that a restarted broker reads.
    """

    code: int = 0
    partitions: tuple[int, ...] | None = None
    after_append: bool = False
    close: str = ""
    partial: int | None = None
    split: int = 0
    delay: float = 0.0
    hang: str = ""
    omit: bool = False
    throttle_ms: int = 0
    move: bool = False
    forget: bool = False
    restart: bool = False
    node: int | None = None

    def concerns(self, partition: int) -> bool:
        return self.partitions is None or partition in self.partitions


class _Connection:
    def __init__(self, sock: socket.socket, node: int) -> None:
        self.socket = sock
        self.node = node
        self.input = b""
        self.output: deque[tuple[float, bytes | None]] = deque()  # (not before, bytes); None: close
        self.silent_until = 0.0
        self.hung = False


class ScriptedBroker(Cluster):
    """`nodes` brokers (ids from 1) with one topic; use as a context manager.

    `bootstrap_apart`: the bootstrap address belongs to none of them and serves only metadata.

    `faults` is a queue: a Produce request takes the first one if it is for its node. Public attributes may be read
    under `lock` while the broker runs, and without it afterwards. `produce_version`, `metadata_version`: the highest
    versions that it supports. `host`, `port`: the address on which it listens (port 0: any free port).
    `receive_buffer_bytes`: how much of what it has not read its connections take (0: what the kernel decides).
    """

    first_leader_epoch = 1  # so that there is an older one
    coordinators: ScriptedCoordinators | None

    # fmt: off
    def __init__(
        self, topic: str = "t", partitions: int = 3, nodes: int = 2, *,
        keep_values: bool = True, bootstrap_apart: bool = False, produce_version: int = 13,
        metadata_version: int = 13, host: str = "127.0.0.1", port: int = 0, receive_buffer_bytes: int = 0,
    ) -> None:
        super().__init__()
        self.host = host
        self.topic = topic
        self.versions_most |= {PRODUCE: produce_version, METADATA: metadata_version}
        self.faults: deque[Fault] = deque()
        self.produce_requests = 0
        self.metadata_requests = 0
        self.requests: list[tuple[float, int, int]] = []  # monotonic time, node, API
        self.versions: dict[int, set[int]] = {} # the versions that were used, by API
        self.throttles: dict[int, int] = {}     # ms in the next response, by API; for Produce see Fault
        self.acks_seen: list[int] = []
        self.produced: list[tuple[str | None, list[int]]] = []  # transactional id, attributes of the batches
        self.producer_id_code = 0       # error code of InitProducerId
        self.producer_id_delay = 0.0    # seconds before its response, and so before later ones of the connection
        self.without_leader = 0         # so many metadata responses name no leader
        self.has_ids = True             # metadata responses contain the topic id
        self.unaware = 0                # so many metadata responses come from a broker that does not know the topic
        self.cut_short = 0              # so many metadata responses lack their last bytes
        self.lies: Callable[[dict], None] | None = None  # changes the body of a metadata response
        self.nonsense = False           # the response to ApiVersions is invalid
        self.close_after_versions = 0   # so many ApiVersions responses are the last ones of their connections
        self.refuse_versions = False    # these responses have the error UNSUPPORTED_VERSION
        self.software: set[tuple[str, str]] = set() # names and versions of the clients
        self.accepted = 0               # connections
        self.down: set[int] = set()     # nodes that close every connection at once
        self.mute: set[int] = set()     # nodes that accept connections and ignore all requests
        self.deaf: set[int] = set()     # nodes that accept connections and read nothing
        self.refuses_more = False       # all nodes close every further connection at once
        self.names_records = True       # record_errors contains the refused records
        self.swallow = False            # Produce requests get no response
        self.lose = False               # their batches are not appended
        self.slow: dict[int, float] = {}    # seconds until batches are answered, by partition
        self.every = (0.0, 0.0)         # the same for all Produce requests: seconds (from, to)
        #: The last Produce requests: (connection, partitions). The connections of a node that had any count from 0.
        self.arrived: deque[tuple[int, list[int]]] = deque(maxlen=64)
        #: By the value of a batch's first record: its next results, (code, whether it is appended).
        self.results: dict[bytes, deque[tuple[int, bool]]] = {}
        self.refused_ids: dict[int, int] = {}   # error codes of batches, by their producer id
        self.request_bytes_max = 1 << 30    # socket.request.max.bytes: a larger request closes its connection
        self.oversized = 0              # how many such requests came
        self.states_code = 0            # error code of DescribeProducers
        self.states_asked = 0           # partitions in DescribeProducers requests
        self.lock = threading.RLock()
        self._fault = Fault()           # of the Produce request that is being answered
        self._keep_values = self.checks_timestamps = keep_values
        self._selector = selectors.DefaultSelector()
        self._connections: list[_Connection] = []
        self.carriers: list[_Connection] = []  # those that have carried batches
        self._receive_buffer_bytes = receive_buffer_bytes
        self._listeners = [self._listen(node, port) for node in range(1, nodes + 1 + bootstrap_apart)]
        self.ports = [listener.getsockname()[1] for listener in self._listeners[:nodes]]
        self.nodes = {number: Node(number, host, port) for number, port in enumerate(self.ports, 1)}
        self.add_topic(topic, uuid.uuid4(), self._leaders(partitions))
        self._bootstrap_port = self._listeners[-1 if bootstrap_apart else 0].getsockname()[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-broker", daemon=True)

    # fmt: on

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self._bootstrap_port}"

    def __enter__(self) -> "ScriptedBroker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        for connection in list(self._connections):
            self._close(connection)
        for listener in self._listeners:
            listener.close()
        self._selector.close()

    # ------------------------------------------------------------ what a test does with the cluster

    @property
    def partitions(self) -> list[Partition]:
        """The partitions of the topic; none while it is deleted."""
        topic = self.topics[self.topic]
        return topic.partitions if topic.exists else []

    def values(self, partition: int) -> list[bytes]:
        """Return the values of the log, in order."""
        with self.lock:
            return self.partitions[partition].values

    def coordinate(self, **settings: Any) -> ScriptedCoordinators:
        """Let the nodes coordinate transactional ids and groups."""
        self.coordinators = ScriptedCoordinators(**settings)
        self.coordinators.transactions.on_end = self.write_markers
        return self.coordinators

    def clear_faults(self) -> None:
        with self.lock:
            self.faults.clear()

    def move_leaders(self) -> None:
        """Make the next node the leader of each partition."""
        with self.lock:
            for partition in self.partitions:
                partition.leader = 1 + partition.leader % len(self.nodes)
                partition.leader_epoch += 1

    def grow(self, partitions: int) -> None:
        """Add partitions to the topic until it has `partitions`."""
        with self.lock:
            for leader in self._leaders(partitions)[len(self.partitions) :]:
                self.add_partition(self.topic, leader)

    def delete(self) -> None:
        """Delete the topic, with its records and the state of their producers."""
        with self.lock:
            self.topics[self.topic].exists = False

    def create(self, partitions: int) -> None:
        """Create the topic again."""
        with self.lock:
            self.add_topic(self.topic, uuid.uuid4(), self._leaders(partitions))

    def drop_connections(self) -> None:
        """Close all connections without responses to their requests."""
        with self.lock:
            for connection in self._connections:
                connection.output.clear()
                connection.output.append((0.0, None))

    def forget_connections(self) -> None:
        """Let nothing that is sent on the present connections arrive from here on, as if a firewall dropped it."""
        with self.lock:
            for connection in self._connections:
                drop_arriving(connection.socket)

    def drop(self, number: int, node: int = 1) -> None:
        """Close one of the connections that have carried batches, without responses to its requests."""
        with self.lock:
            connection = [carrier for carrier in self.carriers if carrier.node == node][number]
            connection.output = deque([(0.0, None)])

    def recover(self) -> None:
        """Answer at once what is unanswered, and everything from now on."""
        with self.lock:
            self.slow, self.every = {}, (0.0, 0.0)
            for connection in self._connections:
                connection.silent_until = 0.0
                connection.output = deque((0.0, data) for _, data in connection.output)

    def connection_of(self, partition: int) -> int:
        """Return on which connection a batch of the partition came last."""
        with self.lock:
            return next(number for number, partitions in reversed(self.arrived) if partition in partitions)

    def unread(self, node: int) -> int:
        """Return how many bytes a node has got and not read."""
        with self.lock:
            return sum(_readable(each.socket) for each in self._connections if each.node == node)

    def forget(self) -> None:
        """Drop the state of all producers, as when it expires."""
        with self.lock:
            for partition in self.partitions:
                partition.forget()

    def restart(self) -> None:
        """Act like a broker that restarts: close connections, and remember only the last batch of each producer."""
        self.drop_connections()
        self._restart()

    def _restart(self) -> None:
        with self.lock:
            for partition in self.partitions:
                partition.restart()

    def _leaders(self, partitions: int) -> list[int]:
        return [1 + index % len(self.nodes) for index in range(partitions)]

    # ------------------------------------------------------------ sockets

    def _listen(self, node: int, port: int) -> socket.socket:
        listener = socket.create_server((self.host, port))
        listener.setblocking(False)
        if self._receive_buffer_bytes:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        self._selector.register(listener, selectors.EVENT_READ, node)
        return listener

    def _run(self) -> None:
        while not self._ended.is_set():
            for key, _ in self._selector.select(0.005):
                if isinstance(key.data, int):
                    self._accept(key.fileobj, key.data)
                else:
                    self._read(key.data)
            with self.lock:
                for connection in list(self._connections):
                    self._write(connection)

    def _accept(self, listener: socket.socket, node: int) -> None:
        sock, _ = listener.accept()
        if node in self.down or self.refuses_more:
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(sock, node)
        self.accepted += 1
        self._connections.append(connection)
        self._selector.register(sock, selectors.EVENT_READ, connection)

    def _close(self, connection: _Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def _read(self, connection: _Connection) -> None:
        if connection.node in self.deaf:
            time.sleep(0.001)  # the selector reports it again at once
            return
        try:
            data = connection.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        if connection.node in self.mute:
            return
        connection.input += data
        while len(connection.input) >= 4:
            size = int.from_bytes(connection.input[:4], "big")
            if size > self.request_bytes_max:
                self.oversized += 1
                self._close(connection)
                return
            if len(connection.input) < 4 + size:
                return
            frame, connection.input = connection.input[4 : 4 + size], connection.input[4 + size :]
            with self.lock:
                if not self._handle(connection, frame):
                    self._put(connection, None)
                    connection.input = b""
                    return

    def _write(self, connection: _Connection) -> None:
        while connection.output and connection.output[0][0] <= time.monotonic():
            data = connection.output[0][1]
            if data is None:
                self._close(connection)
                return
            try:
                sent = connection.socket.send(data)
            except BlockingIOError:
                return
            except OSError:
                self._close(connection)
                return
            if sent < len(data):
                connection.output[0] = (0.0, data[sent:])
                return
            connection.output.popleft()

    def _put(self, connection: _Connection, data: bytes | None, delay: float = 0.0) -> None:
        connection.silent_until = max(connection.silent_until, time.monotonic() + delay)
        connection.output.append((connection.silent_until, data))

    # ------------------------------------------------------------ requests

    def _handle(self, connection: _Connection, frame: bytes) -> bool:
        """Answer a request. Return False if the connection must be closed: later requests on it are not handled."""
        request = self.decode(connection.node, frame)
        if request is None:
            return False
        if connection.hung:
            return True
        self.requests.append((time.monotonic(), request.node, request.api))
        self.versions.setdefault(request.api, set()).add(request.version)
        if request.api == PRODUCE:
            return self._produce(connection, request)
        try:
            response = self.respond(request)
        except ConnectionEndedError:
            return False
        if response is not None:
            self._put(connection, response, self.producer_id_delay if request.api == INIT_PRODUCER_ID else 0.0)
        if request.api == API_VERSIONS and self.close_after_versions:
            self.close_after_versions -= 1
            self._put(connection, None)
        return True

    def respond(self, request: Request) -> bytes | None:
        response = super().respond(request)
        is_cut = self.coordinators is not None and request.api in self.coordinators.cut_short
        if request.api == METADATA and self.cut_short:
            self.cut_short -= 1
            is_cut = True
        return (len(response) - 7).to_bytes(4, "big") + response[4:-3] if is_cut and response else response

    def answer(self, request: Request) -> dict[str, Any] | bytes | None:
        body = request.body
        if request.api == API_VERSIONS:
            self.software.add((body["client_software_name"], body["client_software_version"]))
            if self.nonsense:
                return b"\0\0\0\x09" + request.correlation_id.to_bytes(4, "big") + b"\0\0\0\0\x7f"
        elif request.api == DESCRIBE_PRODUCERS:
            self.states_asked += sum(len(topic["partition_indexes"]) for topic in body["topics"])
        answer = super().answer(request)
        if request.api == METADATA:
            self.metadata_requests += 1
            self.without_leader -= self.without_leader > 0
            self.unaware -= self.unaware > 0 and any(item["name"] == self.topic for item in body["topics"] or ())
            if self.lies is not None and isinstance(answer, dict):
                self.lies(answer)
        return answer

    def view_of(self, node: int, name: str) -> View | None:
        view = super().view_of(node, name)
        if view is None or self.unaware:
            return None
        topic_id, leaders = view
        if self.without_leader:
            leaders = [(-1, epoch) for _, epoch in leaders]
        return topic_id if self.has_ids else None, leaders

    def error_of(self, request: Request) -> int:
        if request.api == API_VERSIONS:
            return UNSUPPORTED_VERSION if self.close_after_versions and self.refuse_versions else 0
        return {INIT_PRODUCER_ID: self.producer_id_code, DESCRIBE_PRODUCERS: self.states_code}.get(request.api, 0)

    def throttle_of(self, request: Request) -> int:
        return self._fault.throttle_ms if request.api == PRODUCE else self.throttles.pop(request.api, 0)

    # ------------------------------------------------------------ batches

    def take_fault(self, node: int) -> Fault:
        """Return the fault of the Produce request that a node has got."""
        if self.faults and self.faults[0].node in (None, node):
            return self.faults.popleft()
        return Fault()

    def _produce(self, connection: _Connection, request: Request) -> bool:
        self.produce_requests += 1
        self.acks_seen.append(request.body["acks"])
        items = [item for topic in request.body["topic_data"] for item in topic["partition_data"]]
        attributes = [int.from_bytes(item["records"][ATTRIBUTES_AT : ATTRIBUTES_AT + 2], "big") for item in items]
        self.produced.append((request.body["transactional_id"], attributes))
        partitions = [item["index"] for item in items]
        if connection not in self.carriers:
            self.carriers.append(connection)
        beside = [carrier for carrier in self.carriers if carrier.node == connection.node]
        self.arrived.append((beside.index(connection), partitions))
        took = max(random.uniform(*self.every), *(self.slow.get(partition, 0.0) for partition in partitions))
        if connection.node not in self.nodes:
            self.complaints.append("a batch came to the bootstrap address")
        fault = self._fault = self.take_fault(connection.node)
        if took:  # a connection's requests are handled one after another
            fault.delay = fault.delay or max(connection.silent_until - time.monotonic(), 0.0) + took
        if fault.move:
            self.move_leaders()
        if fault.forget:
            self.forget()
        if fault.restart:
            self._restart()
        if fault.close == "before":
            return False
        response = self.respond(request)
        if fault.close == "after":
            return False
        connection.hung = bool(fault.hang)
        if fault.hang or self.swallow or response is None:
            return True
        if fault.partial is not None:
            self._put(connection, response[: fault.partial], fault.delay)
            self._put(connection, None, 0.01)
            return False
        size = fault.split or len(response)
        for at in range(0, len(response), size):
            self._put(connection, response[at : at + size], fault.delay if at == 0 else 0.001)
        return True

    def fault_of(self, request: Request, partition: Partition, batch: LogBatch) -> tuple[int, bool] | None:
        fault = self._fault
        results = self.results.get(batch.values[0]) if self.results else None
        if results:
            return results.popleft()
        if batch.producer_id in self.refused_ids:
            return self.refused_ids[batch.producer_id], False
        concerned = fault.concerns(partition.index)
        if fault.code in SEQUENCE_ERRORS and partition.duplicate_of(batch) >= 0:
            concerned = False  # a broker checks for duplicates first, so it sends no sequence error for one
        if self.lose or fault.hang == "lost":
            return fault.code, False
        return (fault.code, fault.after_append) if concerned and fault.code else None

    def names_bad_records(self) -> bool:
        return self.names_records

    def omits(self, request: Request, index: int) -> bool:
        return self._fault.omit and self._fault.concerns(index)

    def appended(self, partition: Partition, batch: LogBatch, acks: int) -> None:
        super().appended(partition, batch, acks)
        if not self._keep_values:
            batch.encoded = b""


def _readable(sock: socket.socket) -> int:
    with contextlib.suppress(BlockingIOError):
        return len(sock.recv(1 << 20, socket.MSG_PEEK))
    return 0
