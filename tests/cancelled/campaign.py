"""Executes transactions in an event loop: their calls are cancelled after random times and repeated until they end."""

import asyncio
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from transactional.check import Report, read_committed

from cyproducer import KafkaProducer, errors
from cyproducer.observe.status import status, stop

PRODUCERS = 20
LONGEST_S = 0.04
"""The calls take some milliseconds: most limits are shorter, and some are longer."""
REPEATED_MAX = 30
"""From then on a call has no limit, so that each transaction ends."""
TO_ABORT, WITH_OFFSETS, LATE = 0.2, 0.3, 0.1
_PROGRESS_S = 10.0


@dataclass
class Plan:
    """The number of transactions and of busy threads, and the seed of the random times."""

    transactions: int
    threads: int
    seed: int


class Worker:
    """One transactional producer, and what it knows of its transactions."""

    def __init__(self, servers: str, topic: str, number: int, plan: Plan, result: Report) -> None:
        self.number, self.topic, self.result = number, topic, result
        self.group = f"{topic}-{number}"
        self.random = random.Random(f"{plan.seed} {number}")
        self.producer = KafkaProducer(bootstrap_servers=servers, transactional_id=self.group, max_block_ms=120_000)
        #: Transaction -> (its number of records, whether it is committed).
        self.told: dict[int, tuple[int, bool]] = {}
        self.committed_offset = -1
        self.late: Coroutine[Any, Any, None] | None = None

    async def run(self, numbers: "list[int]") -> None:
        """Take the next number of a transaction until none is left."""
        await self.insist(self.producer.init_transactions_async)
        while numbers:
            await self.one(numbers.pop())
        if self.late is not None:
            self.late.close()
        await asyncio.to_thread(self.producer.close, 60)

    async def insist(self, call: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
        """Repeat a call, which is cancelled after a random time, until it returns. Every error is a defect."""
        for attempt in range(REPEATED_MAX + 1):
            limit = None if attempt == REPEATED_MAX else self.random.random() * LONGEST_S
            try:
                if self.random.random() < 0.5:
                    await asyncio.wait_for(call(*arguments), limit)
                else:
                    await self._cancel(call(*arguments), limit)
                return
            except (TimeoutError, asyncio.CancelledError):
                self.result.counts["cancelled calls"] += 1
            except errors.KafkaError as error:
                self.result.defects.append(f"{self.group}: attempt {attempt} of {call.__name__}: {error!r}")
                raise

    async def _cancel(self, call: Coroutine[Any, Any, None], limit: float | None) -> None:
        task = asyncio.ensure_future(call)
        await asyncio.wait([task], timeout=limit)
        task.cancel()
        await task

    async def one(self, number: int) -> None:
        """Do one transaction."""
        count = self.random.randint(2, 4)
        self.producer.begin_transaction()
        await self._send(number, 0, count)
        await self._start_late_call()
        offset = None
        if self.random.random() < WITH_OFFSETS:
            offset = len(self.told) + 1
            offsets = {(self.topic, 0): offset}
            await self.insist(self.producer.send_offsets_to_transaction_async, offsets, self.group)
        for index in range(1, count):
            await self._send(number, index, count)
        if self.random.random() < LATE:
            made = self.producer.abort_transaction_async, self.producer.commit_transaction_async
            self.late = self.random.choice(made)()
        commits = self.random.random() >= TO_ABORT
        end = self.producer.commit_transaction_async if commits else self.producer.abort_transaction_async
        await self.insist(end)
        self.told[number] = count, commits
        if commits and offset is not None:
            self.committed_offset = offset
        self.result.counts["committed" if commits else "aborted"] += 1

    async def _send(self, number: int, index: int, count: int) -> None:
        value = b"%d/%d/%d/%d" % (self.number, number, index, count)
        await self.producer.send_async(self.topic, value, partition=0)

    async def _start_late_call(self) -> None:
        """Start a call that was made in the transaction before."""
        late, self.late = self.late, None
        if late is None:
            return
        try:
            await late
            self.result.defects.append(f"{self.group}: a call of the transaction before has had an effect")
        except errors.IllegalStateError:
            self.result.counts["late calls that were refused"] += 1


def run(plan: Plan, servers: str, topic: str, progress: bool = False) -> Report:
    """Run the transactions of a plan beside busy threads, and compare them with what readers of the topic see."""
    result = Report()
    stopped = threading.Event()
    threads = [threading.Thread(target=_spin, args=(stopped,), daemon=True) for _ in range(plan.threads)]
    for thread in threads:
        thread.start()
    try:
        workers = asyncio.run(_run_all(plan, servers, topic, result, progress))
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
        for found in status(timeout=5):
            stop(found["socket"], timeout=30)
    _check_records(result, workers, servers, topic)
    _check_offsets(result, workers, servers, topic)
    return result


def _spin(stopped: threading.Event) -> None:
    while not stopped.is_set():
        sum(range(1000))


async def _run_all(plan: Plan, servers: str, topic: str, result: Report, progress: bool) -> list[Worker]:
    workers = [Worker(servers, topic, number, plan, result) for number in range(PRODUCERS)]
    numbers = list(range(plan.transactions))
    tasks = [asyncio.create_task(worker.run(numbers)) for worker in workers]
    shown = time.monotonic()
    while not all(task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=1)
        if progress and time.monotonic() - shown > _PROGRESS_S:
            shown = time.monotonic()
            print(f"{plan.transactions - len(numbers)}/{plan.transactions}", file=sys.stderr, flush=True)
    for task in tasks:
        error = task.exception()
        if error is not None:
            result.defects.append(f"a producer has ended: {error!r}")
    return workers


def _check_records(result: Report, workers: list[Worker], servers: str, topic: str) -> None:
    """Check that each committed transaction is visible once and whole, and no other one."""
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    for _, _, value in read_committed(servers, topic):
        worker, number, index, _ = map(int, value.split(b"/"))
        seen[worker, number].append(index)
    for worker in workers:
        for number, (count, is_committed) in worker.told.items():
            found = sorted(seen.pop((worker.number, number), []))
            if found != (list(range(count)) if is_committed else []):
                told = "committed" if is_committed else "aborted"
                result.defects.append(f"{worker.number}/{number} was {told}: {len(found)} of {count} are visible")
    result.defects += [f"{worker}/{number} has no result, and is visible" for worker, number in seen]


def _check_offsets(result: Report, workers: list[Worker], servers: str, topic: str) -> None:
    """Check that each group has the offset of its last committed transaction with offsets."""
    for worker in workers:
        if worker.committed_offset < 0:
            continue
        consumer = Consumer({"bootstrap.servers": servers, "group.id": worker.group, "log_level": 0})
        try:
            (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=60)
        finally:
            consumer.close()
        if found.offset != worker.committed_offset:
            result.defects.append(f"{worker.group} has the offset {found.offset}, not {worker.committed_offset}")
        result.counts["groups with the right offset"] += 1
