"""Tests producers with asyncio: no operation may block the event loop."""

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable

from devkafka.node import KafkaCluster
from numbered import numbers_by_key
from support.consumer import ReadRecords

from cyproducer import errors

TICK_S = 0.010
LATE_S = 0.050
ROUNDS = 5
ROUND_S = 1.0


def test_ten_thousand_awaited_sends(
    run_example: Callable[..., str], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    assert run_example("asyncio_producer.py", topic) == "10000 records written\n"
    # Sends that run at the same time are unordered; awaited one by one, they are in order (below).
    found = numbers_by_key(arrived(topic, 10_000))
    assert {key: sorted(numbers) for key, numbers in found.items()} == {
        b"%d" % i: list(range(i, 10_000, 10)) for i in range(10)
    }


async def latest_tick(seconds: float) -> float:
    """Return by how many seconds a 10 ms ticker was late at worst."""
    worst = 0.0
    end = time.monotonic() + seconds
    due = time.monotonic() + TICK_S
    while due < end:
        await asyncio.sleep(due - time.monotonic())
        now = time.monotonic()
        worst = max(worst, now - due)
        due = max(due, now) + TICK_S
    return worst


def test_a_ticker_is_in_time_while_the_broker_stalls_and_memory_is_full(
    kafka: KafkaCluster,
    make_producer: Callable[..., object],
    topic: str,
    arrived: Callable[..., ReadRecords],
) -> None:
    """The promise is about this loop, not about a busy machine: one undisturbed round of five is enough.

    A send that blocked the loop would make every round late by seconds, since the broker stays stopped.
    """
    producer = make_producer(buffer_memory=1 << 20, max_block_ms=60_000)
    value = bytes(20_000)

    async def publish() -> int:
        future = await producer.send_async(topic, value)
        return (await future).offset

    async def main() -> list[float]:
        await publish()
        kafka.pause()
        pending = [asyncio.create_task(publish()) for _ in range(200)]
        worst = []
        for _ in range(ROUNDS):
            worst.append(await latest_tick(ROUND_S))
            if worst[-1] < LATE_S:
                break
        available = producer.metrics()["producer-metrics"]
        assert available["waiting-threads"] > 100, available
        assert not any(task.done() for task in pending)
        kafka.resume()
        assert len(await asyncio.gather(*pending)) == 200
        return worst

    worst = asyncio.run(main())
    assert min(worst) < LATE_S, f"the ticker was late by {[f'{w * 1000:.0f} ms' for w in worst]}"
    arrived(topic, 201)


def test_a_full_buffer_raises_in_time_and_the_producer_goes_on(
    kafka: KafkaCluster,
    make_producer: Callable[..., object],
    topic: str,
    arrived: Callable[..., ReadRecords],
) -> None:
    producer = make_producer(buffer_memory=1 << 20, max_block_ms=2000)

    async def main() -> tuple[int, int]:
        await (await producer.send_async(topic, b"first"))
        kafka.pause()
        tried = await asyncio.gather(
            *(producer.send_async(topic, bytes(20_000)) for _ in range(100)), return_exceptions=True
        )
        refused = [each for each in tried if isinstance(each, Exception)]
        assert {type(each) for each in refused} == {errors.BufferExhaustedError}
        kafka.resume()
        accepted = [each for each in tried if not isinstance(each, Exception)]
        await asyncio.gather(*accepted)
        await (await producer.send_async(topic, b"last"))
        return len(accepted), len(refused)

    accepted, refused = asyncio.run(main())
    assert accepted >= 20
    assert refused >= 20
    arrived(topic, accepted + 2)


def test_a_loop_for_each_job_in_eight_threads(
    make_producer: Callable[..., object], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    """As asynchronous views of a WSGI application do: each job has a loop of its own, which ends with it."""
    producer = make_producer()

    async def publish(number: int) -> int:
        future = await producer.send_async(topic, key=b"job", value=b"%d" % number)
        return (await future).offset

    with concurrent.futures.ThreadPoolExecutor(8) as pool:  # raises what a job has raised
        offsets = list(pool.map(lambda number: asyncio.run(publish(number)), range(2000)))
    (found,) = numbers_by_key(arrived(topic, 2000)).values()
    assert sorted(found) == list(range(2000))
    assert [found[offset] for offset in offsets] == list(range(2000))


def test_two_loops_in_two_threads(
    make_producer: Callable[..., object], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    producer = make_producer()
    raised: list[BaseException] = []

    async def publish(key: bytes) -> None:
        for start in range(0, 1000, 100):
            futures = [await producer.send_async(topic, key=key, value=b"%d" % i) for i in range(start, start + 100)]
            await asyncio.gather(*futures)

    def run(key: bytes) -> None:
        try:
            asyncio.run(publish(key))
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(key,)) for key in (b"one", b"two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []
    found = numbers_by_key(arrived(topic, 2000))
    assert found == {b"one": list(range(1000)), b"two": list(range(1000))}
