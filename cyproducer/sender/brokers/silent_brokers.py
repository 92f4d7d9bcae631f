"""Ends the connections to brokers that cannot answer, so that their batches need not wait for request_timeout_ms.

A broker that hangs answers nothing, and its connection does not end. After some seconds the controller gives its
partitions to other brokers, and the metadata does not have it any more. Kafka's producer notices this after
request_timeout_ms. Here the loop reports a broker that is silent (EVENT_SILENT), and another one is asked which brokers
the cluster has, until the broker answers or is not one of them. See docs/decisions/silent-brokers.md.

A load balancer or a firewall may have forgotten an idle connection, and drops what is sent on it. The kernel tells that
nothing has been acknowledged since then. See docs/decisions/dropped-connections.md.
"""

from typing import TYPE_CHECKING

from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, Link
from cyproducer.sender.engine.native import Connections

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers

__all__ = ["SilentBrokers"]

ASK_EVERY_MS = 500
LOST = (
    "nothing that is sent reaches it, after the connection was idle; if a load balancer or a firewall drops idle "
    "connections, set connections_max_idle_ms to less than its limit"
)


class SilentBrokers:
    """The connections with a broker that does not answer."""

    def __init__(self, brokers: "Brokers", connections: Connections) -> None:
        self._brokers = brokers
        self._connections = connections
        self._silent: dict[int, Link] = {}  # by the index of the node
        self._ask_at_ms = 0

    def on_silent(self, link: Link) -> None:
        self._silent[link.index] = link

    def on_closed(self, link: Link) -> None:
        self._silent.pop(link.index, None)

    def maintain(self, now_ms: int) -> int:
        """Give up lost connections, and ask about the silent brokers. Return in how many ms something is due again."""
        for lost in [link for link in self._silent.values() if self._connections.is_lost(link.index)]:
            self._brokers.give_up(lost, LOST, now_ms)
        self._silent = {index: link for index, link in self._silent.items() if self._connections.is_silent(index)}
        if not self._silent:
            return NOTHING_DUE_MS
        if now_ms < self._ask_at_ms:
            return self._ask_at_ms - now_ms
        self._ask_at_ms = now_ms + ASK_EVERY_MS
        # A bootstrap address has no id that the cluster could name.
        ids = {link.broker_id for link in self._silent.values() if link.broker_id >= 0}
        if not ids:
            return ASK_EVERY_MS
        free, busy = self._brokers.node_choice.ready(ApiKey.METADATA, without=ids)
        link = free or busy
        if link is None:
            return min(ASK_EVERY_MS, self._brokers.connect_any(now_ms))
        if link.sasl is None:  # else the question would wait with those of the next half seconds
            # An empty list of topics: the answer has the brokers only, and no topic is created.
            self._brokers.request(link, ApiKey.METADATA, {"topics": []}, self._on_answer)
        return ASK_EVERY_MS

    def _on_answer(self, link: Link, payload: bytes, now_ms: int) -> None:
        answer = self._brokers.take_answer(link, ApiKey.METADATA, payload, exact=False)
        present = {broker["node_id"] for broker in answer["brokers"]}
        if answer["error_code"] or not present:
            return
        named = [silent for silent in self._silent.values() if silent.broker_id >= 0]
        for silent in named:
            if silent.broker_id not in present and self._connections.is_silent(silent.index):
                text = "the broker does not answer, and is not one of the cluster any more"
                self._brokers.give_up(silent, text, now_ms)
