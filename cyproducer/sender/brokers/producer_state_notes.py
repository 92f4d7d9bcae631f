"""Logs what a broker says about the state of a producer that the loop has asked for (DescribeProducers)."""

import logging

from cyproducer.error_table import describe
from cyproducer.sender.brokers.broker import Link
from cyproducer.sender.engine.events import ProducerStateDenied, ProducerStateLost
from cyproducer.sender.engine.native import Loop

__all__ = ["ProducerStateNotes"]


class ProducerStateNotes:
    """Logs each loss of a state, and once for each topic that a broker denies the answer."""

    def __init__(self, loop: Loop, log: logging.Logger) -> None:
        self._loop = loop
        self._log = log
        self._denied: set[str] = set()

    def on_lost(self, link: Link, event: ProducerStateLost) -> None:
        topic, partition = self._loop.partition_name(event.row)
        self._log.warning(
            "broker %s has lost the producer state for %s-%d (it expired, or was deleted with the records): "
            "batches that may be in the log fail with an unknown outcome, since the broker could append them twice",
            link.name,
            topic,
            partition,
        )

    def on_denied(self, link: Link, event: ProducerStateDenied) -> None:
        topic, _ = self._loop.partition_name(event.row)
        if topic not in self._denied:
            self._denied.add(topic)
            self._log.info(
                "broker %s does not say whether it has the producer state for topic %s (%s): grant READ on the topic; "
                "otherwise a batch can be appended twice if the broker loses that state between two attempts",
                link.name,
                topic,
                describe(event.error),
            )
