"""Defines the contestant of kafka-python."""

from typing import Any, ClassVar

from bench.contestants.base import Contestant


class KafkaPython(Contestant):
    """`send()`, its future dropped, and a flush."""

    library = "kafka-python"
    scale = 0.05
    own: ClassVar = {"batch_size": 65536, "max_request_size": 2_000_000}

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Make a producer with the same promises."""
        from kafka import KafkaProducer

        self.producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), **self.given(self.load, settings))

    def run(self, count: int) -> None:
        """See Contestant."""
        send, topic, values = self.producer.send, self.topic, self.values
        for _ in range(count // len(values)):
            for value in values:
                send(topic, value)
        self.producer.flush(120)

    def round_trip(self, number: int) -> None:
        """Call `send().get()`."""
        self.producer.send(self.topic, self.values[number % len(self.values)]).get(60)

    def close(self) -> None:
        """End the thread."""
        self.producer.close(10)
