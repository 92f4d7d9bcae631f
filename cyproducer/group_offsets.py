"""Asks for the offsets of a consumer group that no open transaction can change any more."""

from typing import Protocol

from cyproducer.observe.transactions import committed_offset
from cyproducer.producer.producer import KafkaProducer
from cyproducer.producer.shared_transaction import sender_of

__all__ = ["stable_offset"]


class TopicPartition(Protocol):
    """What `stable_offset` uses of a partition: those of kafka-python, confluent-kafka and aiokafka have it."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...


def stable_offset(producer: KafkaProducer, group_id: str, partition: TopicPartition) -> int | None:
    """Return the offset that a group has committed for a partition, or None if it has committed none.

    If a transaction with an offset of the partition is open, wait for its end. The consumers of kafka-python and
    confluent-kafka with isolation.level=read_committed do that themselves. That of aiokafka does not: it may begin at
    an older offset, and read records again that the transaction has processed. So with aiokafka, seek to this offset
    whenever partitions are assigned.

    The call blocks; in asyncio, use asyncio.to_thread(). Raise TransactionQueryError if the transaction is still open
    after 30 s or the brokers refuse, SenderUnavailableError.

    Source: OffsetFetch with RequireStable, KIP-447.
    """
    found = committed_offset(sender_of(producer).address, group_id, partition.topic, partition.partition)
    return None if found.offset < 0 else found.offset
