"""Defines the contestants of aiokafka."""

from typing import Any, ClassVar

from bench.contestants.base import Contestant


class Aiokafka(Contestant):
    """The common part of its contestants: an event loop of their own, batches of 128 KiB."""

    library = "aiokafka"
    scale = 0.2
    own: ClassVar = {"max_batch_size": 131072, "max_request_size": 2_000_000}

    def open(self, bootstrap: str, settings: dict[str, Any]) -> None:
        """Make a producer with the same promises, and its loop."""
        import asyncio

        from aiokafka import AIOKafkaProducer

        self.runner = asyncio.Runner()

        async def start() -> Any:
            producer = AIOKafkaProducer(bootstrap_servers=bootstrap, **self.given(self.load, settings))
            await producer.start()
            return producer

        self.producer = self.runner.run(start())

    def run(self, count: int) -> None:
        """See Contestant."""
        self.runner.run(self.send_all(count))

    async def send_all(self, count: int) -> None:
        """Send as `run` describes."""
        raise NotImplementedError

    def close(self) -> None:
        """End the producer and the loop."""
        self.runner.run(self.producer.stop())
        self.runner.close()


class AiokafkaSend(Aiokafka):
    """`await send()`, its future dropped, and a flush."""

    async def send_all(self, count: int) -> None:
        """See Aiokafka."""
        send, topic, values = self.producer.send, self.topic, self.values
        for _ in range(count // len(values)):
            for value in values:
                await send(topic, value)
        await self.producer.flush()

    def round_trip(self, number: int) -> None:
        """Call `send_and_wait()`, and run the loop until it returns."""
        value = self.values[number % len(self.values)]
        self.runner.run(self.producer.send_and_wait(self.topic, value))


class AiokafkaBatch(Aiokafka):
    """`create_batch()`, filled until it is full, and `send_batch()` to the partitions in turn."""

    scale = 1.0

    async def send_all(self, count: int) -> None:
        """See Aiokafka."""
        import asyncio

        producer, topic, values = self.producer, self.topic, self.values
        partitions, number, acknowledged = self.load.partitions, 0, []
        batch = producer.create_batch()
        for _ in range(count // len(values)):
            for value in values:
                if batch.append(key=None, value=value, timestamp=None) is None:
                    batch.close()
                    acknowledged.append(await producer.send_batch(batch, topic, partition=number % partitions))
                    number += 1
                    batch = producer.create_batch()
                    batch.append(key=None, value=value, timestamp=None)
        batch.close()
        acknowledged.append(await producer.send_batch(batch, topic, partition=number % partitions))
        await asyncio.gather(*acknowledged)
