"""Limits the messages that each connection may send, so that a flood of messages delays only that connection.

The connections of an admitted user (not the owner) have one budget together: more connections give no more messages.
"""

from collections.abc import Callable
from typing import Any

from cyproducer.sender.control.peers import OWNER

__all__ = ["MessageBudget"]

BURST = 64  # messages that a connection may send at once
MESSAGES_PER_S = 1000  # messages that it may send per second after the burst; each takes some 30 microseconds
MESSAGE_BYTES = 2048  # a larger message counts as several
PAUSE_MESSAGES = 32  # messages that it may send after a pause; some loop iterations pass during a pause


class MessageBudget:
    """Pauses connections that have sent too much: until the end of the pause the sender reads nothing from them.

    Messages that they send meanwhile stay in their sockets.
    """

    def __init__(self, engine: Any, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock
        #: By descriptor, or by ("user", account): (messages that may be sent, at which time).
        self._credits: dict[int | tuple[str, int], tuple[float, float]] = {}
        self.until: dict[int, float] = {}  # by descriptor: the end of its pause

    def may_begin(self, fd: int, account: int) -> bool:
        """Return whether a message may be read from the connection now; False if it is paused from now on.

        A new connection of a user who has sent too much waits as well, also for its first message.
        """
        payer = _payer(fd, account)
        credit, since = self._credits.get(payer, (float(BURST), 0.0))
        missing = 1 - credit - (self._clock() - since) * MESSAGES_PER_S
        if missing <= 0:
            return True
        self.pause(fd, missing / MESSAGES_PER_S)
        return False

    def may_go_on(self, fd: int, account: int, size: int) -> bool:
        """Count one message that was read from the connection; False if the connection is paused from now on.

        account   as in peers.py
        size      the bytes of the message, and what its answer counts
        """
        now = self._clock()
        payer = _payer(fd, account)
        credit, since = self._credits.get(payer, (float(BURST), now))
        credit = min(credit + (now - since) * MESSAGES_PER_S, BURST) - max(1, -(-size // MESSAGE_BYTES))
        self._credits[payer] = credit, now
        if credit >= 1:
            return True
        # A large message, or another connection of the user, may have used more than there was.
        self.pause(fd, (PAUSE_MESSAGES - min(0.0, credit)) / MESSAGES_PER_S)
        return False

    def pause(self, fd: int, seconds: float = PAUSE_MESSAGES / MESSAGES_PER_S) -> None:
        """Read nothing from a connection for a while."""
        self._engine.unwatch(fd)
        self.until[fd] = self._clock() + seconds

    def forget_full(self) -> None:
        """Forget the users that may send as many messages at once as a new one."""
        now = self._clock()
        for payer, (credit, since) in list(self._credits.items()):
            if isinstance(payer, tuple) and credit + (now - since) * MESSAGES_PER_S >= BURST:
                del self._credits[payer]

    def give_back(self, fd: int, account: int) -> None:
        """Do not count a message of the connection."""
        payer = _payer(fd, account)
        if payer in self._credits:
            credit, since = self._credits[payer]
            self._credits[payer] = min(credit + 1, float(BURST)), since

    def wake(self) -> None:
        """Resume the connections whose pause is over."""
        now = self._clock()
        for fd in [fd for fd, until in self.until.items() if until <= now]:
            del self.until[fd]
            self._engine.watch(fd)

    def drop(self, fd: int) -> None:
        """Forget a connection that has ended."""
        self._credits.pop(fd, None)
        self.forget_full()
        self.until.pop(fd, None)


def _payer(fd: int, account: int) -> int | tuple[str, int]:
    """Return whose messages those of the connection are."""
    return fd if account == OWNER else ("user", account)
