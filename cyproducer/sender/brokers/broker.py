"""Keeps the state of one broker in the sender's control plane, and creates the socket of its connection."""

import socket
import struct

from cyproducer.protocol.versions import ApiVersionsExchange
from cyproducer.sender.brokers.resolver import Address

__all__ = ["NOTHING_DUE_MS", "SAME_ERROR_LOGGED_EVERY_S", "Link", "connecting_socket"]

NOTHING_DUE_MS = 60_000  # nothing is scheduled: maintain() checks again after this time at the latest
SAME_ERROR_LOGGED_EVERY_S = 60.0
SYSTEM_BUFFER = -1  # send_buffer_bytes, receive_buffer_bytes: the kernel chooses the size and adapts it to the route


class Link:
    """One broker, or one bootstrap address (negative id), and the index of its node in the loop."""

    def __init__(self, index: int, broker_id: int, host: str, port: int) -> None:
        self.index = index
        self.broker_id = broker_id
        self.host = host
        self.port = port
        self.peer: Address | None = None
        self.versions: dict[int, int] | None = None  # negotiated version by API key; None: not connected
        self.exchange: ApiVersionsExchange | None = None
        self.addresses: list[Address] = []  # not yet tried
        self.resolving = False
        self.resolving_since_ms = 0
        self.wanted = False  # the loop has something to send
        self.failures = 0  # ended connections and failed rounds of attempts since the broker was ready
        self.setup_failures = 0  # failed attempts since the broker was ready
        self.unreachable = False
        self.attempted_ms = 0  # when the last attempt began, or the connection ended
        self.retry_at_ms = 0
        self.setup_ms = 0  # how long the present attempt may take
        self.connect_deadline_ms: int | None = None
        self.last_error = ""
        self.logged_s = 0.0

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}"


def connecting_socket(address: Address, send_buffer_bytes: int, receive_buffer_bytes: int) -> socket.socket:
    """Return a non-blocking socket that is connecting. Raise OSError, or another exception for an invalid address."""
    family, target = address
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # reset on close: bytes of a dead sender that are still queued must not reach the broker
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if send_buffer_bytes != SYSTEM_BUFFER:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes != SYSTEM_BUFFER:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.connect(target)
    except BlockingIOError:
        pass
    except BaseException:
        sock.close()
        raise
    return sock
