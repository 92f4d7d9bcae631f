"""Decides when the bootstrap servers are asked for the cluster again (KIP-899, KIP-1102)."""

from collections.abc import Collection
from typing import Any

from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, Link

__all__ = ["TRIGGER_MIN_MS", "Rebootstrap"]

TRIGGER_MIN_MS = 1000  # metadata_recovery_rebootstrap_trigger_ms: a broker must be able to answer within this time


class Rebootstrap:
    """Knows since when metadata is needed in vain. With the strategy "none" it never asks for a rebootstrap.

    As in Kafka, the time begins when a request is due, and ends with a usable response.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.enabled = settings["metadata_recovery_strategy"] == "rebootstrap"
        self._trigger_ms = max(int(settings["metadata_recovery_rebootstrap_trigger_ms"]), TRIGGER_MIN_MS)
        self._since_ms: int | None = None

    def begin(self, now_ms: int) -> None:
        """Note that a metadata request is due. The time does not begin again before `end()`."""
        if self._since_ms is None:
            self._since_ms = now_ms

    def end(self) -> None:
        """Note that usable metadata was obtained, or that the bootstrap servers are asked now."""
        self._since_ms = None

    def due_ms(self, now_ms: int) -> int:
        """Return in how many ms the time without metadata is over; 0 or less: it is over."""
        if not self.enabled or self._since_ms is None:
            return NOTHING_DUE_MS
        return self._since_ms + self._trigger_ms - now_ms

    def is_needed(self, known: Collection[Link]) -> bool:
        """Return whether none of the known brokers could be reached."""
        return self.enabled and bool(known) and all(link.unreachable for link in known)
