"""Defines the contestants of confluent-kafka with its default batch size (1,000,000 bytes), which is its best one."""

from typing import Any, ClassVar

from bench.contestants.base import Contestant, Headed, Keyed, Topics, new_transactional_id
from bench.loads import HEADERS, Load

BATCH_PER_CALL = 1000
POLL_EVERY = 1000


class Confluent(Contestant):
    """The common part of its contestants: room for a million messages, the same promises, reports of failures only."""

    library = "confluent-kafka"
    own: ClassVar = {
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1 << 20,
        "message.max.bytes": 2_000_000,
        "log_level": 3,
    }
    reports = False
    """Whether delivery reports of success are asked for."""

    @classmethod
    def promises(cls, load: Load) -> dict[str, Any]:
        """See Contestant. The names are those of Kafka."""
        told = {name.replace("_", "."): value for name, value in super().promises(load).items()}
        return told if cls.reports else {**told, "delivery.report.only.error": True}

    @classmethod
    def trusting(cls, authority: str) -> dict[str, Any]:
        """See Contestant."""
        return {"ssl.ca.location": authority}

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Make a producer with the same promises."""
        from confluent_kafka import Producer

        self.producer = Producer({"bootstrap.servers": bootstrap, **self.given(self.load, settings)})

    def close(self) -> None:
        """End the threads."""
        self.producer.flush(10)

    def flush(self) -> None:
        """Wait for every record."""
        left = self.producer.flush(120)
        if left:
            raise RuntimeError(f"{left} records are still in the queue")

    finish = flush

    def serve(self) -> None:
        """See Contestant."""
        self.producer.poll(0)

    def one(self, number: int) -> None:
        """Call `produce()`."""
        self.producer.produce(self.topic, self.values[number % len(self.values)])

    def insist(self, topic: str, value: bytes, key: bytes | None = None, **more: Any) -> None:
        """Retry a `produce()` that a full queue has refused, until the queue accepts it."""
        while True:
            self.producer.poll(0.01)
            try:
                self.producer.produce(topic, value, key, **more)
            except BufferError:
                continue
            return


class Produce(Confluent):
    """`produce()` without a callback, which is its fastest way."""

    def run(self, count: int) -> None:
        """See Contestant."""
        produce, poll, topic, values = self.producer.produce, self.producer.poll, self.topic, self.values
        for _ in range(count // len(values)):
            for value in values:
                try:
                    produce(topic, value)
                except BufferError:
                    self.insist(topic, value)
            poll(0)
        self.flush()


class ProduceKeyed(Keyed, Confluent):
    """`produce()` with random keys of 16 bytes."""

    def run(self, count: int) -> None:
        """See Contestant."""
        produce, poll, topic, pairs = self.producer.produce, self.producer.poll, self.topic, self.pairs
        for _ in range(count // len(pairs)):
            for at in range(0, len(pairs), POLL_EVERY):
                for value, key in pairs[at : at + POLL_EVERY]:
                    try:
                        produce(topic, value, key)
                    except BufferError:
                        self.insist(topic, value, key)
                poll(0)
        self.flush()

    def one(self, number: int) -> None:
        """See Contestant."""
        self.producer.produce(self.topic, *self.pairs[number % len(self.pairs)])


class ProduceHeaders(Headed, Confluent):
    """`produce()` with two headers."""

    def run(self, count: int) -> None:
        """See Contestant."""
        produce, poll, topic, values = self.producer.produce, self.producer.poll, self.topic, self.values
        for _ in range(count // len(values)):
            for value in values:
                try:
                    produce(topic, value, headers=HEADERS)
                except BufferError:
                    self.insist(topic, value, headers=HEADERS)
            poll(0)
        self.flush()


class ProduceTopics(Topics, Confluent):
    """`produce()` to all topics in turn."""

    def run(self, count: int) -> None:
        """See Contestant."""
        produce, poll, pairs = self.producer.produce, self.producer.poll, self.pairs
        for _ in range(count // len(pairs)):
            for topic, value in pairs:
                try:
                    produce(topic, value)
                except BufferError:
                    self.insist(topic, value)
            poll(0)
        self.flush()


class ProduceCallback(Confluent):
    """`produce()` with a delivery callback that keeps the offset."""

    reports = True

    def run(self, count: int) -> None:
        """See Contestant."""
        produce, poll, topic, values = self.producer.produce, self.producer.poll, self.topic, self.values
        offsets: list[int] = []

        def delivered(error: Any, message: Any) -> None:
            offsets.append(-1 if error is not None else message.offset())

        for _ in range(count // len(values)):
            for value in values:
                try:
                    produce(topic, value, on_delivery=delivered)
                except BufferError:
                    self.insist(topic, value, on_delivery=delivered)
            poll(0)
        self.flush()
        if len(offsets) != count or min(offsets) < 0:
            raise RuntimeError("records without an offset")

    def round_trip(self, number: int) -> None:
        """Call `produce()`, and `poll()` until the callback has run."""
        done: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            done.append(error)

        self.producer.produce(self.topic, self.values[number % len(self.values)], on_delivery=delivered)
        while not done:
            self.producer.poll(1)
        if done[0] is not None:
            raise RuntimeError(f"a record failed: {done[0]}")


class ProduceBatch(Confluent):
    """`produce_batch()` of 1,000 ready-made dicts a call, without a callback."""

    @classmethod
    def unit(cls, load: Load) -> int:
        """Return the number of messages of a call."""
        return min(BATCH_PER_CALL, load.value_count())

    def run(self, count: int) -> None:
        """See Contestant."""
        produce_batch, poll, topic = self.producer.produce_batch, self.producer.poll, self.topic
        messages = [{"value": value} for value in self.values[:BATCH_PER_CALL]]
        for _ in range(count // len(messages)):
            left = messages
            while produce_batch(topic, left) != len(left):
                # Those that the full queue refused carry an "_error"; the dicts are used again.
                left = [{"value": message["value"]} for message in left if message.pop("_error", None)]
                poll(0.01)
            poll(0)
        self.flush()


class ProduceTransactions(Confluent):
    """Transactions of `produce()`, one after the other."""

    @classmethod
    def unit(cls, load: Load) -> int:
        """Return the records of a transaction."""
        return load.transaction

    @classmethod
    def given(cls, load: Load, settings: dict[str, Any]) -> dict[str, Any]:
        """See Contestant. Each producer has a transactional id of its own."""
        return {**super().given(load, settings), "transactional.id": new_transactional_id()}

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Make a producer, and let it get its producer id."""
        super().open(bootstrap, settings)
        self.producer.init_transactions(60)

    def run(self, count: int) -> None:
        """See Contestant."""
        producer, produce, poll, topic, values = (
            self.producer, self.producer.produce, self.producer.poll, self.topic, self.values
        )  # fmt: skip
        for first in range(0, count, self.load.transaction):
            producer.begin_transaction()
            for number in range(first, first + self.load.transaction):
                try:
                    produce(topic, values[number % len(values)])
                except BufferError:
                    self.insist(topic, values[number % len(values)])
            poll(0)
            producer.commit_transaction(60)

    def round_trip(self, number: int) -> None:
        """Do a transaction of one record."""
        self.producer.begin_transaction()
        self.producer.produce(self.topic, self.values[number % len(self.values)])
        self.producer.commit_transaction(60)
