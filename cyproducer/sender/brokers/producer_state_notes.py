"""Logs what a broker says about the state of a producer that the loop has asked for (DescribeProducers)."""

import logging
from typing import Any

from cyproducer.error_table import describe
from cyproducer.sender.brokers.broker import Link

__all__ = ["ProducerStateNotes"]


class ProducerStateNotes:
    """Logs each loss of a state, and once for each topic that a broker denies the answer."""

    def __init__(self, loop: Any, log: logging.Logger) -> None:
        self._loop = loop
        self._log = log
        self._denied: set[str] = set()

    def note(self, link: Link, kind: str, row: int, error: int) -> None:
        """Take the event "state_lost" or "state_denied" about the partition in `row` of the loop's table."""
        topic, partition = self._loop.partition_name(row)
        if kind == "state_lost":
            self._log.warning(
                "broker %s has lost the producer state for %s-%d (it expired, or was deleted with the records): "
                "batches that may be in the log fail with an unknown outcome, since the broker could append them twice",
                link.name,
                topic,
                partition,
            )
        elif topic not in self._denied:
            self._denied.add(topic)
            self._log.info(
                "broker %s does not say whether it has the producer state for topic %s (%s): grant READ on the topic; "
                "otherwise a batch can be appended twice if the broker loses that state between two attempts",
                link.name,
                topic,
                describe(error),
            )
