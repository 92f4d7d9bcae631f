"""The contestants: each sends records in its own library's best way and waits until all are acknowledged.

All have acks=all, idempotence and a linger of 5 ms. confluent-kafka keeps its own default batch size
(1,000,000 bytes), which is its best, and gets room for a million messages in its queue.
"""

import abc
import secrets
from typing import Any

VALUES = 1000
ROWS_PER_CALL = 50_000
BATCH_PER_CALL = 1000
POLL_EVERY = 1000


class Contestant(abc.ABC):
    """One way to send."""

    unit = 1
    """``run`` is given multiples of this."""

    scale = 1
    """How many times the records of a round it gets, so that a round takes long enough to be measured."""

    def __init__(self, bootstrap: str, topic: str, value_bytes: int, settings: dict[str, Any]) -> None:
        self.topic = topic
        self.values = [secrets.token_hex(value_bytes)[:value_bytes].encode() for _ in range(VALUES)]
        self.value_bytes = value_bytes
        self.open(bootstrap, settings)

    @abc.abstractmethod
    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Make the producer."""

    @abc.abstractmethod
    def run(self, count: int) -> None:
        """Send ``count`` records; return when all are acknowledged. Raises if one is known to have failed."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the producer."""


class Cyproducer(Contestant):
    """What the contestants of this package share."""

    unit = VALUES

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """A producer whose sender outlives this process: other contestants have their turn in between."""
        from cyproducer import KafkaProducer

        # acks, linger_ms and enable_idempotence are the defaults, and named since they are what is compared.
        self.producer = KafkaProducer(
            **{
                "bootstrap_servers": bootstrap,
                "acks": "all",
                "linger_ms": 5,
                "enable_idempotence": True,
                "sender_idle_timeout_ms": 600_000,
                **settings,
            }
        )

    def close(self) -> None:
        """Detach."""
        self.producer.close()


class Send(Cyproducer):
    """``send()``, its future dropped, and a flush."""

    def run(self, count: int) -> None:
        """See Contestant."""
        send, topic, values = self.producer.send, self.topic, self.values
        for _ in range(count // VALUES):
            for value in values:
                send(topic, value)
        self.producer.flush()


class SendResult(Cyproducer):
    """``send()`` with every future kept, and then every offset read."""

    def run(self, count: int) -> None:
        """See Contestant."""
        send, topic, values = self.producer.send, self.topic, self.values
        futures = [send(topic, value) for _ in range(count // VALUES) for value in values]
        offsets = [future.result().offset for future in futures]
        if len(offsets) != count or min(offsets) < 0:
            raise RuntimeError("records without an offset")


class SendArray(Cyproducer):
    """``send_array()`` of a fixed-width array, 50,000 rows a call, and then the offsets of all."""

    unit = ROWS_PER_CALL
    scale = 4

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """The array holds the same values that the others send."""
        import numpy

        super().open(bootstrap, settings)
        rows = self.values * (ROWS_PER_CALL // VALUES)
        self.array = numpy.array(rows, dtype=f"S{self.value_bytes}")

    def run(self, count: int) -> None:
        """See Contestant."""
        send_array, topic, array = self.producer.send_array, self.topic, self.array
        futures = [send_array(topic, array) for _ in range(count // ROWS_PER_CALL)]
        rows = 0
        for future in futures:
            offsets = future.result().offset
            rows += len(offsets)
            if offsets.min() < 0:
                raise RuntimeError("records without an offset")
        if rows != count:
            raise RuntimeError(f"{rows} offsets for {count} records")


class Confluent(Contestant):
    """What the contestants of confluent-kafka share."""

    unit = VALUES
    extra: dict[str, Any] = {}  # noqa: RUF012 - read only

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """A producer with the same promises."""
        from confluent_kafka import Producer

        self.producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 5,
                "enable.idempotence": True,
                "queue.buffering.max.messages": 1_000_000,
                "queue.buffering.max.kbytes": 1 << 20,
                "log_level": 3,
                **self.extra,
                **settings,
            }
        )

    def flush(self) -> None:
        """Wait for every record."""
        left = self.producer.flush(120)
        if left:
            raise RuntimeError(f"{left} records are still in the queue")

    def close(self) -> None:
        """End the threads."""
        self.producer.flush(10)


class Produce(Confluent):
    """``produce()`` without a callback; Python hears of failures only, which is its fastest way."""

    extra = {"delivery.report.only.error": True}  # noqa: RUF012 - read only

    def run(self, count: int) -> None:
        """See Contestant."""
        produce, poll, topic, values = self.producer.produce, self.producer.poll, self.topic, self.values
        for _ in range(count // VALUES):
            for value in values:
                try:
                    produce(topic, value)
                except BufferError:
                    insist(self.producer, topic, value)
            poll(0)
        self.flush()


class ProduceCallback(Confluent):
    """``produce()`` with a delivery callback that keeps the offset."""

    def run(self, count: int) -> None:
        """See Contestant."""
        produce, poll, topic, values = self.producer.produce, self.producer.poll, self.topic, self.values
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            offsets.append(-1 if error is not None else message.offset())

        for _ in range(count // VALUES):
            for value in values:
                try:
                    produce(topic, value, on_delivery=delivered)
                except BufferError:
                    insist(self.producer, topic, value, delivered)
            poll(0)
        self.flush()
        if len(offsets) != count or min(offsets) < 0:
            raise RuntimeError("records without an offset")


class ProduceBatch(Confluent):
    """``produce_batch()`` of 1,000 ready-made dicts a call, without a callback."""

    extra = {"delivery.report.only.error": True}  # noqa: RUF012 - read only
    unit = BATCH_PER_CALL

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """The dicts are made once, as the array of ``send_array`` is."""
        super().open(bootstrap, settings)
        self.messages = [{"value": value} for value in self.values[:BATCH_PER_CALL]]

    def run(self, count: int) -> None:
        """See Contestant."""
        produce_batch, poll, topic, messages = (
            self.producer.produce_batch,
            self.producer.poll,
            self.topic,
            self.messages,
        )
        for _ in range(count // BATCH_PER_CALL):
            left = messages
            while produce_batch(topic, left) != len(left):
                # Those that the full queue refused carry an "_error"; the dicts are used again.
                left = [{"value": message["value"]} for message in left if message.pop("_error", None)]
                poll(0.01)
            poll(0)
        self.flush()


def insist(producer: Any, topic: str, value: bytes, callback: Any = None) -> None:
    """Produce to a queue that was full."""
    while True:
        producer.poll(0.01)
        try:
            if callback is None:
                producer.produce(topic, value)
            else:
                producer.produce(topic, value, on_delivery=callback)
        except BufferError:
            continue
        return


CONTESTANTS: dict[str, type[Contestant]] = {
    "send": Send,
    "produce": Produce,
    "send_result": SendResult,
    "produce_callback": ProduceCallback,
    "send_array": SendArray,
    "produce_batch": ProduceBatch,
}
"""In the order of a round."""

PAIRS: list[tuple[str, str, float | None]] = [
    ("send", "produce", 0.25),
    ("send_result", "produce_callback", None),
    ("send_array", "produce", 0.1),
    ("send_array", "produce_batch", None),
]
"""(ours, what a user of today would have instead, the share of its CPU per message that is the goal)."""
