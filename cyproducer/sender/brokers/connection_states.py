"""Decides how long a connection may take to be set up, and when the next attempt is due (ClusterConnectionStates)."""

from typing import Any

from cyproducer.cluster.backoff import ExponentialBackoff
from cyproducer.sender.brokers.broker import Link

__all__ = ["PAUSE_MIN_MS", "SETUP_MIN_MS", "ConnectionStates", "backoff_between"]

PAUSE_MIN_MS = 10  # pause before a reconnect or a retry, also if the backoff is 0: prevents a busy loop
SETUP_MIN_MS = 100  # the time that a connection may take, also if the setting is less: a broker must be able to answer


def backoff_between(settings: dict[str, Any], base: str, most: str, least_ms: int) -> ExponentialBackoff:
    """Return the backoff of two settings, of which each counts as `least_ms` at least."""
    return ExponentialBackoff(max(int(settings[base]), least_ms), max(int(settings[most]), least_ms))


class ConnectionStates:
    """Counts the failed attempts of each link, and sets its times.

    Two counters, as in Kafka: `failures` for the pause before the next attempt, and `setup_failures` for the time that
    an attempt may take. `unreachable` says that the last round of attempts has failed; a connection that breaks does
    not mean that.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._pause = backoff_between(settings, "reconnect_backoff_ms", "reconnect_backoff_max_ms", PAUSE_MIN_MS)
        self._setup = backoff_between(
            settings,
            "socket_connection_setup_timeout_ms",
            "socket_connection_setup_timeout_max_ms",
            SETUP_MIN_MS,
        )

    def connecting(self, link: Link, now_ms: int) -> None:
        """Note that an attempt begins, and set its time limit."""
        link.attempted_ms = now_ms
        link.setup_ms = self._setup.delay_ms(link.setup_failures)
        link.connect_deadline_ms = now_ms + link.setup_ms

    def ready(self, link: Link) -> None:
        """Note that the broker can take requests. The next connection is made to an address that is looked up again."""
        link.connect_deadline_ms = None
        link.failures = 0
        link.setup_failures = 0
        link.unreachable = False
        link.was_reached = True
        link.last_error = ""
        link.addresses = []

    def renew(self, link: Link, host: str, port: int) -> None:
        """Give the link the broker's new address, without the failures of the former one."""
        link.host, link.port = host, port
        link.retry_at_ms = 0
        self.ready(link)
        link.was_reached = False

    def broken(self, link: Link, now_ms: int) -> None:
        """Note that a connection that was ready has ended."""
        link.attempted_ms = now_ms
        self._back_off(link, now_ms)

    def failed(self, link: Link, now_ms: int) -> None:
        """Note that an attempt has failed. If the host has more addresses, the next one is tried without a pause."""
        link.attempted_ms = now_ms
        link.setup_failures += 1
        if not link.addresses:
            link.unreachable = True
            self._back_off(link, now_ms)

    def _back_off(self, link: Link, now_ms: int) -> None:
        link.retry_at_ms = now_ms + self._pause.delay_ms(link.failures)
        link.failures += 1
