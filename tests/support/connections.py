"""Counts the connections of every process to a broker, from the tables of the kernel."""

from collections import Counter

import psutil


def broker_connections(*ports: int) -> dict[int | None, int]:
    """Return the established TCP connections to these ports: {pid of the client: how many}.

    Only the client's end is counted (both ends of a loopback connection are in the kernel's table). A pid is
    None if the process belongs to another user.
    """
    found = Counter(
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.status == psutil.CONN_ESTABLISHED and connection.raddr and connection.raddr.port in ports
    )
    return dict(found)


def ports_of(bootstrap_servers: str) -> list[int]:
    """Return the ports of a list "host:port,host:port"."""
    return [int(server.rpartition(":")[2]) for server in bootstrap_servers.split(",")]
