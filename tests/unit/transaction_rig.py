"""Runs Transactions on scripted coordinators, with a clock that moves only when nothing else is due."""

import logging
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kfake.coordinator import Transactions as CoordinatorTransactions
from kfake.scripted_coordinators import ScriptedCoordinators
from support.transaction_table import TRANSACTION_ABORTED, StandInRow, StandInTable

from cyproducer.host.messages import TransactionCommand
from cyproducer.protocol.codec import decode_request, decode_response, encode_request, encode_response
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import SUPPORTED
from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.broker import Backoffs, Broker
from cyproducer.sender.cluster.calls import Calls
from cyproducer.sender.cluster.connection import NoAnswerError
from cyproducer.sender.cluster.finalized_features import FinalizedFeatures
from cyproducer.sender.cluster.report import Report
from cyproducer.sender.cluster.transactions import Transactions
from cyproducer.sender.system.tasks import Reply, Signal, Tasks
from cyproducer.transaction_states import TransactionState

NODES = (1, 2, 3)
GROUP = {"group_id": "g", "generation_id": 5, "member_id": "m", "group_instance_id": None}
RECONNECT_MS = 50
RETRY_BACKOFF_MS = 100
CALL_MS = 30_000


class SenderEndedError(BaseException):
    """The sender is killed here."""


class Connection:
    """What the calls use of a connection to one of the brokers."""

    def __init__(self, brokers: "Brokers", node: int) -> None:
        self.brokers = brokers
        self.broker = Broker(node, "b", node, Backoffs(ExponentialBackoff(1, 1), ExponentialBackoff(1, 1)))
        self.versions: dict[int, int] | None = None

    @property
    def can_send_request(self) -> bool:
        return self.versions is not None

    def open(self, now_ms: int) -> int:
        broker = self.broker
        if broker.retry_at_ms > now_ms:
            return broker.retry_at_ms - now_ms
        broker.attempted_ms = now_ms
        if broker.id in self.brokers.down:
            broker.unreachable, broker.last_error = True, "Connection refused"
            broker.retry_at_ms = now_ms + RECONNECT_MS
            return RECONNECT_MS
        self.versions, broker.unreachable = dict(self.brokers.versions), False
        return 0

    @property
    def takes_requests(self) -> bool:
        return self.versions is not None

    def version_of(self, api: ApiKey) -> int | None:
        return None if self.versions is None else self.versions.get(api)

    def has_failed_since(self, since_ms: int) -> bool:
        return self.versions is None and self.broker.unreachable and self.broker.attempted_ms >= since_ms

    async def ask(
        self, api: ApiKey, body: dict[str, Any], *, version: int, limit_ms: int | None = None
    ) -> dict[str, Any]:
        reply = self.brokers.send(self.broker.id, api, version, body)
        if not await reply.wait(limit_ms):
            raise TimeoutError
        return decode_response(api, version, await reply.get())[1]


class Brokers:
    """What the calls use of Connections: three brokers, whose answers come when they are asked for."""

    def __init__(self, coordinators: ScriptedCoordinators, tasks: Tasks) -> None:
        self.coordinators = coordinators
        self.tasks = tasks
        self.features = FinalizedFeatures()
        self.features.transactions_v2 = coordinators.version == 2
        self.refreshes = 0
        self.metadata = SimpleNamespace(
            bootstrapping=False,
            last_error="",
            answers=0,
            brokers={node: ("b", node, None) for node in NODES},
            request_update=self._refresh,
        )
        self.changed = Signal()
        self.users = 0
        self.links = {node: Connection(self, node) for node in NODES}
        self.versions = {int(api): last for api, (_, last) in SUPPORTED.items()}
        self.down: set[int] = set()
        self.mute: set[int] = set()  # nodes whose answers do not come
        self.unreadable: set[int] = set()  # APIs whose next response cannot be read
        self.in_flight: deque[Callable[[], None]] = deque()
        self.replies: list[Reply[bytes]] = []  # of all requests since a connection was closed
        self.sent: list[tuple[ApiKey, int, int, dict[str, Any]]] = []  # API, version, node, body
        self.on_request: Callable[[], None] = lambda: None  # before and after a request reaches the broker

    def _refresh(self) -> None:
        self.refreshes += 1
        self.metadata.answers += 1

    # as Connections
    def add_user(self) -> None:
        self.users += 1

    def remove_user(self) -> None:
        self.users -= 1

    def knows(self, api: ApiKey) -> bool:
        return int(api) in self.versions

    def get(self, broker_id: int) -> Connection | None:
        return self.links.get(broker_id)

    def for_call(self, first: Connection) -> Connection:
        return first

    def least_loaded(self, api: ApiKey = ApiKey.METADATA) -> Connection | None:
        links = [link for link in self.links.values() if link.versions is not None and api in link.versions]
        return links[0] if links else None

    def connect_any(self) -> int:
        return min(link.open(self.tasks.now_ms) for link in self.links.values())

    def send(self, node: int, api: ApiKey, version: int, body: dict[str, Any]) -> Reply[bytes]:
        assert version <= self.versions[api]
        *_, body = decode_request(encode_request(api, version, 1, "c", body)[4:])
        reply: Reply[bytes] = Reply()
        self.replies.append(reply)
        if api == ApiKey.API_VERSIONS:  # the features stay as they are
            reply.fail(NoAnswerError("it does not answer"))
            return reply
        self.on_request()
        self.sent.append((api, version, node, body))
        answer = self.coordinators.answer(api, version, node, body, lambda node: ("b", node))
        payload = encode_response(api, version, 1, {"throttle_time_ms": 0, **answer})[4:]
        self.on_request()
        if api in self.unreadable:
            self.unreadable.remove(api)
            payload = payload[:-1]
        if node not in self.mute:
            self.in_flight.append(lambda: reply.set(payload))
        return reply


class Rig:
    """A sender's part for transactions. `producer()` attaches a front-end, `successor()` replaces a killed sender."""

    def __init__(self, *, v2: bool = True, completing: int = 0) -> None:
        self.transactions = CoordinatorTransactions()
        self.transactions.completing = completing
        self.coordinators = ScriptedCoordinators(node=2, version=2 if v2 else None, transactions=self.transactions)
        self.coordinators.group_node = 3
        self.table = StandInTable()
        self.log = logging.getLogger("cyproducer.sender")
        self.tasks = Tasks(1_000_000, self.log)
        self._begin()

    def _begin(self) -> None:
        self.tasks = Tasks(self.now_ms, self.log)  # those of a killed sender do not go on
        self.brokers = brokers = Brokers(self.coordinators, self.tasks)
        backoff = ExponentialBackoff(RETRY_BACKOFF_MS, RETRY_BACKOFF_MS)
        report = Report(brokers.metadata)  # type: ignore[arg-type]
        calls = Calls(brokers, brokers.metadata, self.tasks, report, CALL_MS, backoff)  # type: ignore[arg-type]
        self.manager = Transactions(
            self.table,  # type: ignore[arg-type]
            calls,
            self.tasks,
            brokers.features,
            backoff,
            self.log,
        )

    @property
    def now_ms(self) -> int:
        return self.tasks.now_ms

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        self.tasks.now_ms = value

    def successor(self) -> None:
        """Begin again with what is in the state region: the table."""
        self.table.on_change = lambda: None
        for row in self.table.table.values():
            row.added = []
        self._begin()

    @property
    def v2(self) -> bool:
        return self.brokers.features.transactions_v2

    @v2.setter
    def v2(self, value: bool) -> None:
        self.coordinators.version = 2 if value else None
        self.brokers.features.transactions_v2 = value

    def codes(self, api: ApiKey, *codes: Any) -> None:
        """Script the error codes of the next responses to an API."""
        self.coordinators.codes[api] = deque(codes)

    def asked(self) -> list[ApiKey]:
        """Return the APIs of the requests since the last call, without look-ups of coordinators."""
        sent, self.brokers.sent = self.brokers.sent, []
        return [api for api, *_ in sent if api != ApiKey.FIND_COORDINATOR]

    def look_ups(self) -> int:
        return sum(api == ApiKey.FIND_COORDINATOR for api, *_ in self.brokers.sent)

    def close(self, node: int) -> None:
        """Close the connection to a broker. What it was asked has no answer."""
        self.brokers.in_flight.clear()
        self.brokers.links[node].versions = None
        replies, self.brokers.replies = self.brokers.replies, []
        for reply in replies:
            reply.fail(NoAnswerError("the broker closed the connection"))

    def maintain(self) -> int:
        """Do what the sender does between two iterations of the loop. Return in how many ms something is due."""
        self.brokers.changed.set()
        self.manager.tick()
        return self.tasks.run(self.now_ms)

    def step(self) -> bool:
        """Do what is due now; False if nothing is."""
        due_ms = self.maintain()
        if self.brokers.in_flight:
            self.brokers.in_flight.popleft()()
            return True
        return due_ms <= 0

    def run(self, seconds: float = 0.0, until: Callable[[], bool] = lambda: False) -> None:
        """Run what is due, and what becomes due in the next `seconds`."""
        end_ms = self.now_ms + int(seconds * 1000)
        steps = 0
        while not until():
            steps += 1
            assert steps < 20_000, "it does not come to rest"
            if self.step():
                continue
            due_ms = self.maintain()
            if until():
                return
            if self.brokers.in_flight or due_ms <= 0:
                continue
            if self.now_ms + due_ms > end_ms:
                self.now_ms = end_ms
                return
            self.now_ms += due_ms

    def producer(self, name: str = "a", **fields: Any) -> "Producer":
        return Producer(self, self.table.attach(name, **fields))


class Producer:
    """A front-end: it sends commands and keeps the answers."""

    def __init__(self, rig: Rig, index: int) -> None:
        self.rig = rig
        self.index = index
        self.attach_id = self.row.attach_id
        self.number = 0
        self.known = (-1, -1)

    @property
    def row(self) -> StandInRow:
        return self.rig.table.table[self.index]

    def event(self) -> None:
        self.rig.manager.on_event(self.index)

    def ask(self, do: str, number: int | None = None, offsets: Any = (), group: Any = None) -> list[dict[str, Any]]:
        """Send a command with the next number. Return the list that gets its answer."""
        self.number = self.number + 1 if number is None else number
        command = TransactionCommand(self.number, do, *self.known, group or {}, list(offsets))
        answers: list[dict[str, Any]] = []
        self.rig.manager.command(self.attach_id, command, answers.append)
        return answers

    def do(self, do: str, seconds: float = 60, **fields: Any) -> dict[str, Any]:
        """Send a command and return its answer."""
        answers = self.ask(do, **fields)
        self.rig.run(seconds, lambda: bool(answers))
        assert len(answers) == 1, f"{do}: {answers}"
        if answers[0].get("ok"):
            self.known = answers[0]["producer_id"], answers[0]["epoch"]
        return answers[0]

    def offsets(self, **fields: Any) -> dict[str, Any]:
        return self.do("offsets", offsets=[("t", 0, 5, -1, "")], group=GROUP, **fields)

    def send(self, key: tuple[str, int] = ("t", 0)) -> None:
        """Append a batch, as the engine does."""
        row = self.row
        if not row.v2 and key not in row.added:
            if key not in row.to_add:
                row.to_add.append(key)
            row.busy = True
            self.event()
            self.rig.run(10, lambda: key in row.added or bool(row.failed))
            row.busy = bool(row.to_add)
        if row.held and not row.failed:
            row.holds_up = row.busy = True
            self.event()
            self.rig.run(10, lambda: not row.held or bool(row.failed))
            row.busy = False
        if row.failed:
            row.to_add = []
            return
        row.state = TransactionState.IN_TRANSACTION if row.state == TransactionState.READY else row.state
        version = 12 if row.v2 else 11
        code = self.rig.transactions.verify(row.transactional_id, row.producer_id, row.epoch, version, key)
        if code:
            row.failed = code

    def come_to_rest(self, seconds: float) -> None:
        """Let the last batch get its outcome, and run what follows from it."""
        self.row.busy = False
        if self.row.awaited:
            self.event()
        self.rig.run(seconds)

    def end(self) -> None:
        """End the process. The engine lets the transaction fail."""
        self.row.orphaned = True
        if self.row.state in (TransactionState.UNINITIALIZED, TransactionState.READY, TransactionState.IN_TRANSACTION):
            self.row.failed = self.row.failed or TRANSACTION_ABORTED
        self.event()

    @property
    def ends(self) -> list[str]:
        return self.rig.transactions.ids[self.row.transactional_id].ends
