"""Chooses the broker that gets a request which any broker can answer (leastLoadedNode in Kafka's NetworkClient).

Only brokers of the current metadata are candidates. A connected broker with the fewest requests in flight is best; if
several have the same number, one of them is drawn. If none can take a request, a connection that is being made is
waited for. Otherwise the broker is connected to whose last attempt is the longest ago.
"""

import random
from collections.abc import Container

from cyproducer.cluster.metadata import ClusterMetadata
from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, Link
from cyproducer.sender.engine.native import Loop

__all__ = ["NodeChoice"]

LOOKUP_WAIT_MS = 1000  # after this time another bootstrap server is tried during a name look-up
BUSY_WAIT_MS = 50  # a connection that takes no request is looked at again after this time


class NodeChoice:
    """Chooses among `links`, by the states of their connections in the loop."""

    def __init__(self, metadata: ClusterMetadata, links: dict[int, Link], loop: Loop) -> None:
        self._metadata = metadata
        self._links = links
        self._loop = loop

    def _candidates(self) -> list[Link]:
        """Return the links of the current metadata's brokers, in random order."""
        links = [self._links[broker_id] for broker_id in self._metadata.brokers if broker_id in self._links]
        random.shuffle(links)
        return links

    def knows(self, api: ApiKey) -> bool:
        """Return whether a connected broker supports the API."""
        return any(link.versions is not None and api in link.versions for link in self._candidates())

    def ready(self, api: ApiKey, without: Container[int] = ()) -> tuple[Link | None, Link | None]:
        """Return the least loaded broker that can take a request, and the least loaded one that has no room for it.

        `without`: the ids of brokers that are passed over.
        """
        free: list[tuple[int, Link]] = []
        busy: list[tuple[int, Link]] = []
        for link in self._candidates():
            if link.versions is None or api not in link.versions or link.broker_id in without:
                continue
            state, in_flight = self._loop.connection_state(link.index)  # it may have closed since the last event
            if state == "ready" and not self._loop.throttled_ms(link.index):
                (free if self._loop.takes_requests(link.index) else busy).append((in_flight, link))
        return _least(free), _least(busy)

    def any_other(self, now_ms: int) -> bool:
        """Return whether another broker is being connected to, or can be connected to now."""
        for link in self._candidates():
            state, _ = self._loop.connection_state(link.index)
            if state in ("connecting", "negotiating"):
                return True
            if state == "closed" and link.resolving and now_ms < link.resolving_since_ms + LOOKUP_WAIT_MS:
                return True
            if state == "closed" and not link.resolving and not self.pause_ms(link, now_ms):
                return True
        return False

    def to_connect(self, now_ms: int) -> tuple[int, Link | None]:
        """Return in how many ms to look again, and the broker to connect to now; None: wait for a connection."""
        due_ms = NOTHING_DUE_MS
        connecting = False
        closed = []
        for link in self._candidates():
            state, _ = self._loop.connection_state(link.index)
            if state == "closed":
                closed.append(link)
            elif state == "ready":
                due_ms = min(due_ms, self._loop.throttled_ms(link.index) or BUSY_WAIT_MS)
            else:
                connecting = True  # its next event comes soon
        if connecting:
            return due_ms, None
        waits_ms = [link.resolving_since_ms + LOOKUP_WAIT_MS - now_ms for link in closed if link.resolving]
        if waits_ms and max(waits_ms) > 0:
            return min(due_ms, max(waits_ms)), None
        idle = [link for link in closed if not link.resolving]
        if not idle:
            return due_ms, None
        return min(due_ms, LOOKUP_WAIT_MS), min(idle, key=lambda link: (self.pause_ms(link, now_ms), link.attempted_ms))

    def pause_ms(self, link: Link, now_ms: int) -> int:
        """Return for how many ms the broker must not be connected to: it could not be reached, or it throttles."""
        throttled_ms: int = self._loop.throttled_ms(link.index)
        return max(link.retry_at_ms - now_ms, throttled_ms, 0)


def _least(links: list[tuple[int, Link]]) -> Link | None:
    return min(links, key=lambda each: each[0])[1] if links else None
