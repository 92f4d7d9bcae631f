"""Reads, transforms and writes exactly once in asyncio, with the consumer of aiokafka.

``python transactions_aiokafka.py localhost:9092 orders invoices``. Start it several times, each with another last
argument: ``... orders invoices 2``. The workers share the partitions.
"""

import asyncio
import sys
import time
from types import SimpleNamespace

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from cyproducer import KafkaProducer, errors


def transform(value: bytes) -> bytes:
    return value.upper()


class Copier(ConsumerRebalanceListener):
    """Copies in transactions. The group assigns the partitions anew only between two of them.

    aiokafka does that in another task, and reads offsets also if their transaction is not complete yet.
    """

    def __init__(self, consumer: AIOKafkaConsumer, producer: KafkaProducer, target: str) -> None:
        self.consumer = consumer
        self.producer = producer
        self.target = target
        self.in_transaction = asyncio.Lock()
        self.done: dict[TopicPartition, int] = {}

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Wait until the next owner of a partition cannot read an older offset than the committed one."""
        async with self.in_transaction:
            for partition in self.done.keys() & revoked:
                while (await self.consumer.committed(partition) or 0) < self.done[partition]:
                    await asyncio.sleep(0.01)
            self.done.clear()

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Nothing is needed here."""

    async def step(self) -> int:
        """Do one transaction. Return the number of records."""
        async with self.in_transaction:
            batches = await self.consumer.getmany(timeout_ms=500)
            if not batches:
                return 0
            group = member_of(self.consumer)
            offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
            self.producer.begin_transaction()
            try:
                for records in batches.values():
                    for record in records:
                        await self.producer.send_async(self.target, transform(record.value), key=record.key)
                await self.producer.send_offsets_to_transaction_async(offsets, group)
                await self.producer.commit_transaction_async()
            except errors.KafkaError as error:
                await self.producer.abort_transaction_async()  # raises if this producer cannot go on
                print(f"aborted, once more from the last committed offsets: {error}", file=sys.stderr)
                await rewind(self.consumer)
                return 0
            self.done |= offsets
            return sum(len(records) for records in batches.values())


async def main(brokers: str, source: str, target: str, worker: str = "1", idle_s: str = "10") -> None:
    """Copy the records of one topic to another, until nothing has come for `idle_s` seconds."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=brokers,
        group_id=f"{source}-{target}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,  # the transactions commit the offsets
        isolation_level="read_committed",
        session_timeout_ms=10_000,  # then another worker has the partitions of one that was killed
    )
    producer = KafkaProducer(bootstrap_servers=brokers, transactional_id=f"{source}-{target}-{worker}")
    await producer.init_transactions_async()
    copier = Copier(consumer, producer, target)
    consumer.subscribe([source], listener=copier)
    await consumer.start()
    copied, latest = 0, time.monotonic()
    while time.monotonic() - latest < float(idle_s):
        count = await copier.step()
        if count:
            copied, latest = copied + count, time.monotonic()
        await asyncio.sleep(0)  # the rebalance may wait for the end of the transaction
    print(f"{copied} records copied")
    await consumer.stop()
    await asyncio.to_thread(producer.close)


def member_of(consumer: AIOKafkaConsumer) -> SimpleNamespace:
    """Return the member of the group, so that the broker refuses the offsets of one that has lost its partitions.

    aiokafka has no public method for it.
    """
    coordinator = consumer._coordinator
    return SimpleNamespace(
        group_id=coordinator.group_id, generation_id=coordinator.generation, member_id=coordinator.member_id
    )


async def rewind(consumer: AIOKafkaConsumer) -> None:
    """Let the consumer read again what the aborted transaction had read."""
    for partition in consumer.assignment():
        offset = await consumer.committed(partition)
        if offset is None:
            await consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, offset)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
