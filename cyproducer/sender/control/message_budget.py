"""Limits the messages that each connection may send, so that a flood of messages delays only that connection."""

from collections.abc import Callable
from typing import Any

__all__ = ["MessageBudget"]

BURST = 64  # messages that a connection may send at once
MESSAGES_PER_S = 1000  # messages that it may send per second after the burst; each takes some 30 microseconds
PAUSE_MESSAGES = 32  # messages that it may send after a pause; some loop iterations pass during a pause


class MessageBudget:
    """Pauses connections that have sent too much: until the end of the pause the sender reads nothing from them.

    Messages that they send meanwhile stay in their sockets.
    """

    def __init__(self, engine: Any, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        self._credits: dict[int, tuple[float, float]] = {}  # by descriptor: (messages that it may send, at which time)
        self.until: dict[int, float] = {}  # by descriptor: the end of its pause

    def may_go_on(self, fd: int) -> bool:
        """Count one message that was read from the connection; False if the connection is paused from now on."""
        now = self._clock()
        credit, since = self._credits.get(fd, (float(BURST), now))
        credit = min(credit + (now - since) * MESSAGES_PER_S, BURST) - 1
        self._credits[fd] = credit, now
        if credit >= 1:
            return True
        self._engine.unwatch(fd)
        self.until[fd] = now + PAUSE_MESSAGES / MESSAGES_PER_S
        return False

    def wake(self) -> None:
        """Resume the connections whose pause is over."""
        now = self._clock()
        for fd in [fd for fd, until in self.until.items() if until <= now]:
            del self.until[fd]
            self._engine.watch(fd)

    def drop(self, fd: int) -> None:
        """Forget a connection that has ended."""
        self._credits.pop(fd, None)
        self.until.pop(fd, None)
