"""Detaches the front-ends that break the protocol of the shared memory, and keeps why."""

from cyproducer.sender.cluster.metadata import Metadata
from cyproducer.sender.engine.events import Violated, Violation
from cyproducer.sender.engine.native import FrontEnds

__all__ = ["Violations"]

_REASONS: dict[int, str] = {
    Violation.RING: "its submission ring claims more entries than it can hold",
    Violation.HINT: "its submission ring has an invalid entry",
    Violation.CHAIN: "a batch that it committed is not a valid chain of records",
    Violation.CHANGED: "it changed a batch after it had committed it",
    Violation.TOPIC: "it committed a batch with a topic number that it had not looked up",
}


class Violations:
    """Detaches each such front-end at once. The control server ends its connection later."""

    def __init__(self, front_ends: FrontEnds, metadata: Metadata) -> None:
        self._front_ends = front_ends
        self._metadata = metadata
        self._found: list[tuple[int, str]] = []

    def on_event(self, event: Violated, now_ms: int) -> None:
        """Detach a front-end."""
        self._metadata.drop(event.attach_id)
        self._front_ends.detach(event.attach_id)
        self._found.append((event.attach_id, _REASONS.get(event.reason, str(event.reason))))

    def take(self) -> list[tuple[int, str]]:
        """Return (attach id, what is wrong) of the front-ends that were detached since the last call."""
        found, self._found = self._found, []
        return found
