"""Ends the connections to brokers that do not answer and have left the cluster, so that their batches need not wait.

A broker that hangs answers nothing, and its connection does not end. After some seconds the controller gives its
partitions to other brokers, and the metadata does not have it any more. Kafka's producer notices this after
request_timeout_ms. Here the loop reports a broker that is silent (EVENT_SILENT), and another one is asked which brokers
the cluster has, until the broker answers or is not one of them. See docs/decisions/silent-brokers.md.
"""

from typing import TYPE_CHECKING, Any

from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, Link

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers

__all__ = ["SilentBrokers"]

ASK_EVERY_MS = 500


class SilentBrokers:
    """The connections with a broker that does not answer."""

    def __init__(self, brokers: "Brokers", connections: Any) -> None:
        self._brokers = brokers
        self._connections = connections
        self._silent: dict[int, Link] = {}  # by the index of the node
        self._ask_at_ms = 0

    def on_silent(self, link: Link) -> None:
        if link.broker_id >= 0:  # a bootstrap address has no id that the cluster could name
            self._silent[link.index] = link

    def on_closed(self, link: Link) -> None:
        self._silent.pop(link.index, None)

    def maintain(self, now_ms: int) -> int:
        """Ask about the silent brokers if that is due. Return in how many ms something is due again."""
        self._silent = {index: link for index, link in self._silent.items() if self._connections.is_silent(index)}
        if not self._silent:
            return NOTHING_DUE_MS
        if now_ms < self._ask_at_ms:
            return self._ask_at_ms - now_ms
        self._ask_at_ms = now_ms + ASK_EVERY_MS
        ids = {link.broker_id for link in self._silent.values()}
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
        for silent in list(self._silent.values()):
            if silent.broker_id not in present and self._connections.is_silent(silent.index):
                text = "the broker does not answer, and is not one of the cluster any more"
                self._brokers.give_up(silent, text, now_ms)
