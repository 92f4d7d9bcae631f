"""Reads, transforms and writes exactly once in asyncio, with the consumer of aiokafka.

``python transactions_aiokafka.py localhost:9092 orders invoices``. Start it several times, each with another last
argument: ``... orders invoices 2``. The workers share the partitions.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition

from cyproducer import KafkaProducer, errors
from cyproducer.group_offsets import stable_offset


def transform(value: bytes) -> bytes:
    return value.upper()


class Copier(ConsumerRebalanceListener):
    """Copies in transactions. The group assigns the partitions anew only between two of them.

    aiokafka assigns in another task. It also reads offsets that an open transaction is about to change, so this class
    seeks to the offsets by itself.
    """

    def __init__(self, consumer: AIOKafkaConsumer, producer: KafkaProducer, group: str, target: str) -> None:
        self.consumer = consumer
        self.producer = producer
        self.group = group
        self.target = target
        self.in_transaction = asyncio.Lock()
        self.is_assigned = False
        self.is_at_offsets = False

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        """Wait for the end of the transaction."""
        async with self.in_transaction:
            self.is_assigned = False

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        """Let the next step seek: aiokafka sends no heartbeats while this function runs."""
        self.is_assigned, self.is_at_offsets = True, False

    async def rewind(self) -> None:
        """Seek to the committed offsets. If the transaction of a last owner is still open, wait for its end."""
        for partition in self.consumer.assignment():
            offset = await asyncio.to_thread(stable_offset, self.producer, self.group, partition)
            if offset is None:
                await self.consumer.seek_to_beginning(partition)
            else:
                self.consumer.seek(partition, offset)

    async def step(self) -> int:
        """Do one transaction. Return the number of records."""
        async with self.in_transaction:
            if not self.is_assigned:
                return 0
            try:
                if not self.is_at_offsets:
                    await self.rewind()
                    self.is_at_offsets = True
            except errors.KafkaError as error:  # no record may be read before the offsets are known
                print(f"the committed offsets are not known yet: {error}", file=sys.stderr)
                return 0
            batches = await self.consumer.getmany()  # without a timeout: a rebalance waits for the lock
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
                await finish(self.producer.commit_transaction_async)
            except errors.KafkaError as error:
                await finish(self.producer.abort_transaction_async)  # raises if this producer cannot go on
                print(f"aborted, once more from the last committed offsets: {error}", file=sys.stderr)
                self.is_at_offsets = False
                return 0
            return sum(len(records) for records in batches.values())


async def finish(call: Callable[[], Awaitable[None]]) -> None:
    """Commit or abort. A call that has no result in time is repeated: only it can tell how the transaction ends."""
    while True:
        try:
            return await call()
        except errors.KafkaTimeoutError as error:
            print(f"once more: {error}", file=sys.stderr)


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
    copier = Copier(consumer, producer, f"{source}-{target}", target)
    consumer.subscribe([source], listener=copier)
    await consumer.start()
    copied, latest = 0, time.monotonic()
    while time.monotonic() - latest < float(idle_s):
        count = await copier.step()
        if count:
            copied, latest = copied + count, time.monotonic()
        await asyncio.sleep(0 if count else 0.05)  # a rebalance may wait for the end of the transaction
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


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
