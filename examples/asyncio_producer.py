"""Publishes from asyncio without ever blocking the loop: ``python asyncio_producer.py localhost:9092 topic``."""

import asyncio
import sys

from cyproducer import KafkaProducer

RECORDS = 10_000


async def publish(producer: KafkaProducer, topic: str, number: int) -> int:
    """Send a record and return its offset. The loop runs while this waits for metadata, memory or the outcome."""
    future = await producer.send_async(topic, key=b"%d" % (number % 10), value=b"%d" % number)
    record = await future
    return record.offset


async def main(brokers: str, topic: str) -> None:
    """Send ten thousand records at once, and await each of them."""
    async with KafkaProducer(bootstrap_servers=brokers) as producer:
        offsets = await asyncio.gather(*(publish(producer, topic, number) for number in range(RECORDS)))
    print(f"{len(offsets)} records written")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
