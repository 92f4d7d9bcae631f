"""Counts the connections of every process to a broker, from the tables of the kernel."""

import threading
from collections import Counter
from pathlib import Path

import psutil

from support.process import users_of

SENDERS_MOST = 4
"""Connections of a sender to one broker, by default: more than one while requests wait for each other."""

_READS_MOST = 5
"""How often the tables are read until each connection has a pid."""


def broker_connections(*ports: int) -> dict[int | None, int]:
    """Return the established TCP connections to these ports: {pid of the client: how many}.

    Only the client's end is counted (both ends of a loopback connection are in the kernel's table). The connections of
    the processes that listen on these ports are left out: a broker connects to itself, for example to write the markers
    of transactions. A pid is None if the process belongs to another user.

    psutil reads the descriptors of all processes first, and the connections after that. A connection that is opened
    between the two has no pid, so both are read again.
    """
    for _ in range(_READS_MOST):
        counts = _read(ports)
        if None not in counts:
            break
    return counts


def _read(ports: tuple[int, ...]) -> dict[int | None, int]:
    connections = psutil.net_connections("tcp")
    brokers = {
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port in ports
    }
    found = Counter(
        connection.pid
        for connection in connections
        if connection.status == psutil.CONN_ESTABLISHED
        and connection.raddr
        and connection.raddr.port in ports
        and connection.pid not in brokers
    )
    return dict(found)


def assert_shared(counts: dict[int | None, int], *senders: int) -> None:
    """Check that only the sender is connected to the broker."""
    assert len(senders) == 1
    assert counts.keys() == set(senders), counts
    assert all(count <= SENDERS_MOST for count in counts.values()), counts


def ports_of(bootstrap_servers: str) -> list[int]:
    """Return the ports of a list "host:port,host:port"."""
    return [int(server.rpartition(":")[2]) for server in bootstrap_servers.split(",")]


class ConnectionWatch:
    """Samples, while it is entered, which processes of a runtime directory hold connections to the broker.

    Other tests may use the broker meanwhile.
    """

    def __init__(self, servers: str, runtime_directory: Path) -> None:
        self._ports = ports_of(servers)
        self._runtime_directory = runtime_directory
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.samples: list[dict[int | None, int]] = []

    def now(self) -> dict[int | None, int]:
        """Return {pid: connections} at this moment."""
        held = broker_connections(*self._ports)
        mine = {process.pid for process in users_of(self._runtime_directory, held.keys() - {None})}
        return {pid: count for pid, count in held.items() if pid in mine}

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            self.samples.append(self.now())

    def __enter__(self) -> "ConnectionWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
