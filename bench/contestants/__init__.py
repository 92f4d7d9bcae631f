"""Lists the contestants by name, and defines the one that sends nothing."""

from typing import Any

from bench.contestants.aio import AiokafkaBatch, AiokafkaSend
from bench.contestants.bare import BareTransactions
from bench.contestants.base import Contestant, NotSupportedError
from bench.contestants.confluent import (
    Produce,
    ProduceBatch,
    ProduceCallback,
    ProduceHeaders,
    ProduceKeyed,
    ProduceTopics,
    ProduceTransactions,
)
from bench.contestants.java import ProducerPerformance
from bench.contestants.kafka_python import KafkaPython
from bench.contestants.ours import (
    Cyproducer,
    Send,
    SendArray,
    SendArrayOffsets,
    SendArrow,
    SendDelivery,
    SendHeaders,
    SendKept,
    SendKeyed,
    SendKeyedMebibyte,
    SendMebibyte,
    SendTopics,
    SendTransactions,
)
from bench.loads import Load

__all__ = ["CONTESTANTS", "Contestant", "Cyproducer", "NotSupportedError"]


class Nobody(Contestant):
    """No client at all: the cost of the load's own loop, which is subtracted from that of the others."""

    library = "none"

    @classmethod
    def given(cls, load: Load, settings: dict[str, Any]) -> dict[str, Any]:
        """Return no settings."""
        return {}

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Do nothing: there is no producer."""

    def run(self, count: int) -> None:
        """Count to `count`."""
        for _ in range(count):
            pass

    def one(self, number: int) -> None:
        """Choose the value, as the others do, and do not send it."""
        self.values[number % len(self.values)]

    def close(self) -> None:
        """Do nothing: there is no producer."""


CONTESTANTS: dict[str, type[Contestant]] = {
    "send": Send,
    "send_keyed": SendKeyed,
    "send_mebibyte": SendMebibyte,
    "send_keyed_mebibyte": SendKeyedMebibyte,
    "send_headers": SendHeaders,
    "send_topics": SendTopics,
    "send_kept": SendKept,
    "send_delivery": SendDelivery,
    "send_array": SendArray,
    "send_array_offsets": SendArrayOffsets,
    "send_arrow": SendArrow,
    "send_transactions": SendTransactions,
    "confluent": Produce,
    "confluent_keyed": ProduceKeyed,
    "confluent_headers": ProduceHeaders,
    "confluent_topics": ProduceTopics,
    "confluent_callback": ProduceCallback,
    "confluent_batch": ProduceBatch,
    "confluent_transactions": ProduceTransactions,
    "bare_transactions": BareTransactions,
    "kafka_python": KafkaPython,
    "aiokafka": AiokafkaSend,
    "aiokafka_batch": AiokafkaBatch,
    "java": ProducerPerformance,
    "none": Nobody,
}
