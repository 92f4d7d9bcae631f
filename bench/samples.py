"""Reads samples of the records with code of other projects: aiokafka's decoder, confluent-kafka's consumer."""

from collections.abc import Sequence
from typing import NamedTuple

from bench.loads import Sent

MOST_READ = 500
CODECS = (None, "gzip", "snappy", "lz4", "zstd")
"""The codecs by their number in a batch's attributes."""


class Kept(NamedTuple):
    """The records of a sample and the codecs of its batches (None: uncompressed; empty set: not known)."""

    records: list[Sent]
    codecs: set[str | None]


def decode(batches: bytes) -> Kept:
    """Return the records and codecs in record batches. Raise ValueError if a batch's checksum is wrong."""
    from aiokafka.record.memory_records import MemoryRecords

    batch_source, kept = MemoryRecords(batches), Kept([], set())
    while (batch := batch_source.next_batch()) is not None:
        if not batch.validate_crc():
            raise ValueError("a batch's CRC-32C is wrong")
        kept.codecs.add(CODECS[batch.compression_type])
        kept.records.extend(Sent(record.value or b"", record.key, tuple(record.headers)) for record in batch)
    return kept


def read_sample(bootstrap: str, topic: str) -> Kept:
    """Return the first records of the first partitions of a topic, without codecs, which a consumer does not report."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 2}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
        filled = [n for n in partitions if consumer.get_watermark_offsets(TopicPartition(topic, n), 30)[1]][:4]
        records: list[Sent] = []
        if filled:
            consumer.assign([TopicPartition(topic, n, 0) for n in filled])
        while filled and len(records) < MOST_READ and (found := consumer.consume(MOST_READ, 0.5 if records else 10)):
            for message in found:
                if message.error() is not None:
                    raise RuntimeError(f"reading {topic} back failed: {message.error()}")
                records.append(Sent(message.value() or b"", message.key(), tuple(message.headers() or ())))
        return Kept(records, set())
    finally:
        consumer.close()


def count_committed(bootstrap: str, topics: Sequence[str]) -> int:
    """Return the number of committed records of topics, by confluent-kafka's consumer."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "log_level": 2,
            "isolation.level": "read_committed", "enable.partition.eof": True,
        }
    )  # fmt: skip
    found = 0
    try:
        for topic in topics:
            left = set(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, 0) for number in left])
            while left:
                messages = consumer.consume(10_000, 10)
                if not messages:
                    raise RuntimeError(f"the end of {topic} was not reached: a transaction is open")
                for message in messages:
                    error = message.error()
                    found += error is None
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        left.discard(message.partition())
        return found
    finally:
        consumer.close()
