"""Runs a TransactionManager on scripted coordinators, with a clock that moves only when nothing else is due."""

import logging
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from kfake.coordinator import Transactions
from kfake.scripted_coordinators import ScriptedCoordinators
from support.transaction_table import TRANSACTION_ABORTED, StandInRow, StandInTable

from cyproducer.protocol.codec import decode_request, decode_response, encode_request, encode_response
from cyproducer.protocol.versions import SUPPORTED, ApiKey
from cyproducer.sender.brokers.broker import Link
from cyproducer.sender.brokers.transaction_manager import TransactionManager
from cyproducer.sender.brokers.transaction_rows import Command

NODES = (1, 2, 3)
GROUP = {"group_id": "g", "generation_id": 5, "member_id": "m", "group_instance_id": None}
RECONNECT_MS = 50
RETRY_BACKOFF_MS = 100


class SenderEndedError(BaseException):
    """The sender is killed here."""


class Brokers:
    """What the manager uses of Brokers and of the loop: three brokers, whose answers come when they are asked for."""

    def __init__(self, coordinators: ScriptedCoordinators) -> None:
        self.coordinators = coordinators
        self.features = SimpleNamespace(transactions_v2=coordinators.version == 2, ask_again=lambda: iter(()))
        self.refreshes = 0
        self.metadata = SimpleNamespace(
            bootstrapping=False,
            last_error="",
            answers=0,
            brokers={node: ("b", node, None) for node in NODES},
            request_update=self._refresh,
        )
        self.last_error = ""
        self.links = {node: Link(node, node, "b", node) for node in NODES}
        self.versions = {int(api): last for api, (_, last) in SUPPORTED.items()}
        self.down: set[int] = set()
        self.mute: set[int] = set()  # nodes whose answers do not come
        self.unreadable: set[int] = set()  # APIs whose next response cannot be read
        self.in_flight: deque[Callable[[int], None]] = deque()
        self.sent: list[tuple[ApiKey, int, int, dict[str, Any]]] = []  # API, version, node, body
        self.on_request: Callable[[], None] = lambda: None  # before and after a request reaches the broker
        self.node_choice = SimpleNamespace(knows=lambda api: int(api) in self.versions)

    def _refresh(self) -> None:
        self.refreshes += 1
        self.metadata.answers += 1

    # as Brokers
    def least_loaded(self, api: ApiKey = ApiKey.METADATA) -> Link | None:
        links = [link for link in self.links.values() if link.versions is not None and api in link.versions]
        return links[0] if links else None

    def connect_any(self, now_ms: int) -> int:
        return min(self.connect(link, now_ms) for link in self.links.values())

    def connect(self, link: Link, now_ms: int) -> int:
        if link.retry_at_ms > now_ms:
            return link.retry_at_ms - now_ms
        link.attempted_ms = now_ms
        if link.broker_id in self.down:
            link.unreachable, link.last_error = True, "Connection refused"
            link.retry_at_ms = now_ms + RECONNECT_MS
            return RECONNECT_MS
        link.versions, link.unreachable = dict(self.versions), False
        return 0

    def request(self, link: Link, api: ApiKey, body: dict[str, Any], then: Any, version: int | None = None) -> None:
        assert version is not None and version <= self.versions[api]
        *_, body = decode_request(encode_request(api, version, 1, "c", body)[4:])
        self.on_request()
        self.sent.append((api, version, link.broker_id, body))
        answer = self.coordinators.answer(api, version, link.broker_id, body, lambda node: ("b", node))
        payload = encode_response(api, version, 1, {"throttle_time_ms": 0, **answer})[4:]
        self.on_request()
        if api in self.unreadable:
            self.unreadable.remove(api)
            payload = payload[:-1]
        if link.broker_id not in self.mute:
            self.in_flight.append(lambda now_ms: then(link, payload, now_ms))

    def take_answer(self, link: Link, api: ApiKey, payload: bytes, *, version: int) -> dict[str, Any]:
        return decode_response(api, version, payload)[1]

    # as the loop
    def takes_requests(self, index: int) -> bool:
        return self.links[index].versions is not None

    def connection_state(self, index: int) -> tuple[str, int]:
        return ("closed" if self.links[index].versions is None else "ready"), 0


class Rig:
    """A sender's part for transactions. `producer()` attaches a front-end, `successor()` replaces a killed sender."""

    def __init__(self, *, v2: bool = True, completing: int = 0) -> None:
        self.transactions = Transactions()
        self.transactions.completing = completing
        self.coordinators = ScriptedCoordinators(node=2, version=2 if v2 else None, transactions=self.transactions)
        self.coordinators.group_node = 3
        self.table = StandInTable()
        self.log = logging.getLogger("cyproducer.sender")
        self.now_ms = 1_000_000
        self._begin()

    def _begin(self) -> None:
        self.brokers = Brokers(self.coordinators)
        self.manager = TransactionManager(
            self.brokers,  # type: ignore[arg-type]
            self.brokers,
            self.table,
            RETRY_BACKOFF_MS,
            30_000,
            self.log,
        )

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
        self.manager.on_closed(self.brokers.links[node], self.now_ms)

    def step(self) -> bool:
        """Do what is due now; False if nothing is."""
        due_ms = self.manager.maintain(self.now_ms)
        if self.brokers.in_flight:
            self.brokers.in_flight.popleft()(self.now_ms)
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
            due_ms = self.manager.maintain(self.now_ms)
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
        self.rig.manager.on_event(self.index, self.rig.now_ms)

    def ask(self, do: str, number: int | None = None, offsets: Any = (), group: Any = None) -> list[dict[str, Any]]:
        """Send a command with the next number. Return the list that gets its answer."""
        self.number = self.number + 1 if number is None else number
        command = Command(self.number, do, *self.known, group or {}, list(offsets))
        answers: list[dict[str, Any]] = []
        self.rig.manager.command(self.attach_id, command, answers.append, self.rig.now_ms)
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
        row.phase = "open" if row.phase == "ready" else row.phase
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
        if self.row.phase in ("new", "ready", "open"):
            self.row.failed = self.row.failed or TRANSACTION_ABORTED
        self.event()

    @property
    def ends(self) -> list[str]:
        return self.rig.transactions.ids[self.row.transactional_id].ends
