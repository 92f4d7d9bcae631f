"""A Kafka cluster of pretence, for faults on command: listeners and logs in one thread, without Kafka.

It keeps what it "appended" by Kafka's rules for idempotent producers (ProducerStateManager): per partition and
producer id the epoch, the next sequence and the last five batches. A duplicate of those is answered with its
offset, a gap with OUT_OF_ORDER_SEQUENCE_NUMBER, an old epoch with INVALID_PRODUCER_EPOCH. Records that it is told
to refuse are found before their batch's sequence is looked at, as LogValidator does. What no honest producer
sends (a bad CRC, two batches of a partition in one request) is a complaint; tests want none.
"""

import gzip
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from cyproducer.protocol.codec import decode_request, encode_response
from cyproducer.protocol.messages import REQUESTS
from cyproducer.record.crc32c import crc32c
from cyproducer.record.twin import Record, decode_records

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID = 0, 3, 18, 22
CORRUPT_MESSAGE, UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER, REQUEST_TIMED_OUT = 2, 3, 5, 6, 7
NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, OUT_OF_ORDER, INVALID_EPOCH = 19, 20, 45, 47
MESSAGE_TOO_LARGE, INVALID_RECORD = 10, 87
SEQUENCE_ERRORS = (OUT_OF_ORDER, INVALID_EPOCH, 59)
HEADER = struct.Struct(">qiibIhiqqqhii")
GZIP = 1  # in a batch's attributes
REMEMBERED = 5  # batches of a producer and partition
SEQUENCES = 2**31


@dataclass(slots=True)
class Fault:
    """What happens to one Produce request. It is taken by the first that comes to `node` (None: to any).

    code: the answer for `partitions` (None: all), with nothing appended; after_append: appended all the same.
    close: "before" or "after" the append, without an answer. partial: so many bytes of the answer, then the
    end. split: the answer in pieces of so many bytes. delay: seconds before the answer; of later requests of
    the connection as well. hang: appended if "appended", never answered. omit: the answer leaves them out.
    move: leadership of everything goes to the next node first. forget: the state of all producers is lost.
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
    node: int | None = None


@dataclass(slots=True)
class Producer:
    """What a partition remembers of a producer id."""

    epoch: int
    next_sequence: int = 0
    recent: deque = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # (first sequence, count, offset)


@dataclass(slots=True)
class Partition:
    """The log of one partition, its leader and its producers."""

    leader: int = 1
    leader_epoch: int = 1
    values: list[bytes] = field(default_factory=list)
    batches: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # pid, epoch, sequence, count, offset
    producers: dict[int, Producer] = field(default_factory=dict)
    end: int = 0
    forgot: bool = False


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

    `bootstrap_apart`: the bootstrap address is that of none of them and serves metadata alone.

    `faults` is a queue: a Produce request takes the first that fits. Everything public may be read while it
    runs under `lock`, and after the end without. `produce_version`: the highest that it speaks.
    """

    def __init__(
        self, topic: str = "t", partitions: int = 3, nodes: int = 2, *, producer_epoch: int = 0,
        keep_values: bool = True, bootstrap_apart: bool = False, produce_version: int = 12,
    ) -> None:
        self.topic = topic
        self.partitions = [Partition(leader=1 + index % nodes) for index in range(partitions)]
        self.faults: deque[Fault] = deque()
        self.complaints: list[str] = []
        self.produce_requests = 0
        self.metadata_requests = 0
        self.acks_seen: list[int] = []
        self.producer_epoch = producer_epoch
        self.producer_ids = 0
        self.without_leader = 0         # so many metadata answers name no leader
        self.cut_short = 0              # so many metadata answers lack their last bytes
        self.lies: Callable[[dict], None] | None = None  # changes the body of a metadata answer
        self.nonsense = False           # ApiVersions is answered with what is no answer
        self.close_after_versions = 0   # so many ApiVersions answers are the last bytes of their connection
        self.refuse_versions = False    # and say UNSUPPORTED_VERSION
        self.accepted = 0               # connections
        self.down: set[int] = set()     # nodes that close every connection at once
        self.mute: set[int] = set()     # nodes that take connections and read nothing
        self.refuses: Callable[[Record], bool] | None = None    # records that spoil their batch
        self.refusal = INVALID_RECORD
        self.names_records = True       # record_errors say which
        self.refused = 0                # batches
        self.largest = 1 << 30          # bytes of a batch
        self.expects_corruption = False # a wrong CRC is answered and no complaint
        self._produce_version = produce_version
        self.lock = threading.Lock()
        self._keep_values = keep_values
        self._selector = selectors.DefaultSelector()
        self._connections: list[_Connection] = []
        self._listeners = []
        for node in range(1, nodes + 1 + bootstrap_apart):
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, node)
            self._listeners.append(listener)
        self.ports = [listener.getsockname()[1] for listener in self._listeners[:nodes]]
        self._bootstrap_port = self._listeners[-1 if bootstrap_apart else 0].getsockname()[1]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-broker", daemon=True)

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self._bootstrap_port}"

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
        """Values of the log, in order."""
        with self.lock:
            return list(self.partitions[partition].values)

    def move_leaders(self) -> None:
        """Every partition's leadership goes to the next node."""
        with self.lock:
            self._move()

    def grow(self, partitions: int) -> None:
        """Partitions are added to the topic."""
        with self.lock:
            while len(self.partitions) < partitions:
                self.partitions.append(Partition(leader=1 + len(self.partitions) % len(self.ports)))

    def drop_connections(self) -> None:
        """All connections are closed with their requests unanswered."""
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
            if len(connection.input) < 4 + size:
                return
            frame, connection.input = connection.input[4:4 + size], connection.input[4 + size:]
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
        """False if the connection is to be closed: nothing that was sent after this request counts."""
        try:
            api, version, correlation_id, _, body = decode_request(frame)
        except Exception as error:
            self.complaints.append(f"undecodable request: {error}")
            self._put(connection, None)
            return False
        if connection.hung:
            return True
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
        answer = {METADATA: self._metadata, API_VERSIONS: self._versions, INIT_PRODUCER_ID: self._producer_id}[api]
        response = encode_response(api, version, correlation_id, answer(body))
        if api == METADATA and self.cut_short:
            self.cut_short -= 1
            response = (len(response) - 7).to_bytes(4, "big") + response[4:-3]
        self._put(connection, response)
        return True

    def _metadata(self, body: dict) -> dict:
        self.metadata_requests += 1
        leaderless = self.without_leader > 0
        self.without_leader -= leaderless
        partitions = [
            {
                "error_code": LEADER_NOT_AVAILABLE if leaderless else 0, "partition_index": index,
                "leader_id": -1 if leaderless else partition.leader,
                "leader_epoch": partition.leader_epoch, "replica_nodes": [], "isr_nodes": [],
            }
            for index, partition in enumerate(self.partitions)
        ]
        topics = [
            {"error_code": 0, "name": item["name"], "partitions": partitions} if item["name"] == self.topic
            else {"error_code": UNKNOWN_TOPIC, "name": item["name"], "partitions": []}
            for item in body["topics"] or ()
        ]
        brokers = [{"node_id": 1 + index, "host": "127.0.0.1", "port": port} for index, port in enumerate(self.ports)]
        answer = {"brokers": brokers, "cluster_id": "scripted", "controller_id": 1, "topics": topics}
        if self.lies is not None:
            self.lies(answer)
        return answer

    def _versions(self, body: dict) -> dict:
        highest = {PRODUCE: self._produce_version}
        keys = [
            {"api_key": key, "min_version": m.first, "max_version": highest.get(key, m.last)}
            for key, m in sorted(REQUESTS.items())
        ]
        return {"error_code": 0, "api_keys": keys}

    def _producer_id(self, body: dict) -> dict:
        self.producer_ids += 1
        return {
            "throttle_time_ms": 0, "error_code": 0, "producer_id": 1000 + self.producer_ids,
            "producer_epoch": self.producer_epoch,
        }

    def _take_fault(self, node: int) -> Fault:
        if self.faults and self.faults[0].node in (None, node):
            return self.faults.popleft()
        return Fault()

    def _move(self) -> None:
        for partition in self.partitions:
            partition.leader = 1 + partition.leader % len(self.ports)
            partition.leader_epoch += 1

    def _produce(self, connection: _Connection, version: int, correlation_id: int, body: dict) -> bool:
        self.produce_requests += 1
        self.acks_seen.append(body["acks"])
        if connection.node > len(self.ports):
            self.complaints.append("a batch came to the bootstrap address")
        fault = self._take_fault(connection.node)
        if fault.move:
            self._move()
        if fault.forget:
            for partition in self.partitions:
                partition.producers.clear()
                partition.forgot = True
        if fault.close == "before":
            self._put(connection, None)
            return False
        topics = []
        seen = set()
        for topic in body["topic_data"]:
            answers = []
            for item in topic["partition_data"]:
                if (topic["name"], item["index"]) in seen:
                    self.complaints.append(f"partition {item['index']} is twice in a request")
                seen.add((topic["name"], item["index"]))
                code, offset = self._judge(connection.node, topic["name"], item, fault)
                if not (fault.omit and _concerns(fault, item["index"])):
                    answers.append({
                        "index": item["index"], "error_code": code, "base_offset": offset,
                        "record_errors": self._record_errors(item["records"]) if code == self.refusal else [],
                    })
            topics.append({"name": topic["name"], "partition_responses": answers})
        if fault.close == "after":
            self._put(connection, None)
            return False
        if fault.hang:
            connection.hung = True
            return True
        if body["acks"] == 0:
            return True
        response = encode_response(PRODUCE, version, correlation_id, {
            "responses": topics, "throttle_time_ms": fault.throttle_ms,
        })
        if fault.partial is not None:
            self._put(connection, response[:fault.partial], fault.delay)
            self._put(connection, None, 0.01)
            return False
        if fault.split:
            for at in range(0, len(response), fault.split):
                self._put(connection, response[at:at + fault.split], fault.delay if at == 0 else 0.001)
        else:
            self._put(connection, response, fault.delay)
        return True

    def _bad_records(self, records: bytes) -> list[int]:
        if self.refuses is None:
            return []
        decoded = _decoded(records)
        return [index for index, record in enumerate(decoded) if self.refuses(record)]

    def _record_errors(self, records: bytes) -> list[dict]:
        bad = self._bad_records(records) if self.names_records else []
        return [
            {"batch_index": index, "batch_index_error_message": f"record {index} is one that this topic refuses"}
            for index in bad
        ]

    def _judge(self, node: int, topic: str, item: dict, fault: Fault) -> tuple[int, int]:
        if topic != self.topic or not 0 <= item["index"] < len(self.partitions):
            return UNKNOWN_TOPIC, -1
        partition = self.partitions[item["index"]]
        if partition.leader != node:
            return NOT_LEADER, -1
        concerned = _concerns(fault, item["index"])
        if fault.code in SEQUENCE_ERRORS and self._is_duplicate(partition, item["records"]):
            concerned = False  # a broker looks for duplicates first, and so does not lie about what it has
        if fault.hang == "lost" or (concerned and fault.code and not fault.after_append):
            return fault.code, -1
        if len(item["records"]) > self.largest or self._bad_records(item["records"]):
            self.refused += 1
            return MESSAGE_TOO_LARGE if len(item["records"]) > self.largest else self.refusal, -1
        code, offset = self._append(partition, item["records"])
        return (fault.code, -1) if concerned and fault.code else (code, offset)

    @staticmethod
    def _is_duplicate(partition: Partition, records: bytes) -> bool:
        *_, pid, epoch, sequence, count = HEADER.unpack_from(records)
        known = partition.producers.get(pid)
        return known is not None and known.epoch == epoch and any(
            (first, length) == (sequence, count) for first, length, _ in known.recent
        )

    def _append(self, partition: Partition, records: bytes) -> tuple[int, int]:
        header = HEADER.unpack_from(records)
        (_, length, _, magic, crc, attributes, last_delta, _, _, pid, epoch, sequence, count) = header
        if magic != 2 or attributes not in (0, GZIP) or length != len(records) - 12 or last_delta != count - 1:
            self.complaints.append(f"batch header {header} of {len(records)} bytes")
            return CORRUPT_MESSAGE, -1
        if crc32c(records[21:]) != crc:
            if not self.expects_corruption:
                self.complaints.append("CRC")
            return CORRUPT_MESSAGE, -1
        if pid >= 0:
            code, offset = self._sequence(partition, pid, epoch, sequence, count)
            if code or offset >= 0:
                return code, offset
        offset = partition.end
        partition.end += count
        if self._keep_values:
            partition.values.extend(record.value for record in _decoded(records))
        partition.batches.append((pid, epoch, sequence, count, offset))
        return 0, offset

    def _sequence(self, partition: Partition, pid: int, epoch: int, sequence: int, count: int) -> tuple[int, int]:
        """(error, offset of the duplicate); (0, -1): it is to be appended, and noted already."""
        known = partition.producers.get(pid)
        if known is None:
            known = partition.producers[pid] = Producer(epoch, sequence)
            if sequence and not partition.forgot:
                self.complaints.append(f"producer {pid} begins with sequence {sequence}")
        elif epoch < known.epoch:
            return INVALID_EPOCH, -1
        elif epoch > known.epoch:
            if sequence != 0:
                return OUT_OF_ORDER, -1
            known = partition.producers[pid] = Producer(epoch)
        for first, length, offset in known.recent:
            if (first, length) == (sequence, count):
                return 0, offset
        if sequence != known.next_sequence:
            return OUT_OF_ORDER, -1
        known.next_sequence = (sequence + count) % SEQUENCES
        known.recent.append((sequence, count, partition.end))
        return 0, -1


def _decoded(batch: bytes) -> list[Record]:
    header = HEADER.unpack_from(batch)
    records = gzip.decompress(batch[61:]) if header[5] == GZIP else batch[61:]
    return decode_records(records, header[-1])[1]


def _concerns(fault: Fault, partition: int) -> bool:
    return fault.partitions is None or partition in fault.partitions

