"""Gives the coordinators of the simulated cluster their places, their faults and their time: markers come later."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from support.scripted_coordinator import (
    DESCRIBE_TRANSACTIONS,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    NOT_COORDINATOR,
    TXN_OFFSET_COMMIT,
)
from support.scripted_transactions import END_TXN, TRANSACTION_ABORTABLE, WRITES, ScriptedTransactions, Transactional

from cyproducer.error_table import ERRORS
from simulation.weather import COORDINATOR_ANY, COORDINATOR_RETRIABLE

if TYPE_CHECKING:
    from kfake.partition_log import LogBatch

    from simulation.broker import Cluster, Node

GROUP, TRANSACTION = 0, 1  # key types
COORDINATOR_NOT_AVAILABLE = 15
MARKER_AGAIN_MS = 20


class Coordinators:
    """The coordinators of all transactional ids and groups of a cluster. `version`: the feature transaction.version."""

    def __init__(self, cluster: "Cluster", version: int | None) -> None:
        self.version = version
        self.transactions = ScriptedTransactions()
        self.transactions.on_begin = self._expire_later
        self.transactions.on_end = self._write_markers
        self.transactions.is_completing = lambda found: self._unwritten[found.producer_id] > 0
        self.expired: set[str] = set()  # ids with a transaction that took too long
        self._cluster = cluster
        self._places: dict[tuple[int, str], int] = {}  # node by key type and key
        self._timeouts: dict[str, int] = {}
        self._unwritten: Counter[int] = Counter()  # markers by producer id

    @property
    def raises_epoch(self) -> bool:
        return self.version is not None and self.version >= 2

    def features(self) -> dict[str, Any]:
        """Return the fields of an ApiVersions response that have the finalized features."""
        if self.version is None:
            return {}
        level = {"max_version_level": self.version, "min_version_level": self.version}
        return {"finalized_features_epoch": 1, "finalized_features": [{"name": "transaction.version", **level}]}

    def move(self, node: "Node | None" = None) -> None:
        """Give the keys of a node, or a part of all keys, other coordinators. The state moves with them."""
        numbers = [each.number for each in self._cluster.nodes.values() if each.up]
        for key, place in self._places.items():
            if numbers and (place == node.number if node else self._cluster.chance.random() < 0.5):
                self._places[key] = self._cluster.chance.choice(numbers)

    def is_open(self, name: str) -> bool:
        """Return whether a transaction of this id is open."""
        found = self.transactions.ids.get(name)
        return found is not None and found.state == "Ongoing"

    def has_unwritten_markers(self) -> bool:
        """Return whether the end of a transaction is still being written to its partitions."""
        return any(self._unwritten.values())

    # ------------------------------------------------------------ requests

    def handles(self, api: int, body: dict[str, Any]) -> bool:
        """Return whether a request is one for a coordinator."""
        is_init = api == INIT_PRODUCER_ID and body["transactional_id"] is not None
        return is_init or api in (FIND_COORDINATOR, DESCRIBE_TRANSACTIONS) or api in WRITES

    def answer(self, api: int, version: int, node: "Node", body: dict[str, Any]) -> dict[str, Any]:
        code = self._cluster.error(COORDINATOR_ANY, COORDINATOR_RETRIABLE)
        self._cluster.met["errors of coordinators"] += code != 0
        if api == FIND_COORDINATOR:
            return self._find(body, code)
        if api == DESCRIBE_TRANSACTIONS:
            return self._describe(body["transactional_ids"][0], node, code)
        key = (GROUP, body["group_id"]) if api == TXN_OFFSET_COMMIT else (TRANSACTION, body["transactional_id"])
        if api == END_TXN and code == TRANSACTION_ABORTABLE and not self.is_open(key[1]):
            code = 0  # it may have been ended by the request before: what is committed need not be aborted
        if self._places.get(key) != node.number:
            code = NOT_COORDINATOR
        elif not code or (ERRORS[code].retriable and self._cluster.chance.random() < 0.4):
            if api == INIT_PRODUCER_ID:
                self._timeouts[key[1]] = body["transaction_timeout_ms"]
            answer = self.transactions.answer(api, version, body, 0)
            if not code:
                return answer
            self._cluster.met["done by a coordinator, then an error"] += 1
        return self.transactions.answer(api, version, body, code)

    def _find(self, body: dict[str, Any], code: int) -> dict[str, Any]:
        keys = body["coordinator_keys"]
        key = body["key_type"], keys[0] if keys else body["key"]
        nodes = self._cluster.nodes
        number = self._places.setdefault(key, self._cluster.chance.choice(sorted(nodes)))
        if not nodes[number].up:
            code = code or COORDINATOR_NOT_AVAILABLE
        place = {"node_id": -1 if code else number, "host": "127.0.0.1", "port": nodes[number].port, "error_code": code}
        return {"coordinators": [{"key": key[1], **place}]} if keys else place

    def _describe(self, name: str, node: "Node", code: int) -> dict[str, Any]:
        if self._places.get((TRANSACTION, name)) != node.number:
            code = NOT_COORDINATOR
        found = self.transactions.ids.get(name)
        state, numbers = "", {"producer_id": -1, "producer_epoch": -1}
        if not code and found is not None:
            state = "PrepareCommit" if self._unwritten[found.producer_id] else found.state
            self._cluster.met[f"described: {state}"] += 1
        row = {"error_code": code, "transactional_id": name, "transaction_state": state, **numbers, "topics": []}
        return {"transaction_states": [row | {"transaction_timeout_ms": 0, "transaction_start_time_ms": -1}]}

    def verify(self, name: str, batch: "LogBatch", version: int, key: tuple[str, int]) -> int:
        """Return the error code for the first batch of a transaction in a partition, as its leader asks for it."""
        return self.transactions.produced(name, batch.producer_id, batch.epoch, version, key)

    # ------------------------------------------------------------ time

    def _expire_later(self, found: Transactional) -> None:
        name = next(name for name, each in self.transactions.ids.items() if each is found)
        number = len(found.ends)

        def expire() -> None:
            if found.state == "Ongoing" and len(found.ends) == number:
                self._cluster.events.note(f"the transaction of {name} has taken too long")
                self._cluster.met["transactions that took too long"] += 1
                self.expired.add(name)
                self.transactions.time_out(name, self.raises_epoch)

        self._cluster.events.after(self._timeouts[name], expire)

    def _write_markers(self, found: Transactional, how: str, epoch: int) -> None:
        self._cluster.met[f"transaction: {how}"] += 1
        self._cluster.events.note(f"the end of a transaction of producer {found.producer_id}, epoch {epoch}: {how}")
        for name, index in sorted(found.partitions):
            self._unwritten[found.producer_id] += 1
            self._write_later(self._cluster.chance.choice((0, 1, 5, 60)), name, index, found.producer_id, epoch, how)

    def _write_later(self, delay_ms: float, name: str, index: int, producer_id: int, epoch: int, how: str) -> None:
        def write() -> None:
            topic = self._cluster.topics[name]
            if topic.exists:  # otherwise there is nothing to end
                partition = topic.partitions[index]
                if partition.short_of_replicas or not self._cluster.nodes[partition.leader].up:
                    self._write_later(MARKER_AGAIN_MS, name, index, producer_id, epoch, how)
                    return
                partition.end_transaction(producer_id, epoch, "commit" if how == "commit" else "abort")
            self._unwritten[producer_id] -= 1

        self._cluster.events.after(delay_ms, write)
