"""Tests the proxy in front of a broker: what passes, what is held, what is refused, and which versions it lowers."""

import socket
import struct
import threading
from collections.abc import Iterator

import pytest
from devkafka.node import free_ports

from faults.proxy import HOST, PortProxy

WAIT_S = 10.0
#: An answer to ApiVersions: correlation id 1, no error, Produce 3 to 13, Metadata 0 to 13, throttle time, no tags.
ENTRIES = [(0, 3, 13), (3, 0, 13)]


def versions(entries: list[tuple[int, int, int]]) -> bytes:
    body = struct.pack(">ihb", 1, 0, len(entries) + 1) + b"".join(struct.pack(">hhhb", *each, 0) for each in entries)
    body += struct.pack(">ib", 0, 0)
    return struct.pack(">i", len(body)) + body


@pytest.fixture
def echo() -> Iterator[int]:
    """Yield the port of a server that sends back what it gets."""
    with socket.create_server((HOST, 0)) as listener:

        def serve(client: socket.socket) -> None:
            with client:
                while data := client.recv(4096):
                    client.sendall(data)

        def accept() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                threads.append(threading.Thread(target=serve, args=(client,)))
                threads[-1].start()

        threads = [threading.Thread(target=accept)]
        threads[0].start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join()


@pytest.fixture
def proxy(echo: int) -> Iterator[PortProxy]:
    with PortProxy(free_ports(1)[0], echo) as proxy:
        yield proxy


def connected(proxy: PortProxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), WAIT_S)


def echoed(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    found = b""
    while len(found) < len(data):
        found += client.recv(4096)
    return found


def test_bytes_pass(proxy):
    with connected(proxy) as client:
        assert echoed(client, b"x" * 10_000) == b"x" * 10_000


def test_a_refused_port_ends_connections_and_comes_back(proxy):
    with connected(proxy) as client:
        assert echoed(client, b"x") == b"x"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            connected(proxy)
        assert client.recv(1) == b""
    proxy.restore()
    with connected(proxy) as client:
        assert echoed(client, b"x") == b"x"


def test_what_is_held_is_delivered_later(proxy):
    with connected(proxy) as client:
        assert echoed(client, b"x") == b"x"
        proxy.hold()
        client.sendall(b"later")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.restore()
        client.settimeout(WAIT_S)
        assert client.recv(4096) == b"later"


def test_versions_are_lowered_in_the_first_answer(proxy):
    proxy.cap({0: 7, 3: 20})
    with connected(proxy) as client:
        assert echoed(client, versions(ENTRIES)) == versions([(0, 3, 7), (3, 0, 13)])
        assert echoed(client, versions(ENTRIES)) == versions(ENTRIES)
        proxy.restore()
        assert client.recv(1) == b""
    with connected(proxy) as client:
        assert echoed(client, versions(ENTRIES)) == versions(ENTRIES)
