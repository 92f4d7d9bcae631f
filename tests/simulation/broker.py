"""Drives a cluster of stand-in brokers on the virtual clock, with the faults of the present weather."""

import itertools
import random
import socket
import uuid
from collections import deque

from kfake.cluster import Cluster, Node, Request, View
from kfake.codes import API_VERSIONS, DESCRIBE_CONFIGS, DESCRIBE_PRODUCERS, INIT_PRODUCER_ID, PRODUCE
from kfake.partition_log import LogBatch, Partition, PartitionLog

from cyproducer.codes import NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND
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

#: Errors that a response can have, and those of them that a retry cures; of other APIs: ANY and RETRIABLE.
CODES = dict.fromkeys((API_VERSIONS, DESCRIBE_PRODUCERS), (ANY, ANY))
HOST = "127.0.0.1"
POISON = b"!"  # a value with this end is refused
PRODUCER_ID_AT = 43  # in a record batch
NO_PRODUCER_ID = b"\xff" * 8


class SimulatedNode(Node):
    """A broker that learns of changes by and by. `reachable`: attempts to connect are answered at all."""

    def __init__(self, number: int) -> None:
        super().__init__(number, HOST, 9000 + number)
        self.reachable = True
        # What its metadata responses say: the id of each topic, the leader of each partition and its epoch.
        self.view: dict[str, View | None] = {}
        self.newest: dict[str, int] = {}  # number of the change that the view of each topic has


class Connection:
    """One connection of the sender to a node. Requests are handled one after the other, as by a broker."""

    def __init__(self, sock: socket.socket, node: SimulatedNode) -> None:
        self.socket = sock
        self.node = node
        self.input = bytearray()
        self.requests: deque[bytes] = deque()
        self.unanswered: deque[frozenset[tuple]] = deque()  # the lanes that each request without an answer has
        self.handling = False
        self.hung = False  # requests do not arrive
        self.mute = False  # answers do not arrive
        self.ended_by_client = False
        self.closed = False


class SimulatedCluster(Cluster):
    """The nodes and their topics. `connect` makes the sender's end of a connection; `look` reads what it has sent."""

    nodes: dict[int, SimulatedNode]
    coordinators: SimulatedCoordinators

    def __init__(self, chance: random.Random, events: Events, nodes: int, weather: Weather) -> None:
        super().__init__()
        self.chance = chance
        self.events = events
        self.weather = weather
        self.nodes = {number: SimulatedNode(number) for number in range(1, nodes + 1)}
        self.former: list[tuple[str, int, PartitionLog]] = []  # logs of deleted topics
        self.connections: list[Connection] = []
        self.topic_ids = 0
        self.changes = 0  # of topics
        self.apis_left_out = {DESCRIBE_CONFIGS}  # no schedule needs it
        self.refuses = lambda record: record.value is not None and record.value.endswith(POISON)
        self.says = "refused"
        self.coordinators = SimulatedCoordinators(self, None)
        self.late_starts: set[str] = set()  # ids that a request fenced which was handled after its connection had ended
        self._waits_for_followers = False
        self._asked_api = -1  # of the request that is being answered
        self._carriers: dict[tuple, Connection] = {}  # on which connection a lane came last

    # ------------------------------------------------------------ the state of the cluster

    def create(self, name: str, partitions: int) -> None:
        """Create a topic, or create it again."""
        numbers = sorted(self.nodes)
        leaders = [self.chance.choice(numbers) for _ in range(partitions)]
        self.topic_ids += 1
        self.add_topic(name, uuid.UUID(int=self.topic_ids), leaders)
        self.spread(name)

    def restore_topics(self) -> None:
        """Create the deleted topics again, and let every partition have its replicas."""
        for topic in list(self.topics.values()):
            for partition in topic.partitions:
                partition.short_of_replicas = False
            if not topic.exists:
                self.create(topic.name, len(topic.partitions))

    def delete(self, name: str) -> None:
        """Delete a topic with its records and the state of their producers."""
        topic = self.topics[name]
        topic.exists = False
        self.former += [(name, index, partition) for index, partition in enumerate(topic.partitions)]
        self.spread(name)

    def grow(self, name: str) -> None:
        """Give a topic one more partition."""
        self.add_partition(name, self.chance.choice(sorted(self.nodes)))
        self.spread(name)

    def spread(self, name: str) -> None:
        """Let each node learn of the present state of a topic, some of them later."""
        view = super().view_of(0, name)
        self.changes += 1
        number = self.changes

        def learn(node: SimulatedNode) -> None:
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

    def stop(self, node: SimulatedNode) -> None:
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

    def start(self, node: SimulatedNode) -> None:
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
            self.met["further connection"] += 1
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
        for node in self.nodes.values():
            beside = [each for each in self.connections if each.node is node and not each.ended_by_client]
            for connection, other in itertools.combinations(beside, 2):
                if frozenset().union(*connection.unanswered) & frozenset().union(*other.unanswered):
                    self.complaints.append("a lane has requests in flight on two connections to a node")

    def _lanes_of(self, connection: Connection, frame: bytes) -> frozenset[tuple]:
        """Return the lanes of idempotent producers in a request. Note those that have changed their connection."""
        if int.from_bytes(frame[:2], "big") != PRODUCE:
            return frozenset()
        request = self.decode(connection.node.number, frame)
        if request is None:
            return frozenset()
        found = set()
        for topic in request.body["topic_data"]:
            for item in topic["partition_data"]:
                # With the epoch: two front-ends may have one transactional id, of which one is fenced.
                producer = item["records"][PRODUCER_ID_AT : PRODUCER_ID_AT + 10]
                if producer[:8] != NO_PRODUCER_ID:
                    found.add((topic.get("name"), topic.get("topic_id"), item["index"], producer))
        for lane in found:
            before = self._carriers.get(lane, connection)
            if before is not connection and before.node is connection.node and before in self.connections:
                self.met["a lane by another connection"] += not before.ended_by_client
            self._carriers[lane] = connection
        return frozenset(found)

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
            frame = bytes(connection.input[4 : 4 + size])
            connection.requests.append(frame)
            connection.unanswered.append(self._lanes_of(connection, frame))
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
            connection.unanswered.popleft()
            self._done(connection)

    def _send(self, connection: Connection, data: bytes) -> None:
        try:
            connection.socket.send(data)
        except OSError:
            self.close(connection)

    # ------------------------------------------------------------ requests

    def _answer(self, connection: Connection, frame: bytes) -> bytes | None:
        """Return the response; None if the request gets none."""
        request = self.decode(connection.node.number, frame)
        if request is None:
            return None
        self.met[f"api {request.api} v{request.version}"] += 1
        self._asked_api = request.api
        if request.api == INIT_PRODUCER_ID and connection.ended_by_client and request.body["producer_id"] < 0:
            self.late_starts.add(request.body["transactional_id"])
        self._waits_for_followers = request.api == PRODUCE and any(
            item["index"] == self.weather.slow_partition
            for topic in request.body["topic_data"]
            for item in topic["partition_data"]
        )
        return self.respond(request)

    def error(self, codes: tuple[int, ...], cures: tuple[int, ...]) -> int:
        """Return an error that a request meets; 0 most of the time."""
        if not happens(self.chance, self.weather.error):
            return 0
        code = self.chance.choice(codes if happens(self.chance, self.weather.definite) else cures)
        self.met[f"error {code} of api {self._asked_api}"] += 1
        return code

    def view_of(self, node: int, name: str) -> View | None:
        return self.nodes[node].view.get(name)

    def error_of(self, request: Request) -> int:
        return self.error(*CODES.get(request.api, (ANY, RETRIABLE)))

    def fault_of(self, request: Request, partition: Partition, batch: LogBatch) -> tuple[int, bool] | None:
        code = self.error(BEFORE_APPEND, LIKELY)
        if batch.transactional and code in TRUE_OF_TRANSACTIONS:
            code = 0
        waits = request.body["acks"] < 0
        if waits and partition.short_of_replicas:
            code = NOT_ENOUGH_REPLICAS if self.chance.random() < 0.6 else NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return (code, waits and code in AFTER_APPEND and self.chance.random() >= 0.3) if code else None

    def throttle_of(self, request: Request) -> int:
        return self.chance.choice((1, 20, 300)) if happens(self.chance, self.weather.throttle) else 0

    def names_bad_records(self) -> bool:
        return self.chance.random() < 0.7

    def appended(self, partition: Partition, batch: LogBatch, acks: int) -> None:
        if acks < 0 or self.chance.random() < 0.8:
            partition.commit()
