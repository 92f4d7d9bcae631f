"""Requests producer ids from the brokers (InitProducerId), one at a time, as TransactionManager does in Kafka.

It also logs what a broker says about the state of a producer that the loop has asked for (DescribeProducers).
"""

import logging
import time

from cyproducer.codes import UNSUPPORTED_VERSION
from cyproducer.error_table import describe, error_of
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.broker import SAME_ERROR_LOGGED_EVERY_S
from cyproducer.sender.cluster.connection import NoAnswerError, UnusableAnswerError
from cyproducer.sender.cluster.connections import Connections
from cyproducer.sender.cluster.report import Report
from cyproducer.sender.engine.events import EventHandlers, ProducerIdWanted, ProducerStateDenied, ProducerStateLost
from cyproducer.sender.engine.native import Loop
from cyproducer.sender.system.tasks import Tasks, sleep

__all__ = ["ProducerIds"]

BODY = {"transactional_id": None, "transaction_timeout_ms": 2**31 - 1, "producer_id": -1, "producer_epoch": -1}


class ProducerIds:
    """Requests a producer id each time that the loop needs one."""

    def __init__(
        self,
        loop: Loop,
        connections: Connections,
        tasks: Tasks,
        backoff: ExponentialBackoff,
        report: Report,
        log: logging.Logger,
    ) -> None:
        self._loop = loop
        self._connections = connections
        self._tasks = tasks
        self._backoff = backoff
        self._report = report
        self._log = log
        self._is_running = False
        self._not_before_ms = 0
        self._attempts = 0
        self._logged = (0, 0.0)  # the error code that was logged last, and when
        self._denied: set[str] = set()  # topics

    def add_handlers(self, handlers: EventHandlers) -> None:
        """Say what is done for each event of the loop that is about producer ids."""
        handlers.add(ProducerIdWanted, self._on_wanted)
        handlers.add(ProducerStateLost, self._on_state_lost)
        handlers.add(ProducerStateDenied, self._on_state_denied)

    def _on_wanted(self, event: ProducerIdWanted, now_ms: int) -> None:
        if not self._is_running:
            self._is_running = True
            self._connections.add_user()
            self._tasks.start(self._run())

    async def _run(self) -> None:
        """Ask until the loop has a producer id, or its batches have failed."""
        while True:
            pause_ms = self._not_before_ms - self._tasks.now_ms
            if pause_ms > 0:
                await sleep(pause_ms)
            if await self._ask():
                break
        self._is_running = False
        self._connections.remove_user()

    async def _ask(self) -> bool:
        """Ask a broker once. Return whether the loop waits no longer."""
        connections = self._connections
        connection = connections.least_loaded(ApiKey.INIT_PRODUCER_ID)
        if connection is None:
            if connections.least_loaded() and not connections.knows(ApiKey.INIT_PRODUCER_ID):
                self._refuse(UNSUPPORTED_VERSION)
                return True
            await connections.changed.wait(connections.connect_any())
            return False
        try:
            body = await connection.ask_or_close(ApiKey.INIT_PRODUCER_ID, BODY)
        except UnusableAnswerError:  # a defect must not leave the batches without a producer id
            await sleep(self._backoff.base_ms)
            return False
        except NoAnswerError:
            return False
        code = body["error_code"]
        if code and error_of(code).retriable:
            self._set_error(code)
            return False
        if code:
            self._refuse(code)
            return True
        self._attempts = 0
        self._logged = (0, 0.0)
        self._report.set_error("")
        self._loop.set_producer_id(body["producer_id"], body["producer_epoch"])
        self._log.info("producer id %d, epoch %d", body["producer_id"], body["producer_epoch"])
        return True

    def _refuse(self, code: int) -> None:
        """Fail the batches that wait for the producer id, since a retry does not help.

        The next batch leads to another request, after a pause. Kafka's producer sends the next request without a pause,
        so as often as the broker answers.
        """
        self._set_error(code)
        self._loop.refuse_producer_id(code)

    def _set_error(self, code: int) -> None:
        """Delay the next request and publish the error. The same error is logged once a minute."""
        self._not_before_ms = self._tasks.now_ms + self._backoff.delay_ms(self._attempts)
        self._attempts += 1
        text = f"no producer id: {describe(code)}"
        self._report.set_error(text)
        logged_code, logged_s = self._logged
        now_s = time.monotonic()
        if code != logged_code or now_s >= logged_s + SAME_ERROR_LOGGED_EVERY_S:
            self._logged = code, now_s
            self._log.log(logging.INFO if error_of(code).retriable else logging.WARNING, "%s", text)

    # ------------------------------------------------------------ producer states

    def _on_state_lost(self, event: ProducerStateLost, now_ms: int) -> None:
        topic, partition = self._loop.partition_name(event.row)
        self._log.warning(
            "broker %s has lost the producer state for %s-%d (it expired, or was deleted with the records): "
            "batches that may be in the log fail with an unknown outcome, since the broker could append them twice",
            self._connections.name_of(event.node),
            topic,
            partition,
        )

    def _on_state_denied(self, event: ProducerStateDenied, now_ms: int) -> None:
        topic, _ = self._loop.partition_name(event.row)
        if topic not in self._denied:
            self._denied.add(topic)
            self._log.info(
                "broker %s does not say whether it has the producer state for topic %s (%s): grant READ on the topic; "
                "otherwise a batch can be appended twice if the broker loses that state between two attempts",
                self._connections.name_of(event.node),
                topic,
                describe(event.error),
            )
