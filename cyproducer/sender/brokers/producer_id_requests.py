"""Requests producer ids from the brokers (InitProducerId), one at a time, as TransactionManager does in Kafka."""

import logging
import time
from typing import TYPE_CHECKING

from cyproducer.cluster.backoff import ExponentialBackoff
from cyproducer.error_table import describe, error_of
from cyproducer.protocol.versions import UNSUPPORTED_VERSION, ApiKey
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, SAME_ERROR_LOGGED_EVERY_S, Link
from cyproducer.sender.engine.native import Loop

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers

__all__ = ["ProducerIdRequests"]

BODY = {"transactional_id": None, "transaction_timeout_ms": 2**31 - 1, "producer_id": -1, "producer_epoch": -1}


class ProducerIdRequests:
    """Requests a producer id when the loop needs one. `wanted`: the loop waits for a producer id."""

    def __init__(self, brokers: "Brokers", loop: Loop, backoff: ExponentialBackoff, log: logging.Logger) -> None:
        self.wanted = False
        self.asked: Link | None = None  # the broker of the request in flight
        self._brokers = brokers
        self._loop = loop
        self._backoff = backoff
        self._log = log
        self._at_ms = 0
        self._attempts = 0
        self._logged = (0, 0.0)  # the error code that was logged last, and when

    def on_closed(self, link: "Link") -> None:
        """Drop the request in flight if its connection has ended."""
        if self.asked is link:
            self.asked = None

    def maintain(self, now_ms: int) -> int:
        """Send the request if it is due. Return in how many ms something is due again."""
        if not self.wanted or self.asked is not None:
            return NOTHING_DUE_MS
        if self._at_ms > now_ms:
            return self._at_ms - now_ms
        link = self._brokers.least_loaded(ApiKey.INIT_PRODUCER_ID)
        if link is not None:
            self.asked = link
            self._brokers.request(link, ApiKey.INIT_PRODUCER_ID, BODY, self._on_response)
            return NOTHING_DUE_MS
        if self._brokers.least_loaded() and not self._brokers.node_choice.knows(ApiKey.INIT_PRODUCER_ID):
            self._refuse(UNSUPPORTED_VERSION, now_ms)
            return NOTHING_DUE_MS
        return self._brokers.connect_any(now_ms)

    def _on_response(self, link: "Link", payload: bytes, now_ms: int) -> None:
        self.asked = None
        body = self._brokers.take_answer(link, ApiKey.INIT_PRODUCER_ID, payload)
        code = body["error_code"]
        if code and error_of(code).retriable:
            self._note_error(code, now_ms)
        elif code:
            self._refuse(code, now_ms)
        else:
            self.wanted = False
            self._attempts = 0
            self._logged = (0, 0.0)
            self._brokers.note_status("")
            self._loop.set_producer_id(body["producer_id"], body["producer_epoch"])
            self._log.info("producer id %d, epoch %d", body["producer_id"], body["producer_epoch"])

    def _refuse(self, code: int, now_ms: int) -> None:
        """Fail the batches that wait for the producer id, since a retry does not help.

        The next batch leads to another request, after a pause. Kafka's producer sends the next request without a pause,
        so as often as the broker answers.
        """
        self.wanted = False
        self._note_error(code, now_ms)
        self._loop.refuse_producer_id(code)

    def _note_error(self, code: int, now_ms: int) -> None:
        """Delay the next request and publish the error. The same error is logged once a minute."""
        self._at_ms = now_ms + self._backoff.delay_ms(self._attempts)
        self._attempts += 1
        text = f"no producer id: {describe(code)}"
        self._brokers.note_status(text)
        logged_code, logged_s = self._logged
        now_s = time.monotonic()
        if code != logged_code or now_s >= logged_s + SAME_ERROR_LOGGED_EVERY_S:
            self._logged = code, now_s
            self._log.log(logging.INFO if error_of(code).retriable else logging.WARNING, "%s", text)
