"""Answers the requests of a producer as a Kafka cluster does, with the faults of the present weather."""

import random
import socket
import uuid
from collections import Counter, deque

from kfake.partition_log import CORRUPT_MESSAGE, LogBatch, Partition, PartitionLog, parse

from cyproducer.protocol.codec import decode_request, encode_response
from cyproducer.protocol.messages import REQUESTS
from simulation.coordinators import SimulatedCoordinators
from simulation.events import Events
from simulation.weather import (
    AFTER_APPEND,
    ANY,
    BEFORE_APPEND,
    LIKELY,
    RETRIABLE,
    TRUE_OF_TRANSACTIONS,
    Weather,
    happens,
)

PRODUCE, METADATA, API_VERSIONS, INIT_PRODUCER_ID, DESCRIBE_PRODUCERS = 0, 3, 18, 22, 61
#: APIs of these brokers that no schedule needs. With one more, the answer is longer, and all schedules are others.
NOT_OFFERED = (32, 71, 72)
UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_LEADER = 3, 5, 6
MESSAGE_TOO_LARGE, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND = 10, 19, 20
UNSUPPORTED_VERSION, INVALID_RECORD, UNKNOWN_TOPIC_ID = 35, 87, 100
PRODUCE_WITH_TOPIC_IDS = 13  # the first version
HOST = "127.0.0.1"
POISON = b"!"  # a value with this end is refused


class Topic:
    """A topic as the controller sees it. A topic that is created again has another id."""

    def __init__(self, name: str, topic_id: uuid.UUID, partitions: list[Partition]) -> None:
        self.name = name
        self.id = topic_id
        self.partitions = partitions
        self.exists = True


class Node:
    """One broker. `up`: it accepts connections. `reachable`: attempts to connect are answered at all."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.port = 9000 + number
        self.up = True
        self.reachable = True
        # What its metadata responses say: the id of each topic, the leader of each partition and its epoch.
        self.view: dict[str, tuple[uuid.UUID, list[tuple[int, int]]] | None] = {}
        self.newest: dict[str, int] = {}  # number of the change that the view of each topic has


class Connection:
    """One connection of the sender to a node. Requests are handled one after the other, as by a broker."""

    def __init__(self, sock: socket.socket, node: Node) -> None:
        self.socket = sock
        self.node = node
        self.input = bytearray()
        self.requests: deque[bytes] = deque()
        self.handling = False
        self.hung = False  # requests do not arrive
        self.mute = False  # answers do not arrive
        self.ended_by_client = False
        self.closed = False


class Cluster:
    """The nodes and their topics. `connect` makes the sender's end of a connection; `look` reads what it has sent."""

    def __init__(self, chance: random.Random, events: Events, nodes: int, weather: Weather) -> None:
        self.chance = chance
        self.events = events
        self.weather = weather
        self.nodes = {number: Node(number) for number in range(1, nodes + 1)}
        self.topics: dict[str, Topic] = {}
        self.former: list[tuple[str, int, PartitionLog]] = []  # logs of deleted topics
        self.connections: list[Connection] = []
        self.complaints: list[str] = []
        self.met: Counter[str] = Counter()  # how often each fault and each rule was met
        self.producer_ids = 0
        self.produce_version = REQUESTS[PRODUCE].last
        self.metadata_version = REQUESTS[METADATA].last
        self.topic_ids = 0
        self.changes = 0  # of topics
        self.describes_producers = True
        self.largest = 1 << 30
        self.coordinators = SimulatedCoordinators(self, None)
        self._waits_for_followers = False
        self._asked_api = -1  # of the request that is being answered

    # ------------------------------------------------------------ the state of the cluster

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, or create it again."""
        numbers = sorted(self.nodes)
        forgot = name in self.topics  # a topic that is created again has none of the producers of the former one
        made = [Partition(self.chance.choice(numbers), self.complaints, forgot=forgot) for _ in range(partitions)]
        self.topic_ids += 1
        self.topics[name] = Topic(name, uuid.UUID(int=self.topic_ids), made)
        self.spread(name)

    def delete(self, name: str) -> None:
        """Delete a topic with its records and the state of their producers."""
        topic = self.topics[name]
        topic.exists = False
        self.former += [(name, index, partition) for index, partition in enumerate(topic.partitions)]
        self.spread(name)

    def grow(self, name: str) -> None:
        """Give a topic one more partition."""
        partitions = self.topics[name].partitions
        partitions.append(Partition(self.chance.choice(sorted(self.nodes)), self.complaints))
        self.spread(name)

    def spread(self, name: str) -> None:
        """Let each node learn of the present state of a topic, some of them later."""
        topic = self.topics[name]
        view = (topic.id, [(p.leader, p.leader_epoch) for p in topic.partitions]) if topic.exists else None

        self.changes += 1
        number = self.changes

        def learn(node: Node) -> None:
            if number > node.newest.get(name, 0):
                node.view[name], node.newest[name] = view, number

        for node in self.nodes.values():
            self.events.after(self.chance.choice((0, 0, 5, 100)) if self.events.now else 0, lambda n=node: learn(n))

    def move(self, name: str, index: int, leader: int) -> None:
        """Give a partition another leader. What only the old one had is lost, or all have it."""
        partition = self.topics[name].partitions[index]
        if self.chance.random() < 0.5:
            partition.commit()
        elif partition.end > partition.high_watermark:
            self.met["truncated"] += 1
        partition.truncate(self.chance.choice((1, 2, 5, 5)))
        partition.leader = leader
        partition.leader_epoch += 1
        self.spread(name)

    def stop(self, node: Node) -> None:
        """Stop a node: its connections end, and its partitions get other leaders if there is another node."""
        node.up = False
        for connection in [c for c in self.connections if c.node is node]:
            self.close(connection)
        others = [other.number for other in self.nodes.values() if other.up]
        for topic in self.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader == node.number and others:
                    self.move(topic.name, index, self.chance.choice(others))
        self.coordinators.move(node)

    def start(self, node: Node) -> None:
        """Start a node. A leader that has restarted remembers less of its producers."""
        node.up = node.reachable = True
        for topic in self.topics.values():
            for partition in topic.partitions:
                if partition.leader == node.number:
                    partition.truncate(self.chance.choice((1, 1, 3)))

    # ------------------------------------------------------------ connections

    def connect(self, address: tuple, send_buffer: int, receive_buffer: int) -> socket.socket:
        """Return the sender's end of a new connection. Raise OSError if the node is down."""
        node = self.nodes[address[1][1] - 9000]
        if not node.up:
            self.met["refused connection"] += 1
            raise ConnectionRefusedError(111, "Connection refused")
        if any(other.node is node and not other.ended_by_client for other in self.connections):
            self.met["second connection"] += 1  # for partitions that may be slow
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        theirs.setblocking(False)
        connection = Connection(ours, node)
        if not node.reachable or happens(self.chance, self.weather.slow):
            self._fill(theirs)
            if node.reachable:
                self.events.after(self.chance.random() * self.weather.slow_for, lambda: self._accept(connection))
            else:
                self.met["unreachable"] += 1
                connection.hung = True
                self.connections.append(connection)
        else:
            self.connections.append(connection)
        return theirs

    @staticmethod
    def _fill(theirs: socket.socket) -> None:
        """Make the sender's end unwritable, so that it does not look connected."""
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        try:
            while True:
                theirs.send(b"\0" * 512)
        except BlockingIOError:
            pass

    def _accept(self, connection: Connection) -> None:
        try:
            while connection.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            pass
        if not connection.node.up:
            connection.socket.close()
            return
        self.connections.append(connection)

    def close(self, connection: Connection) -> None:
        """End a connection from the broker's side, without an answer to what it has sent."""
        if not connection.closed:
            connection.closed = True
            connection.socket.close()
            self.connections.remove(connection)

    def lose_sender(self) -> None:
        """Act as when the sender's process has ended: its connections are reset, some bytes never arrive."""
        for connection in list(self.connections):
            if not connection.hung and self.chance.random() < 0.5:
                self._read(connection)
            connection.ended_by_client = True
            if not connection.requests or self.chance.random() < 0.5:
                self.close(connection)
            else:
                self.met["handled after the sender's end"] += 1

    def look(self) -> None:
        """Read what the sender has written to all connections."""
        for connection in list(self.connections):
            if not connection.closed and not connection.ended_by_client:
                self._read(connection)

    def _read(self, connection: Connection) -> None:
        while True:
            try:
                data = connection.socket.recv(1 << 18)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                connection.ended_by_client = True
                break
            connection.input += data
        self._take_frames(connection)
        if connection.ended_by_client and not connection.requests and not connection.handling:
            self.close(connection)

    def _take_frames(self, connection: Connection) -> None:
        if connection.hung:
            connection.input.clear()
            return
        while len(connection.input) >= 4:
            size = int.from_bytes(connection.input[:4], "big")
            if len(connection.input) < 4 + size:
                break
            connection.requests.append(bytes(connection.input[4 : 4 + size]))
            del connection.input[: 4 + size]
        self._next(connection)

    def _next(self, connection: Connection) -> None:
        """Handle the connection's next request a little later, unless one is being handled."""
        if connection.handling or connection.closed:
            return
        if not connection.requests:
            if connection.ended_by_client:
                self.close(connection)
            return
        connection.handling = True
        self.events.after(self._delay(), lambda: self._handle(connection))

    def _delay(self) -> float:
        return self.weather.latency / 2 + self.chance.random() * self.weather.jitter / 2

    def _handle(self, connection: Connection) -> None:
        if connection.closed:
            return
        frame = connection.requests.popleft()
        weather = self.weather
        if happens(self.chance, weather.close_before):
            self.met["closed before"] += 1
            self.close(connection)
            return
        if happens(self.chance, weather.lose):
            self.met["lost"] += 1
            self._hang(connection)
            return
        response = self._answer(connection, frame)
        if response is None:
            self._done(connection)
            return
        if connection.ended_by_client:
            self._done(connection)
            return
        if happens(self.chance, weather.close_after):
            self.met["closed after"] += 1
            self.close(connection)
        elif connection.mute or happens(self.chance, weather.hang):
            self.met["unanswered"] += 1
            connection.mute = True
            self._done(connection)
        else:
            delay = self._delay()
            if happens(self.chance, weather.slow):
                self.met["slow"] += 1
                delay += self.chance.random() * weather.slow_for
            if self._waits_for_followers:
                self.met["slow partition"] += 1
                delay += weather.slow_partition_for
            self.events.after(delay, lambda: self._respond(connection, response))

    def _hang(self, connection: Connection) -> None:
        connection.hung = True
        connection.requests.clear()
        connection.handling = False
        if connection.ended_by_client:
            self.close(connection)

    def _done(self, connection: Connection) -> None:
        connection.handling = False
        self._next(connection)

    def _respond(self, connection: Connection, response: bytes) -> None:
        if connection.closed:
            return
        if happens(self.chance, self.weather.cut):
            self.met["cut"] += 1
            self._send(connection, response[: self.chance.randrange(len(response))])
            if not connection.closed:
                self.close(connection)
        elif happens(self.chance, self.weather.split):
            self.met["split"] += 1
            at = self.chance.randrange(len(response))
            self._send(connection, response[:at])
            self.events.after(self.chance.random() * 20, lambda: self._rest(connection, response[at:]))
        else:
            self._rest(connection, response)

    def _rest(self, connection: Connection, response: bytes) -> None:
        if not connection.closed:
            self._send(connection, response)
        if not connection.closed:
            self._done(connection)

    def _send(self, connection: Connection, data: bytes) -> None:
        try:
            connection.socket.send(data)
        except OSError:
            self.close(connection)

    # ------------------------------------------------------------ requests

    def _answer(self, connection: Connection, frame: bytes) -> bytes | None:
        """Return the response; None if the request gets none."""
        try:
            api, version, correlation_id, _, body = decode_request(frame)
        except Exception as error:
            self.complaints.append(f"undecodable request: {error}")
            return None
        self.met[f"api {api} v{version}"] += 1
        self._asked_api = api
        node = connection.node
        self._waits_for_followers = api == PRODUCE and any(
            item["index"] == self.weather.slow_partition
            for topic in body["topic_data"]
            for item in topic["partition_data"]
        )
        if api == PRODUCE:
            answer = self._produce(node, body, version)
            if body["acks"] == 0:
                return None
        elif api == METADATA:
            answer = self._metadata(node, body)
        elif self.coordinators.handles(api, body):
            answer = self.coordinators.answer(api, version, node.number, body, self._address_of)
        elif api == INIT_PRODUCER_ID:
            answer = self._producer_id()
        elif api == DESCRIBE_PRODUCERS:
            answer = self._producers(node, body)
        else:
            answer = self._versions()
            if answer["error_code"] == UNSUPPORTED_VERSION:
                version = 0
        answer["throttle_time_ms"] = (
            self.chance.choice((1, 20, 300)) if happens(self.chance, self.weather.throttle) else 0
        )
        return encode_response(api, version, correlation_id, answer)

    def _address_of(self, number: int) -> tuple[str, int]:
        return HOST, self.nodes[number].port

    def error(self, codes: tuple[int, ...], cures: tuple[int, ...]) -> int:
        """Return an error that a request meets; 0 most of the time."""
        if not happens(self.chance, self.weather.error):
            return 0
        code = self.chance.choice(codes if happens(self.chance, self.weather.definite) else cures)
        self.met[f"error {code} of api {self._asked_api}"] += 1
        return code

    def _versions(self) -> dict:
        highest = {PRODUCE: self.produce_version, METADATA: self.metadata_version}
        keys = [
            {"api_key": key, "min_version": m.first, "max_version": highest.get(key, m.last)}
            for key, m in sorted(REQUESTS.items())
            if key not in NOT_OFFERED and (key != DESCRIBE_PRODUCERS or self.describes_producers)
        ]
        return {"error_code": self.error(ANY, ANY), "api_keys": keys, **self.coordinators.features()}

    def _metadata(self, node: Node, body: dict) -> dict:
        topics = []
        for item in body["topics"] or ():
            view = node.view.get(item["name"])
            code = self.error(ANY, RETRIABLE)
            if view is None or code:
                topics.append({"error_code": code or UNKNOWN_TOPIC, "name": item["name"], "partitions": []})
                continue
            topic_id, leaders = view
            partitions = []
            for index, (leader, epoch) in enumerate(leaders):
                code = self.error(ANY, RETRIABLE)
                away = code or not self.nodes[leader].up
                partitions.append(
                    {
                        "error_code": code or (LEADER_NOT_AVAILABLE if away else 0),
                        "partition_index": index,
                        "leader_id": -1 if away else leader,
                        "leader_epoch": epoch,
                        "replica_nodes": [],
                        "isr_nodes": [],
                    }
                )
            topics.append({"error_code": 0, "name": item["name"], "topic_id": topic_id, "partitions": partitions})
        brokers = [{"node_id": n.number, "host": HOST, "port": n.port} for n in self.nodes.values() if n.up]
        return {"brokers": brokers, "cluster_id": "simulated", "controller_id": 1, "topics": topics}

    def _producer_id(self) -> dict:
        self.producer_ids += 1
        code = self.error(ANY, RETRIABLE)
        return {
            "error_code": code,
            "producer_id": -1 if code else 1000 + self.producer_ids,
            "producer_epoch": -1 if code else 0,
        }

    def _leads(self, node: Node, topic: Topic | None, index: int) -> Partition | int:
        """Return the partition if the node leads it, else an error code."""
        if topic is None or not topic.exists or not 0 <= index < len(topic.partitions):
            return UNKNOWN_TOPIC
        partition = topic.partitions[index]
        return partition if partition.leader == node.number else NOT_LEADER

    def _producers(self, node: Node, body: dict) -> dict:
        topics = []
        for topic in body["topics"]:
            answers = []
            for index in topic["partition_indexes"]:
                found = self._leads(node, self.topics.get(topic["name"]), index)
                code = found if isinstance(found, int) else self.error(ANY, ANY)
                active = (
                    []
                    if code or isinstance(found, int)
                    else [
                        {"producer_id": pid, "producer_epoch": known.epoch, "coordinator_epoch": -1}
                        for pid, known in found.producers.items()
                    ]
                )
                answers.append({"partition_index": index, "error_code": code, "active_producers": active})
            topics.append({"name": topic["name"], "partitions": answers})
        return {"topics": topics}

    def _produce(self, node: Node, body: dict, version: int) -> dict:
        topics = []
        seen = set()
        with_ids = version >= PRODUCE_WITH_TOPIC_IDS
        for asked in body["topic_data"]:
            answers = []
            if with_ids:
                topic = next((t for t in self.topics.values() if t.id == asked["topic_id"] and t.exists), None)
            else:
                topic = self.topics.get(asked["name"])
            for item in asked["partition_data"]:
                place = asked["topic_id"], asked["name"], item["index"]
                if place in seen:
                    self.complaints.append(f"partition {item['index']} is twice in a request")
                seen.add(place)
                if topic is None and with_ids:
                    self.met["unknown topic id"] += 1
                    answers.append({"index": item["index"], "error_code": UNKNOWN_TOPIC_ID, "base_offset": -1})
                else:
                    answers.append(self._result(node, topic, item, body, version))
            topics.append({"name": asked["name"], "topic_id": asked["topic_id"], "partition_responses": answers})
        return {"responses": topics}

    def _result(self, node: Node, topic: Topic | None, item: dict, body: dict, version: int) -> dict:
        errors: list[int] = []
        found = self._leads(node, topic, item["index"])
        offset = -1
        if isinstance(found, int):
            code = found
        else:
            batch, code = self._parsed(item["records"])
            if batch is not None and topic is not None:
                code = self._check_transaction(found, batch, body, version, (topic.name, item["index"]))
                if not code:
                    code, offset = self._append(found, batch, body["acks"], len(item["records"]))
                if code == INVALID_RECORD and batch.values:
                    errors = [at for at, value in enumerate(batch.values) if value.endswith(POISON)]
        named = [{"batch_index": at, "batch_index_error_message": "refused by the topic"} for at in errors]
        return {
            "index": item["index"],
            "error_code": code,
            "base_offset": -1 if code else offset,
            "record_errors": named if self.chance.random() < 0.7 else [],
            "error_message": "refused" if code else None,
        }

    def _parsed(self, records: bytes) -> tuple[LogBatch | None, int]:
        try:
            return parse(records), 0
        except ValueError as error:
            self.complaints.append(str(error))
            return None, CORRUPT_MESSAGE

    def _check_transaction(
        self, partition: Partition, batch: LogBatch, body: dict, version: int, key: tuple[str, int]
    ) -> int:
        """Return the error code of a batch that belongs to no open transaction, or to another one."""
        name = body["transactional_id"]
        if batch.transactional != (name is not None):
            self.complaints.append(f"a batch with transactional {batch.transactional} in a request of {name}")
        if not batch.transactional or partition.is_in_transaction(batch):
            return 0
        code = self.coordinators.transactions.verify(name, batch.producer_id, batch.epoch, version, key)
        self.met[f"refused by the coordinator {code}"] += code != 0
        return code

    def _append(self, partition: Partition, batch: LogBatch, acks: int, size: int) -> tuple[int, int]:
        code = self.error(BEFORE_APPEND, LIKELY)
        if batch.transactional and code in TRUE_OF_TRANSACTIONS:
            code = 0
        if size > self.largest:
            code = MESSAGE_TOO_LARGE
        elif any(value.endswith(POISON) for value in batch.values):
            code = INVALID_RECORD
        elif acks < 0 and partition.short_of_replicas:
            code = NOT_ENOUGH_REPLICAS if self.chance.random() < 0.6 else NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if code and (acks >= 0 or code not in AFTER_APPEND or self.chance.random() < 0.3):
            return code, -1
        refused, offset = partition.append(batch)
        if refused:
            self.met[f"refused {refused}"] += 1
            return refused, -1
        if code:
            self.met["appended, then an error"] += 1
            return code, -1
        if acks < 0 or self.chance.random() < 0.8:
            partition.commit()
        return 0, offset
