"""Keeps what is known of one broker: its address, the attempts to reach it, and its last error."""

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from cyproducer.config.table import PAUSE_MIN_MS
from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.resolver import Address

if TYPE_CHECKING:
    import ssl  # only with TLS it is imported

__all__ = ["SAME_ERROR_LOGGED_EVERY_S", "SETUP_MIN_MS", "Backoffs", "Broker", "backoff_between"]

SAME_ERROR_LOGGED_EVERY_S = 60.0
SETUP_MIN_MS = 100  # the time that a connection may take, also if the setting is less: a broker must be able to answer


class Backoffs(NamedTuple):
    """The pauses between attempts to connect, and the time that an attempt may take (ClusterConnectionStates)."""

    pause: ExponentialBackoff
    setup: ExponentialBackoff

    @classmethod
    def of(cls, settings: dict[str, Any]) -> "Backoffs":
        """Return those of the settings."""
        return cls(
            backoff_between(settings, "reconnect_backoff_ms", "reconnect_backoff_max_ms", PAUSE_MIN_MS),
            backoff_between(
                settings,
                "socket_connection_setup_timeout_ms",
                "socket_connection_setup_timeout_max_ms",
                SETUP_MIN_MS,
            ),
        )


def backoff_between(settings: dict[str, Any], base: str, most: str, least_ms: int) -> ExponentialBackoff:
    """Return the backoff of two settings, of which each counts as `least_ms` at least."""
    return ExponentialBackoff(max(int(settings[base]), least_ms), max(int(settings[most]), least_ms))


class Broker:
    """A broker of the cluster, or a bootstrap address (negative id).

    It has two counters of failures, as in Kafka: one for the pause before the next attempt, and one for the time that
    an attempt may take. `unreachable` says that the last round of attempts has failed; a connection that breaks does
    not mean that.

    addresses     not yet tried in this round of attempts
    peer          the address of the last attempt; peer_is_proxy: it is that of a proxy
    attempted_ms  when the last attempt began, or the connection ended
    retry_at_ms   there is no attempt before
    use           of a connection that is not the first one, for the log
    auth_failed   TLS or SASL has failed in the last round of attempts

    All of them are changed here only.
    """

    def __init__(self, broker_id: int, host: str, port: int, backoffs: Backoffs, use: str = "") -> None:
        self.id = broker_id
        self.host = host
        self.port = port
        self.addresses: list[Address] = []
        self.peer: Address | None = None
        self.peer_is_proxy = False
        self.unreachable = False
        self.attempted_ms = 0
        self.retry_at_ms = 0
        self.auth_failed = False
        self.last_error = ""
        self.use = use
        self._backoffs = backoffs
        self._failures = 0  # ended connections and failed rounds of attempts since the broker was ready
        self._setup_failures = 0  # failed attempts since the broker was ready
        self._was_reached = False  # it has been ready at its present address
        self._logged_s = 0.0
        self._session: ssl.SSLSession | None = None  # of TLS
        self._session_for: tuple[Any, ...] = ()  # the context and the host name that it belongs to

    @property
    def name(self) -> str:
        return f"{self.host}:{self.port}{self.use}"

    @property
    def hint(self) -> str:
        """What to add to an error of an address that a broker has named, and at which no broker was reached yet."""
        if self.id < 0 or self._was_reached or self.auth_failed or self.peer_is_proxy:
            return ""
        return "; the brokers name this address (advertised.listeners of the broker)"

    @property
    def checked_host(self) -> str:
        """The host name that TLS checks, and that is part of the broker's Kerberos principal.

        It is the canonical name of a bootstrap server if canonical names are looked up, as in Kafka.
        """
        canonical = self.peer.canonical_name if self.id < 0 and self.peer is not None else ""
        return canonical or self.host

    @property
    def is_away(self) -> bool:
        """Whether attempts to connect have failed since the broker was ready."""
        return self._setup_failures > 0

    def leads_to(self, host: str, port: int) -> bool:
        """Return whether the broker has this address, or was connected to by it."""
        if (self.host, self.port) == (host, port):
            return True
        return (
            self.peer is not None
            and not self.peer_is_proxy
            and (str(self.peer.target[0]), self.peer.target[1]) == (host, port)
        )

    # ------------------------------------------------------------ the address

    def become(self, broker_id: int, host: str, port: int) -> None:
        """Make a bootstrap address the broker to which it has led."""
        self.id, self.host, self.port = broker_id, host, port

    def follow(self, first: "Broker") -> None:
        """Take the address by which the first connection to the broker was made."""
        self.host, self.port = first.host, first.port
        self.addresses = [] if first.peer is None else [first.peer]

    def forget_addresses(self) -> None:
        """Let the name of the host be looked up again."""
        self.addresses = []

    # ------------------------------------------------------------ a TLS session that is resumed

    def session_for(self, context: "ssl.SSLContext") -> "ssl.SSLSession | None":
        """Return the session of the last connection with this context, to the same host name; None if there is none.

        With a session, OpenSSL does not check the certificate and its host name again.
        """
        wanted = (context, self.checked_host)
        if self._session_for != wanted:
            self._session, self._session_for = None, wanted
        return self._session

    def keep_session(self, session: "ssl.SSLSession | None") -> None:
        """Keep the session of the connection for the next one."""
        self._session = session

    # ------------------------------------------------------------ errors

    def set_auth_failed(self) -> None:
        """Record that TLS or SASL has failed."""
        self.auth_failed = True

    def set_reachable(self) -> None:
        """Let the broker count as reachable until the next round of attempts has failed."""
        self.unreachable = False

    def set_error(self, text: str) -> bool:
        """Set the last error of the broker. Return whether to log it: the same error is logged once a minute."""
        now_s = time.monotonic()
        is_new = self.last_error != text or now_s >= self._logged_s + SAME_ERROR_LOGGED_EVERY_S
        if is_new:
            self._logged_s = now_s
        self.last_error = text
        return is_new

    # ------------------------------------------------------------ attempts

    def set_addresses(self, found: list[Address]) -> None:
        """Begin a round of attempts. The address of the last attempt is tried last."""
        self.addresses, self.auth_failed = list(found), False
        if self.peer is not None and self.addresses[0][:2] == self.peer[:2]:
            self.addresses.append(self.addresses.pop(0))

    def begin_attempt(self, peer: Address, is_proxy: bool, now_ms: int) -> int:
        """Record that an attempt to connect to an address begins. Return how many ms it may take."""
        self.peer, self.peer_is_proxy = peer, is_proxy
        self.attempted_ms = now_ms
        return self._backoffs.setup.delay_ms(self._setup_failures)

    def set_ready(self) -> None:
        """Record that the broker takes requests. The next connection is made to an address that is looked up again."""
        self._failures = 0
        self._setup_failures = 0
        self.unreachable = False
        self._was_reached = True
        self.last_error = ""
        self.addresses = []

    def set_address(self, host: str, port: int) -> None:
        """Give the broker another address, without the failures of the former one."""
        self.host, self.port = host, port
        self.retry_at_ms = 0
        self.set_ready()
        self._was_reached = False

    def set_broken(self, now_ms: int) -> None:
        """Record that a connection that was ready has ended."""
        self.attempted_ms = now_ms
        self._back_off(now_ms)

    def set_failed(self, now_ms: int) -> None:
        """Record that an attempt has failed. If the host has more addresses, the next one is tried without a pause."""
        self.attempted_ms = now_ms
        self._setup_failures += 1
        if not self.addresses:
            self.unreachable = True
            self._back_off(now_ms)

    def _back_off(self, now_ms: int) -> None:
        self.retry_at_ms = now_ms + self._backoffs.pause.delay_ms(self._failures)
        self._failures += 1
