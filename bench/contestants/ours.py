"""Defines the contestants of this package."""

from typing import Any, ClassVar

from bench.contestants.base import Contestant, Headed, Keyed, NotSupportedError, Topics, new_transactional_id
from bench.loads import HEADERS, Load

ROWS_PER_CALL = 50_000
ARRAY_BYTES = 8 << 20
# Longer than the turn of the others takes, so that the same sender serves all rounds.
SENDER_IDLE_MS = 120_000


class Cyproducer(Contestant):
    """The common part of its contestants. acks, linger and idempotence are the defaults, but set: they are compared."""

    library = "cyproducer"
    own: ClassVar = {"sender_idle_timeout_ms": SENDER_IDLE_MS}

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Make a producer whose sender outlives this process."""
        from cyproducer import KafkaProducer
        from cyproducer.errors import KafkaConfigurationError

        try:
            self.producer = KafkaProducer(bootstrap_servers=bootstrap, **self.given(self.load, settings))
        except KafkaConfigurationError as error:
            if "not supported yet" in str(error):
                raise NotSupportedError(str(error)) from None
            raise

    def close(self) -> None:
        """Detach."""
        self.producer.close()

    def one(self, number: int) -> None:
        """Call `send()` and drop its future."""
        self.producer.send(self.topic, self.values[number % len(self.values)])

    def round_trip(self, number: int) -> None:
        """Call `send().result()`."""
        self.producer.send(self.topic, self.values[number % len(self.values)]).result(60)

    def finish(self) -> None:
        """See Contestant."""
        self.producer.flush(60)


class Send(Cyproducer):
    """`send()`, its future dropped, and a flush."""

    def run(self, count: int) -> None:
        """See Contestant."""
        send, topic, values = self.producer.send, self.topic, self.values
        for _ in range(count // len(values)):
            for value in values:
                send(topic, value)
        self.producer.flush()


class SendKeyed(Keyed, Cyproducer):
    """`send()` with random keys of 16 bytes."""

    def run(self, count: int) -> None:
        """See Contestant."""
        send, topic, pairs = self.producer.send, self.topic, self.pairs
        for _ in range(count // len(pairs)):
            for value, key in pairs:
                send(topic, value, key)
        self.producer.flush()

    def one(self, number: int) -> None:
        """See Contestant."""
        self.producer.send(self.topic, *self.pairs[number % len(self.pairs)])


class SendHeaders(Headed, Cyproducer):
    """`send()` with two headers."""

    def run(self, count: int) -> None:
        """See Contestant."""
        send, topic, values = self.producer.send, self.topic, self.values
        for _ in range(count // len(values)):
            for value in values:
                send(topic, value, headers=HEADERS)
        self.producer.flush()


class SendMebibyte(Send):
    """`send()` with the largest batches that a default request holds."""

    own: ClassVar = {**Cyproducer.own, "batch_size": 1 << 20}


class SendKeyedMebibyte(SendKeyed):
    """`send()` with random keys, and the largest batches that a default request holds."""

    own: ClassVar = {**Cyproducer.own, "batch_size": 1 << 20}


class SendTopics(Topics, Cyproducer):
    """`send()` to all topics in turn."""

    def run(self, count: int) -> None:
        """See Contestant."""
        send, pairs = self.producer.send, self.pairs
        for _ in range(count // len(pairs)):
            for topic, value in pairs:
                send(topic, value)
        self.producer.flush()


class SendKept(Cyproducer):
    """`send()` with every future kept, and then every offset read."""

    def run(self, count: int) -> None:
        """See Contestant."""
        send, topic, values = self.producer.send, self.topic, self.values
        futures = [send(topic, value) for _ in range(count // len(values)) for value in values]
        offsets = [future.result().offset for future in futures]
        if len(offsets) != count or min(offsets) < 0:
            raise RuntimeError("records without an offset")


class SendDelivery(Cyproducer):
    """`send()` with an `on_delivery` that keeps the offset."""

    def run(self, count: int) -> None:
        """See Contestant."""
        send, topic, values = self.producer.send, self.topic, self.values
        offsets: list[int] = []

        def delivered(error: Any, record: Any) -> None:
            offsets.append(-1 if error is not None else record.offset)

        for _ in range(count // len(values)):
            for value in values:
                send(topic, value, on_delivery=delivered)
        self.producer.flush()
        if len(offsets) != count or min(offsets) < 0:
            raise RuntimeError("records without an offset")


class SendArray(Cyproducer):
    """`send_array()` of a fixed-width array, 50,000 rows a call, and then the offsets of all."""

    scale = 8.0

    @classmethod
    def unit(cls, load: Load) -> int:
        """Return the number of rows of a call."""
        return max(1, min(ROWS_PER_CALL, ARRAY_BYTES // load.value_bytes))

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Make the producer, and an array of the same values that the others send."""
        super().open(bootstrap, settings)
        rows, values = self.unit(self.load), self.values
        self.array = self.array_of([values[i % len(values)] for i in range(rows)])

    def array_of(self, rows: list[bytes]) -> Any:
        """Return the argument of `send_array`."""
        import numpy

        return numpy.array(rows, dtype=f"S{self.load.value_bytes}")

    def run(self, count: int) -> None:
        """See Contestant."""
        send_array, topic, array = self.producer.send_array, self.topic, self.array
        futures = [send_array(topic, array) for _ in range(count // self.unit(self.load))]
        rows = 0
        for future in futures:
            offsets = future.result().offset
            rows += len(offsets)
            if offsets.min() < 0:
                raise RuntimeError("records without an offset")
        if rows != count:
            raise RuntimeError(f"{rows} offsets for {count} records")


class SendArrayOffsets(SendArray):
    """`send_array()` of a `(data, offsets)` pair."""

    def array_of(self, rows: list[bytes]) -> Any:
        """See SendArray."""
        import numpy

        offsets = numpy.zeros(len(rows) + 1, dtype=numpy.int64)
        numpy.cumsum([len(row) for row in rows], out=offsets[1:])
        return numpy.frombuffer(b"".join(rows), dtype=numpy.uint8), offsets


class SendArrow(SendArray):
    """`send_array()` of an Arrow array of binary."""

    def array_of(self, rows: list[bytes]) -> Any:
        """See SendArray."""
        import pyarrow

        return pyarrow.array(rows, type=pyarrow.binary())


class SendTransactions(Cyproducer):
    """Transactions of `send()`, one after the other, with the batch size of confluent_transactions."""

    own: ClassVar = {**Cyproducer.own, "batch_size": 1_000_000}

    @classmethod
    def unit(cls, load: Load) -> int:
        """Return the records of a transaction."""
        return load.transaction

    @classmethod
    def given(cls, load: Load, settings: dict[str, Any]) -> dict[str, Any]:
        """See Contestant. Each producer has a transactional id of its own."""
        return {**super().given(load, settings), "transactional_id": new_transactional_id()}

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Make a producer, and let it get its producer id."""
        super().open(bootstrap, settings)
        self.producer.init_transactions()

    def run(self, count: int) -> None:
        """See Contestant."""
        producer, send, topic, values = self.producer, self.producer.send, self.topic, self.values
        for first in range(0, count, self.load.transaction):
            producer.begin_transaction()
            for number in range(first, first + self.load.transaction):
                send(topic, values[number % len(values)])
            producer.commit_transaction()

    def round_trip(self, number: int) -> None:
        """Do a transaction of one record."""
        self.producer.begin_transaction()
        self.producer.send(self.topic, self.values[number % len(self.values)])
        self.producer.commit_transaction()
