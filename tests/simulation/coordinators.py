"""Gives the coordinators of the simulated cluster their places, their faults and their time: markers come later."""

from collections import Counter
from typing import TYPE_CHECKING, Any

from kfake.codes import END_TXN
from kfake.coordinator import Coordinators, Transactional

from cyproducer.codes import TRANSACTION_ABORTABLE
from cyproducer.error_table import ERRORS
from simulation.weather import COORDINATOR_ANY, COORDINATOR_RETRIABLE

if TYPE_CHECKING:
    from simulation.broker import SimulatedCluster, SimulatedNode

MARKER_AGAIN_MS = 20


class SimulatedCoordinators(Coordinators):
    """The coordinators of a cluster, with the faults of its weather. `expired`: ids with a transaction too long."""

    def __init__(self, cluster: "SimulatedCluster", version: int | None) -> None:
        super().__init__(version)
        self.transactions.on_begin = self._expire_later
        self.transactions.on_end = self._write_markers
        self.transactions.is_completing = lambda found: self._unwritten[found.producer_id] > 0
        self.expired: set[str] = set()
        self._cluster = cluster
        self._places: dict[tuple[int, str], int] = {}  # node by key type and key
        self._unwritten: Counter[int] = Counter()  # markers by producer id

    def move(self, node: "SimulatedNode | None" = None) -> None:
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

    # ------------------------------------------------------------ places and faults

    def place_of(self, kind: int, key: str) -> int | None:
        return self._places.get((kind, key))

    def find(self, kind: int, key: str) -> int:
        return self._places.setdefault((kind, key), self._cluster.chance.choice(sorted(self._cluster.nodes)))

    def is_up(self, node: int) -> bool:
        return self._cluster.nodes[node].up

    def code_of(self, api: int, node: int, body: dict[str, Any]) -> int:
        code = self._cluster.error(COORDINATOR_ANY, COORDINATOR_RETRIABLE)
        self._cluster.met["errors of coordinators"] += code != 0
        if api == END_TXN and code == TRANSACTION_ABORTABLE and not self.is_open(body["transactional_id"]):
            return 0  # it may have been ended by the request before: what is committed need not be aborted
        return code

    def is_done_before(self, code: int) -> bool:
        is_done = ERRORS[code].retriable and self._cluster.chance.random() < 0.4
        self._cluster.met["done by a coordinator, then an error"] += is_done
        return is_done

    def describe(self, name: str, row: dict[str, Any]) -> dict[str, Any]:
        self._cluster.met[f"described: {row['transaction_state']}"] += 1
        return row

    # ------------------------------------------------------------ time

    def _expire_later(self, found: Transactional) -> None:
        name = next(name for name, each in self.transactions.ids.items() if each is found)
        number = len(found.ends)
        raises_epoch = self.version is not None and self.version >= 2

        def expire() -> None:
            if found.state == "Ongoing" and len(found.ends) == number:
                self._cluster.events.note(f"the transaction of {name} has taken too long")
                self._cluster.met["transactions that took too long"] += 1
                self.expired.add(name)
                self.transactions.time_out(name, raises_epoch)

        self._cluster.events.after(found.timeout_ms, expire)

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
