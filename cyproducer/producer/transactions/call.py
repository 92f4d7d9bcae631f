"""Holds one call of a transactional method: its transaction, its deadline, and the thread or event loop that waits."""

import threading

from cyproducer import errors
from cyproducer.producer.transactions.waits import Waits
from cyproducer.shm import system_clock

__all__ = ["Call"]


class Call:
    """A call of the method `name`, which may take `timeout` seconds from start() on.

    begun   the number of the transaction for which it was made
    """

    def __init__(self, name: str, timeout: float, begun: int) -> None:
        self.name = name
        self.timeout = timeout
        self.begun = begun

    def start(self, waits: Waits) -> None:
        """Begin to count the time, in the thread that runs the call."""
        self.waits = waits
        self.thread = threading.get_ident()
        self.began_ns = system_clock.monotonic_ns()
        self.deadline = system_clock.monotonic() + self.timeout

    @property
    def is_async(self) -> bool:
        """Whether an event loop runs the call."""
        return self.waits.loop is not None

    def is_stranded(self) -> bool:
        """Return whether the event loop of the call does not run any more."""
        return self.waits.loop is not None and not self.waits.loop.is_running()

    def left(self, longest: float = float("inf")) -> float:
        """Return how many seconds a wait may take now, at most `longest`. Call check() after it."""
        return max(0.0, min(self.deadline - system_clock.monotonic(), longest))

    def check(self, reason: str) -> None:
        """Raise KafkaTimeoutError at the deadline, with the reason of the wait."""
        if system_clock.monotonic() >= self.deadline:
            raise errors.KafkaTimeoutError(
                f"{self.name}() has no result after {self.timeout:g} s: {reason}; call {self.name}() again"
            )
