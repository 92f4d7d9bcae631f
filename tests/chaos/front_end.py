"""Runs as one front-end of a chaos run: sends records of all kinds and journals every result.

Every record has an intent line before `send()` and an accepted (or refused) line after it; every outcome has a line. A
bulk call is one intent and one acceptance for all of its rows.
"""

import atexit
import ctypes
import os
import random
import signal
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from chaos import journal
from chaos.records import value_of
from cyproducer.host.control_messages import peer_credentials

FINISH_S = 120.0
_PR_SET_PDEATHSIG = 1
_leaving: "list[FrontEnd]" = []


@dataclass
class Order:
    """The instructions for a front-end; passed as JSON.

    rate      approximate number of records a second
    limit     records after which it leaves (for workers that a master recycles: approximately); 0: no limit
    ending    how it leaves then: "close", "exit" (sys.exit without close) or "_exit"
    callbacks take outcomes by on_delivery instead of by futures
    sizes     sizes of the values: {bytes: weight}
    """

    settings: dict[str, Any]
    topic: str
    partitions: int
    directory: str
    slot: int
    life: int
    seed: int
    rate: float = 400.0
    limit: int = 1500
    ending: str = "close"
    callbacks: bool = False
    bulk: bool = True
    sizes: dict[str, int] = field(default_factory=lambda: {"100": 100, "3000": 6, "70000": 1})

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def die_with_parent(parent: int) -> None:
    """Make the kernel send SIGKILL when the parent's thread ends, so that a killed run leaves nothing."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _last_words() -> None:
    """Journal the outcomes that came while the producer's own exit waited for them."""
    for front_end in _leaving:
        front_end._collect()


# A front-end's process loads the producer's module later, and exit handlers run in reverse order.
atexit.register(_last_words)


class FrontEnd:
    """A producer and its journal. `run` returns when the front-end is told to stop or its limit is reached."""

    def __init__(self, order: Order, producer: Any) -> None:
        self.order = order
        self.producer = producer
        self.random = random.Random(f"{order.seed} {order.slot} {order.life}")
        path = Path(order.directory) / journal.name_of(order.slot, order.life)
        self.journal = journal.Writer(path)
        self.incarnation = journal.incarnation_of(path)
        self.sizes = [int(size) for size in order.sizes]
        self.weights = list(order.sizes.values())
        self.sent = 0
        self.told_to_stop = False
        self.outstanding = 0
        self.futures: deque[tuple[int, Any]] = deque()
        self.arrays: deque[tuple[int, int, Any]] = deque()
        self.session: Any = None

    def stop(self, *_: Any) -> None:
        self.told_to_stop = True

    def run(self) -> None:
        self._attach()
        began = time.monotonic()
        while not self.told_to_stop and not 0 < self.order.limit <= self.sent:
            burst = self.random.choice((1, 1, 5, 20, 100))
            if self.order.bulk and self.random.random() < 0.05:
                self._send_array(burst * 4)
            else:
                for _ in range(burst):
                    self._send()
            self._collect()
            ahead = self.sent / self.order.rate - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(min(ahead, 0.2))
            elif ahead < -1:
                began = time.monotonic() - self.sent / self.order.rate  # it was stopped or blocked: no catching up

    def finish(self) -> None:
        """Leave as the order says; before "close" journal every outcome."""
        if self.order.ending == "close" or self.told_to_stop:
            self.producer.flush(FINISH_S)
            self._collect()
            self.producer.close(FINISH_S)
            self._collect()
            self.journal.put(journal.END, self.sent, flags=journal.CLOSED)
            return
        self._collect()
        if self.order.ending == "_exit":
            self.journal.put(journal.END, self.sent)
            os._exit(0)
        self.journal.put(journal.END, self.sent, flags=journal.EXIT)
        _leaving.append(self)

    def _attach(self) -> None:
        before = time.monotonic_ns()
        self.producer._channel().attached(time.monotonic() + self.attach_timeout_s())
        self.journal.put(journal.ATTACHED, 0, time.monotonic_ns() - before)
        self._look_at_session()

    def _look_at_session(self) -> None:
        """Journal that another sender has taken over all accepted records, once it has."""
        session = self.producer._channel().session
        if session is self.session or self.producer._channel().unsent or not session.alive:
            return
        try:
            founder, _, _ = peer_credentials(session.attachment.socket)
        except OSError:
            return  # this sender has just ended as well
        self.session = session
        self.journal.put(journal.SAFE, self.sent, founder)

    def attach_timeout_s(self) -> float:
        return float(self.order.settings.get("max_block_ms", 60_000)) / 1000

    def _where(self) -> dict[str, Any]:
        kind = self.random.random()
        if kind < 0.6:
            return {"partition": self.random.randrange(self.order.partitions)}
        if kind < 0.8:
            return {"key": b"%d" % self.random.randrange(1000)}
        return {}

    def _value(self, number: int) -> bytes:
        (size,) = self.random.choices(self.sizes, self.weights)
        return value_of(self.incarnation, number, self.random.randrange(size + 1))

    def _send(self) -> None:
        number = self.sent
        value = self._value(number)
        where = self._where()
        if self.order.callbacks:
            where["on_delivery"] = self._callback(number)
        self.sent += 1
        self.journal.put(journal.INTENT, number, 1)
        try:
            future = self.producer.send(self.order.topic, value, **where)
        except Exception as error:
            self._refused(number, 1, error)
            return
        self.journal.put(journal.ACCEPTED, number, 1)
        self._look_at_session()
        if not self.order.callbacks:
            self.futures.append((number, future))

    def _send_array(self, count: int) -> None:
        number = self.sent
        values = [value_of(self.incarnation, number + i, self.random.randrange(200)) for i in range(count)]
        partitions = [self.random.randrange(self.order.partitions) for _ in range(count)]
        self.sent += count
        self.journal.put(journal.INTENT, number, count)
        try:
            future = self.producer.send_array(self.order.topic, values, partition=partitions)
        except Exception as error:
            self._refused(number, count, error)
            return
        self.journal.put(journal.ACCEPTED, number, count)
        self._look_at_session()
        self.arrays.append((number, count, future))

    def _refused(self, number: int, count: int, error: Exception) -> None:
        queued = len(error.queued) if hasattr(error, "queued") and hasattr(error.queued, "__len__") else 0
        print(f"{self.incarnation}: send() refused {count} from {number}: {error!r}", file=sys.stderr, flush=True)
        if queued == 0:
            self.journal.put(journal.REFUSED, number, count, getattr(error, "code", None) or -1)

    def _callback(self, number: int) -> Any:
        def on_delivery(error: Any, metadata: Any) -> None:
            if error is not None:
                self._failed(number, error)
            else:
                self.journal.put(journal.ACKED, number, metadata.offset, metadata.partition)

        return on_delivery

    def _failed(self, number: int, error: Any, flags: int = 0) -> None:
        print(f"{self.incarnation}: record {number} failed: {error!r}", file=sys.stderr, flush=True)
        self.journal.put(journal.FAILED, number, 0, error.code or -1, flags)

    def _collect(self) -> None:
        """Journal the futures that are done."""
        left: deque[tuple[int, Any]] = deque()
        while self.futures:
            number, future = self.futures.popleft()
            if not future.done():
                left.append((number, future))
            elif future.failed():
                self._failed(number, future.exception(0))
            else:
                self.journal.put(journal.ACKED, number, future.value.offset, future.value.partition)
        self.futures = left
        while self.arrays and self.arrays[0][2].done():
            number, count, future = self.arrays.popleft()
            if future.failed():
                error = future.exception(0)
                for record in range(number, number + count):
                    self._failed(record, error, journal.SOME)
            else:
                self.journal.put_acked(number, future.value.partition, future.value.offset)


def serve(order: Order, producer: Any = None) -> None:
    """Run a front-end from start to end in this process, which serves nothing else."""
    front_end = FrontEnd(order, producer or make_producer(order))
    signal.signal(signal.SIGTERM, front_end.stop)
    front_end.run()
    front_end.finish()


def make_producer(order: Order) -> Any:
    from cyproducer import KafkaProducer

    return KafkaProducer(**order.settings)
