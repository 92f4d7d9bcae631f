"""Makes calls in the main thread that an alarm interrupts, while other threads send, and checks what is left.

The handler of the alarm raises, as those of Ctrl-C and of Celery's soft time limit do. A call that it has interrupted
may have queued its record. Everything else must be as if there had been no alarm: each record that was accepted is in
the log once, other threads go on, and no memory, descriptor, thread or waiter is left.
"""

import asyncio
import collections
import contextlib
import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable

from confluent_kafka.admin import AdminClient, NewTopic
from support.consumer import read_topic

from cyproducer import KafkaProducer, errors

MIB = 1 << 20
VALUE = 30_000  # bytes: about thirty records use up the memory
LONGEST_S = 0.004


Send = Callable[[KafkaProducer, str, bytes], None]


class AlarmError(TimeoutError):
    """What the handler of the alarm raises. It must not be taken for the error of a system call."""


def _is_alarm(error: BaseException | None) -> bool:
    """Return whether a handler's exception is the reason. A Condition of `threading` raises RuntimeError after it."""
    while error is not None and not isinstance(error, AlarmError):
        error = error.__context__
    return error is not None


def create_topic(bootstrap_servers: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)


def _send_blocking(producer: KafkaProducer, topic: str, value: bytes) -> None:
    producer.send(topic, value).result(60)


def _send_in_a_loop(producer: KafkaProducer, topic: str, value: bytes) -> None:
    """Send in an event loop of its own. (A loop is not interrupted by alarms: asyncio does not support that.)"""

    async def main() -> None:
        await asyncio.wait_for(await producer.send_async(topic, value), 60)

    asyncio.run(main())


class Campaign:
    """The calls of one seed. `accepted`: values whose call has returned; `possible`: those that were interrupted."""

    def __init__(self, bootstrap_servers: str, topic: str, seed: int) -> None:
        self.bootstrap_servers, self.topic = bootstrap_servers, topic
        self.random = random.Random(seed)
        self.accepted: list[bytes] = []
        self.possible: list[bytes] = []
        self.calls: collections.Counter[str] = collections.Counter()
        self.rung = 0
        self.armed = False
        self.sent = 0
        self.found: list[str] = []
        self.producer = self._producer()
        self.stop = threading.Event()

    def _producer(self) -> KafkaProducer:
        return KafkaProducer(
            bootstrap_servers=self.bootstrap_servers,
            buffer_memory=MIB,
            max_block_ms=30_000,
            sender_group=self.topic,
            sender_idle_timeout_ms=2000,
        )

    # ---------------------------------------------------------------- the run

    def run(self, seconds: float) -> None:
        """Make calls for so many seconds, and end everything."""
        with contextlib.closing(self._producer()) as holder:  # the sender stays when the other producer is closed
            holder.send(self.topic, self._next()).result(30)
            self.accepted.append(b"%d" % self.sent)
            ways = _send_blocking, _send_in_a_loop
            self._import_all(holder, ways)
            before = self._descriptors()
            threads = [threading.Thread(target=self._send_on, args=(holder, way)) for way in ways]
            former = signal.signal(signal.SIGALRM, self._ring)
            for thread in threads:
                thread.start()
            try:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    self._call_one()
            finally:
                self.stop.set()
                signal.signal(signal.SIGALRM, former)
                for thread in threads:
                    thread.join()
            self._end(holder, before)

    def _import_all(self, holder: KafkaProducer, ways: tuple[Send, ...]) -> None:
        """Make each call once without an alarm: the interpreter's import of modules does not survive exceptions."""
        for way in ways:
            value = self._next()
            way(holder, self.topic, value)
            self.accepted.append(value)
        for call in CALLS.values():
            call(self, self._next(), self.accepted)
        self.producer = self._producer()  # the last call has closed it

    def _end(self, holder: KafkaProducer, before: int) -> None:
        for producer in (self.producer, holder):
            producer.flush(60)
            session = producer._channel().session  # type: ignore[attr-defined]
            for name, left in (("waiters", session.waiters), ("waiters for metadata", session.topics.waiters)):
                if left:
                    self.found.append(f"{len(left)} {name} are left")
            gauges = producer.metrics()["producer-metrics"]
            if gauges["waiting-threads"] or gauges["buffer-available-bytes"] != MIB:
                self.found.append(
                    f"{gauges['waiting-threads']} calls wait, {gauges['buffer-available-bytes']} bytes free"
                )
        self.producer.close(60)
        del self.producer, session, producer
        after = self._descriptors()
        if after > before + 2:  # eventfds for waits of the producer that is kept
            self.found.append(f"{after} descriptors are open, {before} were")
        callbacks = sum(each.name == "cyproducer-callbacks" and each.is_alive() for each in threading.enumerate())
        if callbacks > 1:  # that of the producer that is kept
            self.found.append(f"{callbacks} callback threads run")

    def _descriptors(self) -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    def _next(self) -> bytes:
        self.sent += 1
        return b"%d" % self.sent

    def _send_on(self, producer: KafkaProducer, send: Send) -> None:
        """Send small records from another thread. Each must be accepted and written."""
        number = 0
        while not self.stop.is_set():
            value = b"%d/%d" % (threading.get_ident(), number)
            number += 1
            try:
                send(producer, self.topic, value)
            except errors.KafkaError as error:
                self.found.append(f"another thread: {error!r}")
                return
            self.accepted.append(value)

    # ---------------------------------------------------------------- one call

    def _ring(self, *given: object) -> None:
        if self.armed:
            self.armed = False
            self.rung += 1
            raise AlarmError

    def _call_one(self) -> None:
        name, call = self.random.choice(list(CALLS.items()))
        value = self._next().ljust(VALUE if name in LARGE else 1, b".")
        kept: list[bytes] = []
        try:
            try:
                self.armed = True
                signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-6, LONGEST_S))
                call(self, value, kept)
            finally:
                self._quiet()
        except Exception as error:
            if not _is_alarm(error):
                self.found.append(f"{name}: {error!r}")
            if not kept:
                self.possible.append(value)
        if name == "close":
            self.producer.close(60)  # an alarm may have ended the first call
            self.producer = self._producer()
        self.accepted += kept
        self.calls[name] += 1

    def _quiet(self) -> None:
        """Stop the alarm. Its handler may run once more, also later: another thread may have got the signal."""
        with contextlib.suppress(AlarmError):
            self.armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)

    def send(self, value: bytes, kept: list[bytes]) -> None:
        self.producer.send(self.topic, value)
        kept.append(value)

    def send_and_wait(self, value: bytes, kept: list[bytes]) -> None:
        future = self.producer.send(self.topic, value)
        kept.append(value)
        future.result(60)

    def send_array(self, value: bytes, kept: list[bytes]) -> None:
        self.producer.send_array(self.topic, [value])
        kept.append(value)

    def send_with_callback(self, value: bytes, kept: list[bytes]) -> None:
        self.producer.send(self.topic, value, on_delivery=lambda error, record: None)
        kept.append(value)

    def flush(self, value: bytes, kept: list[bytes]) -> None:
        self.producer.flush(60)

    def close(self, value: bytes, kept: list[bytes]) -> None:
        self.producer.close(60)

    # ---------------------------------------------------------------- the log

    def defects(self) -> list[str]:
        """Return what is wrong with the log and with what is left, after run()."""
        records = read_topic(self.bootstrap_servers, self.topic, len(self.accepted), timeout=60)
        counts = collections.Counter(records.value)
        accepted, possible = set(self.accepted), set(self.possible)
        sent = accepted | possible
        twice = [value for value, count in counts.items() if count > 1]
        checks: dict[str, list[bytes | None]] = {
            "accepted records are missing": [value for value in accepted if value not in counts],
            "records are in the log twice": twice,
            "records were never sent": [value for value in counts if value not in sent],
        }
        return self.found + [f"{len(bad)} {text}: {_shown(bad)}" for text, bad in checks.items() if bad]


def _shown(values: list[bytes | None]) -> list[bytes]:
    return [(value or b"").rstrip(b".") for value in values[:5]]


CALLS: dict[str, Callable[[Campaign, bytes, list[bytes]], None]] = {
    "send": Campaign.send,
    "send and wait": Campaign.send_and_wait,
    "send large": Campaign.send,
    "send large again": Campaign.send,
    "send_array": Campaign.send_array,
    "send_array large": Campaign.send_array,
    "send with callback": Campaign.send_with_callback,
    "flush": Campaign.flush,
    "close": Campaign.close,
}
LARGE = {"send large", "send large again", "send_array large"}
