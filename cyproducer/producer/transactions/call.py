"""Holds one call of a transactional method: its deadline, and whether its caller still waits for it."""

import time

from cyproducer import errors

__all__ = ["Call", "CancelledCallError"]

# How soon the thread of a coroutine notices that its coroutine was cancelled.
_SLICE_S = 0.1


class CancelledCallError(Exception):
    """The coroutine that waited for this call was cancelled."""


class Call:
    """A call of the method `name`, which may take `timeout` seconds from now.

    `interruptible`: a coroutine waits for it, which may be cancelled meanwhile; then `cancelled` is set. `completed`
    says that the call has succeeded.
    """

    def __init__(self, name: str, timeout: float, interruptible: bool = False) -> None:
        self.name = name
        self.timeout = timeout
        self.began_ns = time.monotonic_ns()
        self.deadline = time.monotonic() + timeout
        self.interruptible = interruptible
        self.cancelled = False
        self.completed = False

    def left(self, longest: float = float("inf")) -> float:
        """Return how many seconds a wait may take now, at most `longest`. Call check() after it."""
        left = min(self.deadline - time.monotonic(), longest, _SLICE_S if self.interruptible else longest)
        return max(0.0, left)

    def check(self, reason: str) -> None:
        """Raise KafkaTimeoutError at the deadline, with the reason of the wait, and CancelledCallError."""
        if self.cancelled:
            raise CancelledCallError(self.name)
        if time.monotonic() >= self.deadline:
            raise errors.KafkaTimeoutError(
                f"{self.name}() has no result after {self.timeout:g} s: {reason}; call {self.name}() again"
            )
