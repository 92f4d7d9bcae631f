"""Keeps the state of one broker in the sender's control plane, and creates the socket of its connection."""

import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cyproducer.protocol.versions import ApiVersionsExchange
from cyproducer.sender.brokers.resolver import Address
from cyproducer.sender.engine.events import CloseReason

if TYPE_CHECKING:
    import ssl

    from cyproducer.sender.brokers.sasl_login import Exchange  # only with SASL it is imported

__all__ = [
    "CLOSE_REASONS",
    "NOTHING_DUE_MS",
    "SAME_ERROR_LOGGED_EVERY_S",
    "Link",
    "connecting_socket",
]

NOTHING_DUE_MS = 60_000  # nothing is scheduled: maintain() checks again after this time at the latest
SAME_ERROR_LOGGED_EVERY_S = 60.0
CLOSE_REASONS: dict[int, str] = {
    CloseReason.BY_PEER: "the broker closed the connection",
    CloseReason.TIMEOUT: "the broker sent no response within request_timeout_ms",
    CloseReason.PROTOCOL: "the broker sent an invalid response: check that the address is a Kafka listener",
    CloseReason.BY_US: "this sender closed the connection",
    CloseReason.NEEDS_TLS: "the listener uses TLS: set security_protocol to SSL or SASL_SSL, or use another port",
}
#: An idle connection that was dropped is found after 10 + 4 * 3 seconds. TCP_USER_TIMEOUT would end connections to
#: brokers that do not read, see docs/decisions/dropped-connections.md.
KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 3, socket.TCP_KEEPCNT: 4}
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
        self.throttled_until_ms = 0  # the end of a long throttle time that was told
        self.was_reached = False  # it has been ready at its present address
        self.last_error = ""
        self.logged_s = 0.0
        self.auth_failed = False  # TLS or SASL has failed in the last round of attempts
        self.given_up = False  # it was closed for an error that is noted
        self.was_answered = False  # the broker has answered a request of Python after the setup of the connection
        self.answers_before = 0  # to Produce requests, when the connection became ready
        self.use = ""  # of a connection that is not the first one, for the log
        self.tls: Any = None  # the TlsStream of the connection
        self.session: ssl.SSLSession | None = None  # of the last connection, to be resumed
        self.session_for: tuple[Any, ...] = ()  # the context and the host name that it belongs to
        self.negotiated: dict[int, int] = {}  # the versions while SASL goes on
        self.sasl: Exchange | None = None  # an exchange that goes on
        self.first_message = b""  # of it
        self.held: list[Callable[[], None]] = []  # sends a request that came while it authenticates again
        self.authenticating_since_ms = 0
        self.authenticate_at_ms: int | None = None  # when to authenticate again

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}{self.use}"

    @property
    def hint(self) -> str:
        """What to add to an error of an address that a broker has named, and at which no broker was reached yet."""
        if self.broker_id < 0 or self.was_reached or self.auth_failed:
            return ""
        return "; the brokers name this address (advertised.listeners of the broker)"

    @property
    def checked_host(self) -> str:
        """The host name that TLS checks, and that is part of the broker's Kerberos principal.

        It is the canonical name of a bootstrap server if canonical names are looked up, as in Kafka.
        """
        canonical = self.peer.canonical_name if self.broker_id < 0 and self.peer is not None else ""
        return canonical or self.host

    def leads_to(self, host: str, port: int) -> bool:
        """Return whether the link has this address, or is connected to it."""
        if (self.host, self.port) == (host, port):
            return True
        return self.peer is not None and (str(self.peer.target[0]), self.peer.target[1]) == (host, port)

    def is_new_error(self, text: str) -> bool:
        """Set the last error of the broker. Return whether to log it: the same error is logged once a minute."""
        now_s = time.monotonic()
        new = self.last_error != text or now_s >= self.logged_s + SAME_ERROR_LOGGED_EVERY_S
        if new:
            self.logged_s = now_s
        self.last_error = text
        return new


def connecting_socket(address: Address, send_buffer_bytes: int, receive_buffer_bytes: int) -> socket.socket:
    """Return a non-blocking socket that is connecting. Raise OSError, or another exception for an invalid address."""
    sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, seconds)
        # reset on close: bytes of a dead sender that are still queued must not reach the broker
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if send_buffer_bytes != SYSTEM_BUFFER:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes != SYSTEM_BUFFER:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.connect(address.target)
    except BlockingIOError:
        pass
    except BaseException:
        sock.close()
        raise
    return sock
