"""Keeps a connection to each broker, chooses the one that gets a request, and finds brokers that do not answer.

There is one connection per broker, and further ones while requests wait for each other
(cyproducer/sender/engine/pool.pyx). The bootstrap connection is kept if it leads to a broker of the metadata, and
closed otherwise.

A broker that hangs answers nothing, and its connection does not end. After some seconds the controller gives its
partitions to other brokers, and the metadata does not have it any more. Kafka's producer notices this after
request_timeout_ms. Here the loop reports a broker that is silent (Silent), and another one is asked which brokers the
cluster has, until the broker answers or is not one of them. See docs/decisions.md#silent-brokers.

A load balancer or a firewall may have forgotten an idle connection, and drops what is sent on it. The kernel tells that
nothing has been acknowledged since then. See docs/decisions.md#dropped-connections.
"""

import math
import random
from collections.abc import Callable, Container, Iterator
from typing import Any

from cyproducer.config.table import PAUSE_MIN_MS
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.sender.cluster.broker import Backoffs, Broker
from cyproducer.sender.cluster.cluster_metadata import ClusterMetadata, metadata_request
from cyproducer.sender.cluster.connection import Connection, NoAnswerError, Setup, State
from cyproducer.sender.cluster.finalized_features import FinalizedFeatures
from cyproducer.sender.cluster.report import Report
from cyproducer.sender.engine.events import (
    Answered,
    Closed,
    Connected,
    EventHandlers,
    Handshake,
    HasWork,
    RequestsWait,
    Silent,
)
from cyproducer.sender.engine.native import Loop, Nodes
from cyproducer.sender.system.tasks import NOTHING_DUE_MS, Signal, Tasks

__all__ = ["Connections"]

IDLE_MIN_MS = 1000  # a connection that was just made for a request is not closed as idle
LOOKUP_WAIT_MS = 1000  # after this time another bootstrap server is tried during a name look-up
BUSY_WAIT_MS = 50  # a connection that takes no request is looked at again after this time
ASK_EVERY_MS = 500  # about silent brokers
FURTHER_IDLE_MS = 10_000  # a further connection to a broker is closed after this idle time
LOST = (
    "nothing that is sent reaches it, after the connection was idle; if a load balancer or a firewall drops idle "
    "connections, set connections_max_idle_ms to less than its limit"
)


class Connections:
    """The connections to the brokers of a cluster, and to its bootstrap servers.

    changed  set after each event: tasks that wait for a connection look again
    users    tasks that need the brokers of the cluster, also if no topic is wanted
    """

    def __init__(
        self,
        loop: Loop,
        nodes: Nodes,
        tasks: Tasks,
        setup: Setup,
        cluster: ClusterMetadata,
        features: FinalizedFeatures,
        report: Report,
    ) -> None:
        settings = setup.settings
        self.changed = Signal()
        self._users = 0
        self._added: list[int] = []
        self._loop = loop
        self._nodes = nodes
        self._tasks = tasks
        self._setup = setup
        self._cluster = cluster
        self._features = features
        self._report = report
        self._log = setup.log
        self._backoffs = Backoffs.of(settings)
        max_idle_ms = int(settings["connections_max_idle_ms"])
        # Negative: never closed as idle, as in Kafka.
        self._max_idle_ms = math.inf if max_idle_ms < 0 else max(max_idle_ms, IDLE_MIN_MS)
        self._rack = settings["client_rack"] if settings["partitioner_rack_aware"] else None
        self._by_id: dict[int, Connection] = {}
        self._by_node: dict[int, Connection] = {}
        self._further: dict[int, list[Connection]] = {}  # by the node of the first one
        self._wanted: dict[int, Connection] = {}  # by node: the loop has something to send
        self._silent: dict[int, Connection] = {}  # by node
        self._ask_at_ms = 0

    def __iter__(self) -> Iterator[Connection]:
        """Yield the first connection of each broker and bootstrap address."""
        return iter(self._by_id.values())

    def add_user(self) -> None:
        """Count work that needs brokers: meanwhile the brokers of the cluster are kept up to date."""
        self._users += 1

    def remove_user(self) -> None:
        """Undo add_user()."""
        self._users -= 1

    @property
    def has_users(self) -> bool:
        """Whether there is such work."""
        return self._users > 0

    def get(self, broker_id: int) -> Connection | None:
        """Return the first connection of a broker; None if it has none yet."""
        return self._by_id.get(broker_id)

    def node_of(self, broker_id: int) -> int:
        """Return the node of a broker's first connection; -1 if it has none yet."""
        # a broker id of -1 means none; as a key it is the first bootstrap address
        connection = self._by_id.get(broker_id) if broker_id >= 0 else None
        return -1 if connection is None else connection.node

    @property
    def all_unreachable(self) -> bool:
        """Whether none of the brokers that the metadata has could be reached."""
        known = self._known()
        return bool(known) and all(connection.broker.unreachable for connection in known)

    @property
    def is_refused(self) -> bool:
        """Whether no broker can be used, and authentication has failed with one of them."""
        known = self._known()
        return self.all_unreachable and any(connection.broker.auth_failed for connection in known)

    def error_of_brokers(self) -> str:
        """Return the error of a broker of the cluster that cannot be reached; "" if there is none."""
        for connection in self:
            broker = connection.broker
            if self._cluster.knows(broker.id) and broker.is_away and broker.last_error:
                return f"broker {broker.name}: {broker.last_error}"
        return ""

    def describe(self) -> list[dict[str, Any]]:
        """Return a row for each broker, for the status."""
        rows = []
        for connection in self:
            state, in_flight = self._loop.connection_state(connection.node)
            broker = connection.broker
            rows.append(
                {
                    "broker_id": broker.id,
                    "host": broker.host,
                    "port": broker.port,
                    "state": state,
                    "in_flight": in_flight,
                }
            )
        return rows

    def take_added(self) -> list[int]:
        """Return the ids of the brokers that have got a connection since the last call."""
        added, self._added = self._added, []
        return added

    def close_for(self, node: int, error: Exception) -> None:
        """Close a connection because a message of its broker could not be handled."""
        self._with(node, lambda connection: connection.close_for(error))

    def name_of(self, node: int) -> str:
        """Return the name of a broker as the log shows it."""
        return self._by_node[node].broker.name if node in self._by_node else f"of node {node}"

    def _known(self) -> list[Connection]:
        return [self._by_id[broker_id] for broker_id in self._cluster.brokers if broker_id in self._by_id]

    # ------------------------------------------------------------ brokers of the metadata

    def update(self) -> None:
        """Add the brokers that the metadata has now, and use their present addresses."""
        for broker_id, (host, port, rack) in self._cluster.brokers.items():
            connection = self._by_id.get(broker_id)
            if connection is None:
                connection = self._new(Broker(broker_id, host, port, self._backoffs), self._loop.add_node(broker_id))
                self._add(connection)
            elif (connection.broker.host, connection.broker.port) != (host, port):
                connection.drop()
                connection.broker.set_address(host, port)
                for further in self._further.get(connection.node, ()):
                    further.drop()
            if self._rack is not None:
                self._loop.set_in_rack(connection.node, rack == self._rack)

    def _new(self, broker: Broker, node: int) -> Connection:
        connection = Connection(
            broker,
            node,
            self._loop,
            self._nodes,
            self._tasks,
            self._setup,
            self._cluster,
            self._features,
            self._report,
        )
        self._by_node[node] = connection
        return connection

    def _add(self, connection: Connection) -> None:
        self._by_id[connection.broker.id] = connection
        self._added.append(connection.broker.id)

    def keep_bootstrap(self, connection: Connection) -> None:
        """Make a bootstrap connection that of the broker to which it leads, or close it. Close the other ones."""
        broker = connection.broker
        for broker_id, (host, port, _) in self._cluster.brokers.items():
            if broker_id not in self._by_id and broker.leads_to(host, port):
                del self._by_id[broker.id]
                self._loop.set_node_id(connection.node, broker_id)
                broker.become(broker_id, host, port)
                self._add(connection)
                break
        else:
            connection.drop()
        for other in list(self):
            if other.broker.id < 0 and other is not connection and not other.is_closed:
                other.drop()

    def drop_all(self, text: str) -> None:
        """Close all connections, without an error, and forget the addresses that were looked up."""
        for connection in list(self._by_node.values()):
            connection.broker.forget_addresses()
            if not connection.is_closed:
                connection.drop(text)

    def count_as_reachable(self) -> None:
        """Let all brokers count as reachable: the bootstrap servers are asked."""
        for connection in self:
            connection.broker.set_reachable()

    # ------------------------------------------------------------ the choice (leastLoadedNode in Kafka's NetworkClient)
    #
    # Only brokers of the current metadata are candidates. A connected broker with the fewest requests in flight is
    # best; if several have the same number, one of them is drawn. If none can take a request, a connection that is
    # being made is waited for. Otherwise the broker is connected to whose last attempt is the longest ago.

    def _candidates(self) -> list[Connection]:
        known = self._known()
        random.shuffle(known)
        return known

    def knows(self, api: ApiKey) -> bool:
        """Return whether a connected broker supports the API."""
        return any(each.version_of(api) is not None for each in self._known())

    def ready(self, api: ApiKey, without: Container[int] = ()) -> tuple[Connection | None, Connection | None]:
        """Return the least loaded broker that can take a request, and the least loaded one that has no room for it.

        `without`: the ids of brokers that are passed over.
        """
        free: list[Connection] = []
        busy: list[Connection] = []
        for each in self._candidates():
            if each.version_of(api) is None or each.broker.id in without:
                continue
            if each.is_ready and not each.throttled_ms:
                (free if each.can_send_request else busy).append(each)
        return _least(free), _least(busy)

    def least_loaded(self, api: ApiKey = ApiKey.METADATA) -> Connection | None:
        """Return the broker with the fewest requests in flight among those that can take one; None if none can.

        A broker that has no room for a further request is returned only if no other one can be waited for.
        """
        free, busy = self.ready(api)
        if free or not busy or self.any_other():
            return free
        return busy

    def any_other(self) -> bool:
        """Return whether another broker is being connected to, or can be connected to now."""
        now_ms = self._tasks.now_ms
        for each in self._candidates():
            if each.is_setting_up:
                return True
            if each.state is State.RESOLVING and each.lookup_ms(now_ms) < LOOKUP_WAIT_MS:
                return True
            if each.state is State.CLOSED and not each.pause_ms(now_ms):
                return True
        return False

    def connect_any(self) -> int:
        """Start a connection to some broker, as none can take a request. Return in how many ms to look again."""
        self.update()
        due_ms, connection = self.to_connect()
        return due_ms if connection is None else min(due_ms, connection.open(self._tasks.now_ms))

    def to_connect(self) -> tuple[int, Connection | None]:
        """Return in how many ms to look again, and the broker to connect to now; None: wait for a connection."""
        now_ms, due_ms = self._tasks.now_ms, NOTHING_DUE_MS
        closed, resolving, connecting = [], [], False
        for each in self._candidates():
            if each.state is State.CLOSED:
                closed.append(each)
            elif each.state is State.RESOLVING:
                resolving.append(each)
            elif each.state is State.READY:
                due_ms = min(due_ms, each.throttled_ms or BUSY_WAIT_MS)
            else:
                connecting = True  # its next event comes soon
        if connecting:
            return due_ms, None
        waits_ms = [LOOKUP_WAIT_MS - each.lookup_ms(now_ms) for each in resolving]
        if waits_ms and max(waits_ms) > 0:
            return min(due_ms, max(waits_ms)), None
        if not closed:
            return due_ms, None
        best = min(closed, key=lambda each: (each.pause_ms(now_ms), each.broker.attempted_ms))
        return min(due_ms, LOOKUP_WAIT_MS), best

    # ------------------------------------------------------------ events

    def add_handlers(self, handlers: EventHandlers) -> None:
        """Say what is done for each event of the loop that is about a connection."""
        handlers.add(Connected, lambda event, now_ms: self._with(event.node, Connection.on_connected))
        handlers.add(Handshake, lambda event, now_ms: self._with(event.node, Connection.on_handshake))
        handlers.add(Closed, self._on_closed)
        handlers.add(Answered, self._on_answer)
        handlers.add(HasWork, self._on_work)
        handlers.add(Silent, self._on_silent)
        handlers.add(RequestsWait, self._on_requests_wait)

    def _with(self, node: int, work: Callable[[Connection], object]) -> None:
        if node in self._by_node:
            work(self._by_node[node])

    def _on_closed(self, event: Closed, now_ms: int) -> None:
        self._silent.pop(event.node, None)
        self._with(event.node, lambda connection: connection.on_closed(event.reason, now_ms))

    def _on_answer(self, event: Answered, now_ms: int) -> None:
        self._with(event.node, lambda connection: connection.on_answer(event.correlation_id, event.payload))

    def _on_work(self, event: HasWork, now_ms: int) -> None:
        if event.node in self._by_node:
            self._wanted[event.node] = self._by_node[event.node]

    def _on_silent(self, event: Silent, now_ms: int) -> None:
        if event.node in self._by_node:
            self._silent[event.node] = self._by_node[event.node]

    def resync(self, now_ms: int) -> None:
        """Make up for lost events, from the present states of the connections."""
        for connection in list(self._by_node.values()):
            connection.resync(now_ms)

    # ------------------------------------------------------------ scheduled work

    def tick(self, now_ms: int) -> int:
        """Do what is due. Return in how many ms something is due again."""
        for first in self:
            first.report_throttling(now_ms)
            self._close_idle(first, self._max_idle_ms)
            for further in self._further.get(first.node, ()):
                self._close_idle(further, min(self._max_idle_ms, FURTHER_IDLE_MS))
        due_ms = self._check_silent(now_ms)
        for node, connection in list(self._wanted.items()):
            if not connection.is_closed:
                del self._wanted[node]
            else:
                due_ms = min(due_ms, self._open_for_batches(connection, now_ms))
        return due_ms

    def _close_idle(self, connection: Connection, max_idle_ms: float) -> None:
        if connection.takes_requests and self._loop.idle_ms(connection.node) > max_idle_ms:
            self._log.info("broker %s: closing the idle connection", connection.broker.name)
            connection.drop()

    def _open_for_batches(self, connection: Connection, now_ms: int) -> int:
        """Open it if the broker still has batches and is one of the cluster. Return in how many ms to look again."""
        if not self._loop.wants_connection(connection.node):
            del self._wanted[connection.node]
            return NOTHING_DUE_MS
        if connection.broker.id in self._cluster.brokers:
            return connection.open(now_ms)
        at_ms = self._cluster.next_request_at(now_ms)
        if at_ms is None:
            return NOTHING_DUE_MS  # the response to the request in flight may name another leader
        self._cluster.request_update()
        return max(at_ms, now_ms + PAUSE_MIN_MS) - now_ms

    # ------------------------------------------------------------ silent brokers

    def _check_silent(self, now_ms: int) -> int:
        """Close lost connections, and ask about the silent brokers. Return in how many ms something is due again."""
        for lost in [each for each in self._silent.values() if self._nodes.is_lost(each.node)]:
            lost.close(LOST)
        self._silent = {node: each for node, each in self._silent.items() if self._nodes.is_silent(node)}
        if not self._silent:
            return NOTHING_DUE_MS
        if now_ms < self._ask_at_ms:
            return self._ask_at_ms - now_ms
        self._ask_at_ms = now_ms + ASK_EVERY_MS
        # A bootstrap address has no id that the cluster could name.
        ids = {each.broker.id for each in self._silent.values() if each.broker.id >= 0}
        if not ids:
            return ASK_EVERY_MS
        free, busy = self.ready(ApiKey.METADATA, without=ids)
        connection = free or busy
        if connection is None:
            return min(ASK_EVERY_MS, self.connect_any())
        self._tasks.start(self._ask_about_silent(connection))
        return ASK_EVERY_MS

    async def _ask_about_silent(self, connection: Connection) -> None:
        """Close the connections to silent brokers that are not in the cluster any more."""
        # An empty list of topics: the answer has the brokers only, and no topic is created.
        try:
            answer = await connection.ask_or_close(ApiKey.METADATA, metadata_request([]), exact=False)
        except NoAnswerError:
            return
        present = {broker["node_id"] for broker in answer["brokers"]}
        if answer["error_code"] or not present:
            return
        for silent in [each for each in self._silent.values() if each.broker.id >= 0]:
            if silent.broker.id not in present and self._nodes.is_silent(silent.node):
                silent.close("the broker does not answer, and is not one of the cluster any more")

    # ------------------------------------------------------------ further connections

    def for_call(self, first: Connection) -> Connection:
        """Return that connection to the broker with this first connection for which a request waits least."""
        return self._by_node.get(self._nodes.for_call(first.node), first)

    def _on_requests_wait(self, event: RequestsWait, now_ms: int) -> None:
        """Open a further connection to a broker, to the address of the first one."""
        first = self._by_node.get(event.node)
        if first is None or not first.takes_requests or first.broker.peer is None or first.throttled_ms:
            return
        all_further = self._further.setdefault(first.node, [])
        further = next((each for each in all_further if each.is_closed), None)
        if further is None:
            use = f" (connection {len(all_further) + 2})"
            broker = Broker(first.broker.id, first.broker.host, first.broker.port, self._backoffs, use)
            further = self._new(broker, self._nodes.add_further(first.node))
            all_further.append(further)
        if further.broker.retry_at_ms <= now_ms:
            further.broker.follow(first.broker)
            further.open(now_ms)


def _least(connections: list[Connection]) -> Connection | None:
    return min(connections, key=lambda each: each.in_flight) if connections else None
