"""Keeps the links of the second connections to brokers, by which slow partitions are sent.

The loop decides what is sent by them (cyproducer/sender/engine/network/slow_lanes.pyx).
"""

from collections.abc import Iterator
from typing import Any

from cyproducer.sender.brokers.broker import Link

__all__ = ["SlowLinks"]


class SlowLinks:
    """The links of the slow connections."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self._of: dict[int, Link] = {}  # by the index of the broker's node

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._of.values()))

    def of(self, broker: Link) -> Link | None:
        """Return the link of the slow connection of a broker; None if the first connection is not ready."""
        if broker.versions is None:
            return None
        link = self._of.get(broker.index)
        if link is None:
            link = Link(self._loop.add_slow_node(broker.index), broker.broker_id, broker.host, broker.port)
            link.use = " (slow partitions)"
            self._of[broker.index] = link
        return link

    def close(self, broker: Link) -> None:
        """Close the slow connection of a broker that has another address, or is not used any more."""
        link = self._of.get(broker.index)
        if link is not None:
            link.connect_deadline_ms = None
            self._loop.close_node(link.index)
