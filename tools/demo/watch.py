"""Observes a run from outside: which processes are connected to the broker, and which senders exist."""

import os
import threading
from collections import Counter
from typing import Any

from cyproducer.errors import KafkaError
from cyproducer.observe.status import status

INTERVAL_S = 1.0
# While a connection is replaced, both are open for a moment. That does not count as a further connection.
RECHECK_S = 0.3
SENDER_MOST = 2
"""Connections of a sender to one broker: the second one is for partitions that are slow to acknowledge."""

Address = tuple[str, int]


class Watch:
    """A thread that takes samples while the demo sends.

    addresses  addresses of the brokers
    own        process ids whose connections are ignored: the broker's processes and the demo's own clients
    """

    def __init__(self, addresses: set[Address], own: frozenset[int]) -> None:
        self.addresses = addresses
        self.own = own
        self.senders: set[int] = set()
        self.sockets: set[str] = set()
        self.sender_connections = 0
        self.connections_per_broker = 0
        self.other_clients: Counter[str] = Counter()
        self.front_ends = 0
        self.totals: dict[str, int] = {}
        self.trouble = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-watch", daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            try:
                self.sample()
            except (OSError, KafkaError) as error:
                self.trouble = f"{type(error).__name__}: {error}"

    def sample(self) -> None:
        """Take one sample: senders from their status, connections from the kernel's table."""
        found = status()
        for sender in found:
            self.senders.add(sender["sender_pid"])
            self.sockets.add(sender["socket"])
            self.front_ends = max(self.front_ends, len(sender["front_ends"]))
        if found:
            self.totals = {name: sum(sender["totals"][name] for sender in found) for name in found[0]["totals"]}
        counted = self._connections()
        if self._most(counted) > max(SENDER_MOST, self.connections_per_broker):
            self._ended.wait(RECHECK_S)
            again = self._connections()
            counted = {pid: counted[pid] & again.get(pid, Counter()) for pid in counted}
        mine = [places for pid, places in counted.items() if pid in self.senders]
        self.sender_connections = max(self.sender_connections, sum(map(Counter.total, mine)))
        self.connections_per_broker = max(self.connections_per_broker, self._most(counted))
        for pid, places in counted.items():
            if pid not in self.senders:
                name = f"{_command(pid)} ({pid})"
                self.other_clients[name] = max(self.other_clients[name], places.total())

    def _most(self, counted: dict[int, Counter[Address]]) -> int:
        """Return the largest number of the senders' connections to one broker."""
        total: Counter[Address] = Counter()
        for pid, places in counted.items():
            if pid in self.senders:
                total += places
        return max(total.values(), default=0)

    def _connections(self) -> dict[int, Counter[Address]]:
        """Return the established connections to brokers, by process: senders, this process and its descendants."""
        import psutil

        watched = set(self.senders) | {os.getpid()}
        watched |= {child.pid for child in psutil.Process().children(recursive=True)}
        watched -= self.own
        found: dict[int, Counter[Address]] = {}
        for entry in psutil.net_connections("tcp"):
            if entry.pid not in watched or entry.status != psutil.CONN_ESTABLISHED or not entry.raddr:
                continue
            place = (entry.raddr.ip.removeprefix("::ffff:"), entry.raddr.port)
            if place in self.addresses:
                found.setdefault(entry.pid, Counter())[place] += 1
        return found

    def problems(self) -> list[str]:
        """Return one line for each observation that contradicts the expectation."""
        found = []
        if len(self.senders) != 1:
            found.append(f"{len(self.senders)} senders were running, expected 1 ({self.trouble or 'by status'})")
        if not 1 <= self.connections_per_broker <= SENDER_MOST:
            count = self.connections_per_broker
            found.append(
                f"the sender had {count} connections to one broker, expected 1, or 2 while partitions are slow"
            )
        for name, count in self.other_clients.items():
            found.append(f"{name} had {count} connections to the broker, expected 0")
        return found


def _command(pid: int) -> str:
    import psutil

    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "a process"


def last_totals() -> dict[str, int]:
    """Return the current totals of the only sender; empty if no sender answers."""
    found: list[dict[str, Any]] = status()
    return dict(found[0]["totals"]) if found else {}
