"""Reads a topic back with an independent client (confluent-kafka)."""

import time
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

Header = tuple[str, bytes | None]


@dataclass(slots=True)
class ReadRecords:
    """The records read: parallel lists, in the order of arrival (by offset within a partition)."""

    partition: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    key: list[bytes | None] = field(default_factory=list)
    value: list[bytes | None] = field(default_factory=list)
    headers: list[list[Header]] = field(default_factory=list)
    timestamp: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.offset)

    def values_of(self, partition: int) -> list[bytes | None]:
        """Return the values of one partition in the order of their offsets."""
        return [v for p, v in zip(self.partition, self.value, strict=True) if p == partition]


def read_topic(
    bootstrap_servers: str, topic: str, count: int, timeout: float = 30.0, isolation: str = "read_committed"
) -> ReadRecords:
    """Read a topic from its beginning until it holds ``count`` records and its end is reached.

    Records after the first ``count`` are read as well, so that ``len(result) == count`` finds duplicates. Fail with
    the number of records if fewer than ``count`` arrive within ``timeout`` seconds.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 50,
            "fetch.error.backoff.ms": 50,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    try:
        found = consumer.list_topics(topic, timeout=timeout).topics[topic]
        if found.error is not None:
            raise AssertionError(f"topic {topic}: {found.error}")
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in found.partitions])
        return _read(consumer, set(found.partitions), count, timeout)
    finally:
        consumer.close()


def _read(consumer: Consumer, partitions: set[int], count: int, timeout: float) -> ReadRecords:
    read = ReadRecords()
    at_end: set[int] = set()
    deadline = time.monotonic() + timeout
    while len(read) < count or at_end != partitions:
        if time.monotonic() > deadline:
            raise AssertionError(f"{len(read)} of {count} records arrived within {timeout:g} s")
        for message in consumer.consume(10_000, 0.1):
            error = message.error()
            if error is None:
                at_end.discard(message.partition())
                read.partition.append(message.partition())
                read.offset.append(message.offset())
                read.key.append(message.key())
                read.value.append(message.value())
                read.headers.append(message.headers() or [])
                read.timestamp.append(message.timestamp()[1])
            elif error.code() == KafkaError._PARTITION_EOF:
                at_end.add(message.partition())
            elif not error.retriable() and error.fatal():
                raise AssertionError(f"the consumer failed: {error}")
    return read
