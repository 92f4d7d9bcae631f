"""Tests what users of trio get: an error that names the way, and that way."""

import pytest
import trio
from standin_sender import attach

from cyproducer import KafkaProducer

TEXT = r"no asyncio event loop.*trio\.to_thread\.run_sync\(future\.result\)"


def test_awaiting_is_refused_and_the_error_names_the_way(sender, producer, made):
    async def main():
        future = producer.send("one", b"v")
        rows = producer.send_array("one", [b"v"])
        for refused in (
            lambda: producer.send_async("one", b"v"),
            lambda: producer.send_and_wait("one", b"v"),
            producer.flush_async,
            other.close_async,
            lambda: future,
            lambda: rows,
            made.init_transactions_async,
            lambda: made.send_async("one", b"v"),
        ):
            with pytest.raises(RuntimeError, match=TEXT):
                await refused()
        sender.release()
        assert (await trio.to_thread.run_sync(future.result)).offset == 0

    attach(producer, "one")
    sender.hold = True
    other = KafkaProducer(sender=sender.path)
    other.send("one", b"v")
    trio.run(main)
    other.close()


def test_many_tasks_send_in_threads(sender):
    offsets = []

    async def task(producer):
        future = await trio.to_thread.run_sync(producer.send, "one", bytes(50_000))
        offsets.append((await trio.to_thread.run_sync(future.result)).offset)

    async def main():
        with KafkaProducer(sender=sender.path, buffer_memory=1 << 20) as producer:
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(task, producer)

    trio.run(main)
    assert sorted(offsets) == list(range(50))
