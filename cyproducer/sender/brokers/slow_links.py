"""Opens a second connection to a broker for its slow partitions, when the loop asks for it.

It is opened to the address of the first connection. If that fails, the loop sends by the first connection and asks
again later. The loop decides what is sent by it (cyproducer/sender/engine/network/slow_lanes.pyx).
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

    def to_open(self, broker: Link, now_ms: int) -> Link | None:
        """Return the link of the slow connection to open now; None if it must wait, or is open already."""
        if broker.versions is None or broker.peer is None:
            return None
        link = self._of.get(broker.index)
        if link is None:
            link = Link(self._loop.add_slow_node(broker.index), broker.broker_id, broker.host, broker.port)
            link.use = " (slow partitions)"
            self._of[broker.index] = link
        if self._loop.connection_state(link.index)[0] != "closed" or link.retry_at_ms > now_ms:
            return None
        link.host, link.port = broker.host, broker.port
        return link

    def close(self, broker: Link) -> None:
        """Close the slow connection of a broker that has another address, or is not used any more."""
        link = self._of.get(broker.index)
        if link is not None:
            link.connect_deadline_ms = None
            self._loop.close_node(link.index)
