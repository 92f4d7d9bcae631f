"""Keeps the links of the second connections to brokers, by which slow partitions are sent, and asks brokers by them.

The loop decides what is sent by them (cyproducer/sender/engine/slow_lanes.pyx).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.broker import Link
from cyproducer.sender.engine.native import Connections, Loop

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers

__all__ = ["SlowLinks"]


class SlowLinks:
    """The links of the slow connections."""

    def __init__(self, brokers: "Brokers", loop: Loop, connections: Connections) -> None:
        self._brokers = brokers
        self._loop = loop
        self._connections = connections
        self._of: dict[int, Link] = {}  # by the index of the broker's node

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._of.values()))

    def ask(self, broker: Link, now_ms: int) -> None:
        """Ask a broker for its versions by the slow connection, which is opened to the address of the first one.

        An answer shows that the broker does not hang, while a request of the first connection is late.
        """
        link = self._link_of(broker)
        if link is None or broker.peer is None or self._brokers.is_closed(broker):
            return
        self._brokers.by_index[link.index] = link
        if link.versions is not None and self._connections.note_asked(link.index):
            self._brokers.request(link, ApiKey.API_VERSIONS, {}, self._on_answer, version=0)
        elif self._brokers.is_closed(link) and link.retry_at_ms <= now_ms:
            link.host, link.port = broker.host, broker.port
            self._brokers.connect_to(link, broker.peer)

    def _on_answer(self, link: Link, payload: bytes, now_ms: int) -> None:
        self._connections.note_answered(link.index)

    def _link_of(self, broker: Link) -> Link | None:
        """Return the link of the slow connection of a broker; None if the first connection is not ready."""
        if broker.versions is None:
            return None
        link = self._of.get(broker.index)
        if link is None:
            link = Link(self._connections.add_slow(broker.index), broker.broker_id, broker.host, broker.port)
            link.use = " (slow partitions)"
            self._of[broker.index] = link
        return link

    def close(self, broker: Link) -> None:
        """Close the slow connection of a broker that has another address, or is not used any more."""
        link = self._of.get(broker.index)
        if link is not None:
            link.connect_deadline_ms = None
            self._loop.close_node(link.index)
