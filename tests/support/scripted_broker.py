"""Simulates a Kafka cluster with faults on command: listeners and logs in one thread, without Kafka.

Its logs are those of kfake. Records that it must refuse are found before the sequence of their batch is
checked, as in LogValidator. A request that a correct producer never sends (a bad CRC, two
batches of a partition in one request) is added to `complaints`, which tests expect to be empty.
"""

import selectors
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kfake.coordinator import FIND_COORDINATOR, READS, WRITES
from kfake.partition_log import (
    ATTRIBUTES_AT,
    CORRUPT_MESSAGE,
    INVALID_PRODUCER_EPOCH,
    OUT_OF_ORDER,
    ChecksumError,
    LogBatch,
    Partition,
    parse,
    wrong_timestamp,
)
from kfake.scripted_coordinators import ScriptedCoordinators

from cyproducer.protocol.codec import decode_request, encode_response
from cyproducer.protocol.messages import REQUESTS
from cyproducer.record.twin import Record
from support.scripted_telemetry import CLOSE, MALFORMED, ScriptedTelemetry

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID, DESCRIBE_PRODUCERS = 0, 3, 18, 22, 61
TELEMETRY = 71, 72
TOPIC_IDS_FROM = 13  # version of Produce
UNKNOWN_TOPIC_ID = 100
UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER, REQUEST_TIMED_OUT = 3, 5, 6, 7
NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 19, 20
MESSAGE_TOO_LARGE, INVALID_RECORD = 10, 87
SEQUENCE_ERRORS = (OUT_OF_ORDER, INVALID_PRODUCER_EPOCH, 59)


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


class _Connection:
    def __init__(self, sock: socket.socket, node: int) -> None:
        self.socket = sock
        self.node = node
        self.input = b""
        self.output: deque[tuple[float, bytes | None]] = deque()  # (not before, bytes); None: close
        self.silent_until = 0.0
        self.hung = False


class ScriptedBroker:
    """`nodes` brokers (ids from 1) with one topic; use as a context manager.

    `bootstrap_apart`: the bootstrap address belongs to none of them and serves only metadata.

    `faults` is a queue: a Produce request takes the first one if it is for its node. Public attributes may be read
    under `lock` while the broker runs, and without it afterwards. `produce_version`, `metadata_version`: the highest
    versions that it supports. `host`, `port`: the address on which it listens (port 0: any free port).
    """

    find_coordinator_version = REQUESTS[FIND_COORDINATOR].last
    coordinators: ScriptedCoordinators | None = None  # None: ApiVersions does not contain its requests
    telemetry: ScriptedTelemetry | None = None  # None: ApiVersions does not contain its requests
    _asked_node = 0  # the node of the request that is being answered

    # fmt: off
    def __init__(
        self, topic: str = "t", partitions: int = 3, nodes: int = 2, *, producer_epoch: int = 0,
        keep_values: bool = True, bootstrap_apart: bool = False, produce_version: int = 13,
        describes_producers: bool = True, metadata_version: int = 13,
        host: str = "127.0.0.1", port: int = 0,
    ) -> None:
        self.host = host
        self.topic = topic
        self.complaints: list[str] = []
        self._nodes_count = nodes
        self.partitions = self._new_partitions(partitions)
        self.faults: deque[Fault] = deque()
        self.produce_requests = 0
        self.metadata_requests = 0
        self.requests: list[tuple[float, int, int]] = []  # monotonic time, node, API
        self.versions: dict[int, set[int]] = {} # the versions that were used, by API
        self.throttles: dict[int, int] = {}     # ms in the next response, by API; for Produce see Fault
        self.acks_seen: list[int] = []
        self.produced: list[tuple[str | None, list[int]]] = []  # transactional id, attributes of the batches
        self.producer_epoch = producer_epoch
        self.producer_ids = 0           # how many were requested
        self.producer_id_code = 0       # error code of InitProducerId
        self.producer_id_delay = 0.0    # seconds before its response, and so before later ones of the connection
        self.without_leader = 0         # so many metadata responses name no leader
        self.topic_id = uuid.uuid4()
        self.has_ids = True             # metadata responses contain the topic id
        self.deleted = False            # the topic is deleted
        self.unaware = 0                # so many metadata responses come from a broker that does not know the topic
        self.cut_short = 0              # so many metadata responses lack their last bytes
        self.lies: Callable[[dict], None] | None = None  # changes the body of a metadata response
        self.nonsense = False           # the response to ApiVersions is invalid
        self.close_after_versions = 0   # so many ApiVersions responses are the last ones of their connections
        self.refuse_versions = False    # these responses have the error UNSUPPORTED_VERSION
        self.apis_left_out: set[int] = set()    # APIs that ApiVersions does not contain
        self.software: set[tuple[str, str]] = set() # names and versions of the clients
        self.accepted = 0               # connections
        self.down: set[int] = set()     # nodes that close every connection at once
        self.mute: set[int] = set()     # nodes that accept connections and ignore all requests
        self.refuses: Callable[[Record], bool] | None = None    # for which records a batch is refused
        self.refusal = INVALID_RECORD   # the error code of such a batch
        self.names_records = True       # record_errors contains the refused records
        self.says: str | None = None    # the message of an error of a partition
        #: From Produce v10 on, NOT_LEADER names this (leader, leader epoch) of the partition; None: nothing.
        self.names_leader: Callable[[Partition], tuple[int, int]] | None = None
        self.refused = 0                # how many batches
        self.swallow = False            # Produce requests get no response
        self.lose = False               # their batches are not appended
        #: By the value of a batch's first record: its next results, (code, whether it is appended).
        self.answers: dict[bytes, deque[tuple[int, bool]]] = {}
        self.largest = 1 << 30          # bytes of a batch
        self.request_bytes_max = 1 << 30    # socket.request.max.bytes: a larger request closes its connection
        self.oversized = 0              # how many such requests came
        self.expects_corruption = False # a wrong CRC gets an error response but is not a complaint
        self._produce_version = produce_version
        self._metadata_version = metadata_version
        self._describes_producers = describes_producers
        self.states_code = 0            # error code of DescribeProducers
        self.states_asked = 0           # partitions in DescribeProducers requests
        self.lock = threading.RLock()
        self._keep_values = keep_values
        self._selector = selectors.DefaultSelector()
        self._connections: list[_Connection] = []
        self._listeners = [self._listen(node, port) for node in range(1, nodes + 1 + bootstrap_apart)]
        self.ports = [listener.getsockname()[1] for listener in self._listeners[:nodes]]
        self._bootstrap_port = self._listeners[-1 if bootstrap_apart else 0].getsockname()[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-broker", daemon=True)

    # fmt: on

    def _new_partitions(self, count: int, forgot: bool = False) -> list[Partition]:
        leaders = [1 + index % self._nodes_count for index in range(count)]
        return [Partition(leader, self.complaints, leader_epoch=1, forgot=forgot) for leader in leaders]

    def _listen(self, node: int, port: int) -> socket.socket:
        listener = socket.create_server((self.host, port))
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, node)
        return listener

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

    def values(self, partition: int) -> list[bytes]:
        """Return the values of the log, in order."""
        with self.lock:
            return self.partitions[partition].values

    def move_leaders(self) -> None:
        """Make the next node the leader of each partition."""
        with self.lock:
            for partition in self.partitions:
                partition.leader = 1 + partition.leader % len(self.ports)
                partition.leader_epoch += 1

    def grow(self, partitions: int) -> None:
        """Add partitions to the topic until it has `partitions`."""
        with self.lock:
            self.partitions += self._new_partitions(partitions)[len(self.partitions) :]

    def delete(self) -> None:
        """Delete the topic, with its records and the state of their producers."""
        with self.lock:
            self.deleted = True
            self.partitions = []

    def create(self, partitions: int) -> None:
        """Create the topic again."""
        with self.lock:
            self.partitions = self._new_partitions(partitions, forgot=True)
            self.topic_id = uuid.uuid4()
            self.deleted = False

    def drop_connections(self) -> None:
        """Close all connections without responses to their requests."""
        with self.lock:
            for connection in self._connections:
                connection.output.clear()
                connection.output.append((0.0, None))

    # ------------------------------------------------------------ sockets

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
        if node in self.down:
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
                if not self._answer(connection, frame):
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

    def _answer(self, connection: _Connection, frame: bytes) -> bool:
        """Answer a request. Return False if the connection must be closed: later requests on it are not handled."""
        try:
            api, version, correlation_id, _, body = decode_request(frame)
        except Exception as error:
            self.complaints.append(f"undecodable request: {error}")
            self._put(connection, None)
            return False
        if connection.hung:
            return True
        self._asked_node = connection.node
        self.requests.append((time.monotonic(), connection.node, api))
        self.versions.setdefault(api, set()).add(version)
        if api == PRODUCE:
            return self._produce(connection, version, correlation_id, body)
        if api == API_VERSIONS and self.nonsense:
            self._put(connection, b"\0\0\0\x09" + correlation_id.to_bytes(4, "big") + b"\0\0\0\0\x7f")
            return True
        if api == API_VERSIONS and self.close_after_versions:
            self.close_after_versions -= 1
            answer = self._versions(body)
            if self.refuse_versions:
                version, answer["error_code"] = 0, 35
            self._put(connection, encode_response(api, version, correlation_id, answer))
            self._put(connection, None)
            return True
        if api in TELEMETRY:
            return self._telemetry(connection, api, version, correlation_id, body)
        answer = {
            METADATA: self._metadata,
            API_VERSIONS: self._versions,
            INIT_PRODUCER_ID: self._producer_id,
            DESCRIBE_PRODUCERS: self._producers,
        }.get(api)
        if answer is None or body.get("transactional_id") is not None:
            assert self.coordinators is not None
            found = self.coordinators.answer(api, version, connection.node, body, lambda _: (self.host, 0))
        else:
            found = answer(body)
        filled = {**found, "throttle_time_ms": self.throttles.pop(api, 0)}
        response = encode_response(api, version, correlation_id, filled)
        cut = self.coordinators is not None and api in self.coordinators.cut_short
        if api == METADATA and self.cut_short:
            self.cut_short -= 1
            cut = True
        if cut:
            response = (len(response) - 7).to_bytes(4, "big") + response[4:-3]
        self._put(connection, response, self.producer_id_delay if api == INIT_PRODUCER_ID else 0.0)
        return True

    def _telemetry(self, connection: _Connection, api: int, version: int, correlation_id: int, body: dict) -> bool:
        assert self.telemetry is not None
        answer = self.telemetry.answer(api, connection.node, body)
        if answer == CLOSE:
            self._put(connection, None)
            return False
        if answer == MALFORMED:
            self._put(connection, b"\0\0\0\x05" + correlation_id.to_bytes(4, "big") + b"\0")
        elif isinstance(answer, dict):
            answer["throttle_time_ms"] = self.throttles.pop(api, 0)
            self._put(connection, encode_response(api, version, correlation_id, answer))
        return True

    def _metadata(self, body: dict) -> dict:
        self.metadata_requests += 1
        leaderless = self.without_leader > 0
        self.without_leader -= leaderless
        missing = self.deleted or self.unaware > 0
        self.unaware -= self.unaware > 0 and any(item["name"] == self.topic for item in body["topics"] or ())
        partitions = [
            {
                "error_code": LEADER_NOT_AVAILABLE if leaderless else 0,
                "partition_index": index,
                "leader_id": -1 if leaderless else partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replica_nodes": [],
                "isr_nodes": [],
            }
            for index, partition in enumerate(self.partitions)
        ]
        topics = [
            {"error_code": 0, "name": item["name"], "partitions": partitions, **self._id()}
            if item["name"] == self.topic and not missing
            else {"error_code": UNKNOWN_TOPIC, "name": item["name"], "partitions": []}
            for item in body["topics"] or ()
        ]
        answer = {"brokers": self._nodes(), "cluster_id": "scripted", "controller_id": 1, "topics": topics}
        if self.lies is not None:
            self.lies(answer)
        return answer

    def _nodes(self) -> list[dict]:
        return [{"node_id": 1 + index, "host": self.host, "port": port} for index, port in enumerate(self.ports)]

    def _id(self) -> dict:
        return {"topic_id": self.topic_id} if self.has_ids else {}

    def _hint(self, index: int, code: int) -> dict:
        if self.names_leader is None or code != NOT_LEADER:
            return {}
        leader, epoch = self.names_leader(self.partitions[index])
        return {"current_leader": {"leader_id": leader, "leader_epoch": epoch}}

    def _versions(self, body: dict) -> dict:
        self.software.add((body["client_software_name"], body["client_software_version"]))
        highest = {PRODUCE: self._produce_version, METADATA: self._metadata_version}
        highest[FIND_COORDINATOR] = self.find_coordinator_version
        keys = [
            {"api_key": key, "min_version": m.first, "max_version": highest.get(key, m.last)}
            for key, m in sorted(REQUESTS.items())
            if key not in self.apis_left_out and (key != DESCRIBE_PRODUCERS or self._describes_producers)
            if key not in (*READS, *WRITES) or self.coordinators is not None
            if key not in TELEMETRY or (self.telemetry is not None and self.telemetry.supports(self._asked_node))
        ]
        features = {} if self.coordinators is None else self.coordinators.features()
        return {"error_code": 0, "api_keys": keys, **features}

    def _producer_id(self, body: dict) -> dict:
        self.producer_ids += 1
        return {
            "throttle_time_ms": 0,
            "error_code": self.producer_id_code,
            "producer_id": 1000 + self.producer_ids,
            "producer_epoch": self.producer_epoch,
        }

    def _producers(self, body: dict) -> dict:
        topics = []
        for topic in body["topics"]:
            answers = []
            for index in topic["partition_indexes"]:
                self.states_asked += 1
                known = topic["name"] == self.topic and index < len(self.partitions)
                producers = self.partitions[index].producers if known and not self.states_code else {}
                active = [
                    {"producer_id": pid, "producer_epoch": producer.epoch, "coordinator_epoch": -1}
                    for pid, producer in producers.items()
                ]
                error = self.states_code if known else UNKNOWN_TOPIC
                answers.append({"partition_index": index, "error_code": error, "active_producers": active})
            topics.append({"name": topic["name"], "partitions": answers})
        return {"throttle_time_ms": 0, "topics": topics}

    def _take_fault(self, node: int) -> Fault:
        if self.faults and self.faults[0].node in (None, node):
            return self.faults.popleft()
        return Fault()

    def forget(self) -> None:
        """Drop the state of all producers, as when it expires."""
        with self.lock:
            for partition in self.partitions:
                partition.forget()

    def restart(self) -> None:
        """Act like a broker that restarts: close connections, and remember only the last batch of each producer."""
        self.drop_connections()
        with self.lock:
            self._restart()

    def _restart(self) -> None:
        for partition in self.partitions:
            partition.restart()

    def _produce(self, connection: _Connection, version: int, correlation_id: int, body: dict) -> bool:
        self.produce_requests += 1
        self.acks_seen.append(body["acks"])
        items = [item for topic in body["topic_data"] for item in topic["partition_data"]]
        attributes = [int.from_bytes(item["records"][ATTRIBUTES_AT : ATTRIBUTES_AT + 2], "big") for item in items]
        self.produced.append((body["transactional_id"], attributes))
        if connection.node > len(self.ports):
            self.complaints.append("a batch came to the bootstrap address")
        fault = self._take_fault(connection.node)
        if fault.move:
            self.move_leaders()
        if fault.forget:
            self.forget()
        if fault.restart:
            self._restart()
        if fault.close == "before":
            self._put(connection, None)
            return False
        topics = []
        seen = set()
        for topic in body["topic_data"]:
            if version >= TOPIC_IDS_FROM:
                topic["name"] = self.topic if topic["topic_id"] == self.topic_id and not self.deleted else ""
            answers = []
            for item in topic["partition_data"]:
                if (topic["name"], item["index"]) in seen:
                    self.complaints.append(f"partition {item['index']} is twice in a request")
                seen.add((topic["name"], item["index"]))
                code, offset = self._result_of(connection.node, topic["name"], item, fault)
                if not (fault.omit and _concerns(fault, item["index"])):
                    answers.append(
                        {
                            "index": item["index"],
                            "error_code": code,
                            "base_offset": offset,
                            "record_errors": self._record_errors(item["records"]) if code == self.refusal else [],
                            "error_message": self.says if code else None,
                            **self._hint(item["index"], code),
                        }
                    )
            topics.append({"name": topic["name"], "topic_id": topic["topic_id"], "partition_responses": answers})
        if fault.close == "after":
            self._put(connection, None)
            return False
        if fault.hang:
            connection.hung = True
            return True
        if self.swallow:
            return True
        if body["acks"] == 0:
            return True
        body = {"responses": topics, "throttle_time_ms": fault.throttle_ms}
        if self.names_leader is not None:
            body["node_endpoints"] = self._nodes()
        response = encode_response(PRODUCE, version, correlation_id, body)
        if fault.partial is not None:
            self._put(connection, response[: fault.partial], fault.delay)
            self._put(connection, None, 0.01)
            return False
        if fault.split:
            for at in range(0, len(response), fault.split):
                self._put(connection, response[at : at + fault.split], fault.delay if at == 0 else 0.001)
        else:
            self._put(connection, response, fault.delay)
        return True

    def _bad_records(self, batch: LogBatch) -> list[int]:
        return [index for index, record in enumerate(batch.records) if self.refuses(record)] if self.refuses else []

    def _record_errors(self, records: bytes) -> list[dict]:
        bad = self._bad_records(parse(records)) if self.names_records else []
        return [
            {"batch_index": index, "batch_index_error_message": f"record {index} is one that this topic refuses"}
            for index in bad
        ]

    def _result_of(self, node: int, topic: str, item: dict, fault: Fault) -> tuple[int, int]:
        if not topic:
            return UNKNOWN_TOPIC_ID, -1
        if topic != self.topic or not 0 <= item["index"] < len(self.partitions):
            return UNKNOWN_TOPIC, -1
        partition = self.partitions[item["index"]]
        if partition.leader != node:
            return NOT_LEADER, -1
        try:
            batch = parse(item["records"])
        except ValueError as error:
            if not (self.expects_corruption and isinstance(error, ChecksumError)):
                self.complaints.append(str(error))
            return CORRUPT_MESSAGE, -1
        if answers := self.answers.get(batch.values[0]) if self.answers else None:
            answer, appended = answers.popleft()
            if appended:
                partition.append(batch)
            return answer, -1
        concerned = _concerns(fault, item["index"])
        if fault.code in SEQUENCE_ERRORS and partition.duplicate_of(batch) >= 0:
            concerned = False  # a broker checks for duplicates first, so it sends no sequence error for one
        if self.lose or fault.hang == "lost" or (concerned and fault.code and not fault.after_append):
            return fault.code, -1
        if len(item["records"]) > self.largest or self._bad_records(batch):
            self.refused += 1
            return MESSAGE_TOO_LARGE if len(item["records"]) > self.largest else self.refusal, -1
        self.complaints += wrong_timestamp(item["records"], batch) if self._keep_values else []
        if not self._keep_values:
            batch.encoded = b""
        code, offset = partition.append(batch)
        return (fault.code, -1) if concerned and fault.code else (code, offset)


def _concerns(fault: Fault, partition: int) -> bool:
    return fault.partitions is None or partition in fault.partitions
