"""Brings the sender to crash points that ordinary traffic does not reach, and checks its behaviour there."""

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future as PoolFuture
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from chaos.world import World
from devkafka.node import KafkaCluster
from support.consumer import read_topic
from support.crashpoints import points
from support.process import wait_until

from cyproducer import KafkaProducer
from cyproducer.errors import (
    KafkaError,
    KafkaTimeoutError,
    OutcomeUnknownError,
    SenderUnavailableError,
    TransactionAbortedError,
)

TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 2.0  # as in scenario.SETTINGS
ATTEMPTS = 40
IN_FLIGHT, BEHIND = 5, 20  # the most requests in flight of a connection; records that are sent after those
LARGE_BYTES = 3_000_000
VERIFIED = 3  # the attempts that are checked afterwards: the last ones
_topics = itertools.count(1)
_told_to_end: set[int] = set()  # pids of supervisors


@dataclass
class Scene:
    """Where a stimulus acts, and the defects that it found."""

    cluster: KafkaCluster
    world: World
    defects: list[str] = field(default_factory=list)

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """Make a fresh topic."""
        return self.cluster.create_topic(f"{self.world.topic}-{next(_topics)}", partitions, 1, configs)

    @contextlib.contextmanager
    def producer(self, **settings: Any) -> Iterator[KafkaProducer]:
        """Make a front-end in this process, attached to the world's sender."""
        producer = KafkaProducer(**{**self.world.order.settings, "linger_ms": 30, "compression_type": None, **settings})
        try:
            yield producer
        finally:
            producer.close(10)

    def expect_values(self, topic: str, values: list[bytes]) -> None:
        """Check that the topic holds exactly these, in this order."""
        found = read_topic(self.cluster.bootstrap_servers, topic, len(values), TIMEOUT_S).value
        if found != values:
            self.defects.append(f"topic {topic} holds {found!r:.200}, expected {values!r:.200}")


Stimulus = Callable[[Scene], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def silent_broker(scene: Scene) -> Iterator[None]:
    """Stop the broker: sockets fill, requests time out."""
    scene.cluster.pause(1)
    try:
        yield
    finally:
        scene.cluster.resume(1)


@contextlib.contextmanager
def _until_reached(scene: Scene, attempt: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """Repeat `attempt` in a thread while the block runs; each returns a check to make afterwards."""
    over = threading.Event()

    def repeat() -> list[Callable[[], None]]:
        checks = []
        for _ in range(ATTEMPTS):
            if over.is_set():
                break
            checks.append(attempt())
        return checks

    with ThreadPoolExecutor(1) as pool:
        checks: PoolFuture[list[Callable[[], None]]] = pool.submit(repeat)
        try:
            yield
        finally:
            over.set()
        for verify in checks.result(TIMEOUT_S)[-VERIFIED:]:
            try:
                verify()
            except AssertionError as error:
                scene.defects.append(str(error))


@contextlib.contextmanager
def another_topic(scene: Scene) -> Iterator[None]:
    """Send to topics that the sender does not know."""
    with scene.producer() as producer:

        def attempt() -> Callable[[], None]:
            topic = scene.topic()
            future = producer.send(topic, b"first")
            future.exception(TIMEOUT_S)
            return lambda: scene.expect_values(topic, [b"first"])

        with _until_reached(scene, attempt):
            yield


def _poison(bad_count: int, records: int) -> Stimulus:
    """Send bad records to compacted topics, merged with `records` good ones of another front-end.

    A record without a key is bad there.
    """

    @contextlib.contextmanager
    def stimulus(scene: Scene) -> Iterator[None]:
        with scene.producer() as correct, contextlib.ExitStack() as opened:
            bad_ones = [opened.enter_context(scene.producer()) for _ in range(bad_count)]

            def attempt() -> Callable[[], None]:
                topic = scene.topic(**{"cleanup.policy": "compact"})
                for producer in (correct, *bad_ones):
                    producer.partitions_for(topic)
                bad = [producer.send(topic, b"poison") for producer in bad_ones]
                good = [correct.send(topic, b"%d" % n, key=b"key") for n in range(records)]
                for future in bad:
                    future.exception(TIMEOUT_S)

                def verify() -> None:
                    if not all(isinstance(future.exception(TIMEOUT_S), KafkaError) for future in bad):
                        scene.defects.append("a record without a key was acknowledged on a compacted topic")
                    scene.defects.extend(f"the other front-end: {e!r}" for f in good if (e := f.exception(TIMEOUT_S)))
                    scene.expect_values(topic, [b"%d" % n for n in range(records)])

                return verify

            with _until_reached(scene, attempt):
                yield

    return stimulus


@contextlib.contextmanager
def too_large(scene: Scene) -> Iterator[None]:
    """Send batches of two front-ends that the broker takes alone and refuses merged, without naming a record.

    The batches are small: a batch of several chunks is not merged.
    """
    with scene.producer() as one, scene.producer() as other:

        def attempt() -> Callable[[], None]:
            topic = scene.topic(**{"max.message.bytes": "4000"})
            both = (one, other)
            for producer in both:
                producer.partitions_for(topic)
            futures = [[producer.send(topic, bytes([n]) * 280) for n in range(10)] for producer in both]
            for future in itertools.chain(*futures):
                future.exception(TIMEOUT_S)

            def verify() -> None:
                errors = [e for future in itertools.chain(*futures) if (e := future.exception(TIMEOUT_S))]
                if errors:
                    scene.defects.append(f"{len(errors)} records of a batch in parts: {errors[0]!r}")
                    return
                read = read_topic(scene.cluster.bootstrap_servers, topic, 20, TIMEOUT_S)
                for mine in futures:
                    offsets = [future.value.offset for future in mine]
                    values = [read.value[offset] for offset in offsets]
                    if offsets != sorted(offsets) or values != [bytes([n]) * 280 for n in range(10)]:
                        scene.defects.append(f"the parts of a batch: offsets {offsets}")
                if len(read) != 20:
                    scene.defects.append(f"{len(read)} records for 20")

            return verify

        with _until_reached(scene, attempt):
            yield


@contextlib.contextmanager
def too_large_alone(scene: Scene) -> Iterator[None]:
    """Send batches of one front-end that the broker refuses as too large. It takes parts of them."""
    with scene.producer() as producer:

        def attempt() -> Callable[[], None]:
            topic = scene.topic(**{"max.message.bytes": "4000"})
            producer.partitions_for(topic)
            values = [bytes([n]) * 280 for n in range(40)]
            futures = [producer.send(topic, value) for value in values]
            errors = [future.exception(TIMEOUT_S) for future in futures]

            def verify() -> None:
                if any(errors) and not any(isinstance(error, OutcomeUnknownError) for error in errors):
                    scene.defects.append(f"records of a batch in parts: {next(filter(None, errors))!r}")
                if not any(errors):
                    scene.expect_values(topic, values)

            return verify

        with _until_reached(scene, attempt):
            yield


@contextlib.contextmanager
def named_records(scene: Scene) -> Iterator[None]:
    """Send batches with bad records, which the broker names. The other records of the batch are written."""
    with scene.producer() as producer:

        def attempt() -> Callable[[], None]:
            topic = scene.topic(**{"cleanup.policy": "compact"})
            producer.partitions_for(topic)
            keys = [None if n in (3, 7) else b"key-%d" % n for n in range(10)]
            futures = [producer.send(topic, b"%d" % n, key=key) for n, key in enumerate(keys)]
            errors = [future.exception(TIMEOUT_S) for future in futures]

            def verify() -> None:
                if any(isinstance(error, OutcomeUnknownError) for error in errors):
                    return  # it was in flight when the sender died
                if [error is None for error in errors] != [key is not None for key in keys]:
                    scene.defects.append(f"a batch with bad records: {errors!r:.300}")
                scene.expect_values(topic, [b"%d" % n for n, key in enumerate(keys) if key is not None])

            return verify

        with _until_reached(scene, attempt):
            yield


@contextlib.contextmanager
def compressed(scene: Scene) -> Iterator[None]:
    """Send batches that the broker takes only because they are compressed."""
    with scene.producer(compression_type="gzip") as producer:

        def attempt() -> Callable[[], None]:
            topic = scene.topic(**{"max.message.bytes": "4000"})
            values = [b"%d" % n * 10_000 for n in range(3)]
            errors = [future.exception(TIMEOUT_S) for future in [producer.send(topic, value) for value in values]]

            def verify() -> None:
                scene.defects.extend(f"compressed: {error!r}" for error in errors if error)
                scene.expect_values(topic, values)

            return verify

        with _until_reached(scene, attempt):
            yield


@contextlib.contextmanager
def full_socket(scene: Scene) -> Iterator[None]:
    """Send requests of one record that is larger than the sockets take. Other requests do not delay it."""
    with scene.producer(linger_ms=0) as producer:

        def attempt() -> Callable[[], None]:
            topic = scene.topic(**{"max.message.bytes": str(LARGE_BYTES + 1000)})
            value = os.urandom(16) * (LARGE_BYTES // 16)
            future = producer.send(topic, value)
            future.exception(TIMEOUT_S)

            def verify() -> None:
                future.result(TIMEOUT_S)
                scene.expect_values(topic, [value])

            return verify

        with _until_reached(scene, attempt):
            yield


@contextlib.contextmanager
def short_delivery_timeout(scene: Scene) -> Iterator[None]:
    """Send a record whose delivery timeout ends while its request is with a silent broker."""
    topic = scene.topic()
    with scene.producer(linger_ms=0, delivery_timeout_ms=2_100) as producer:
        producer.partitions_for(topic)
        producer.send(topic, b"warm").result(TIMEOUT_S)
        with silent_broker(scene):
            future = producer.send(topic, b"late")
            yield
        if future.exception(TIMEOUT_S) is None:
            scene.defects.append("a record was acknowledged after its delivery timeout")


@contextlib.contextmanager
def sender_with_work_killed(scene: Scene) -> Iterator[None]:
    """Kill the sender while requests are in flight and batches are queued behind them."""
    topic = scene.topic()
    values: list[bytes] = []
    with scene.producer(linger_ms=0) as producer:
        try:
            futures = [producer.send(topic, b"warm")]
            futures[0].result(TIMEOUT_S)
        except (SenderUnavailableError, KafkaTimeoutError):
            if scene.world.status() is not None:
                raise
            yield  # on a busy machine a request has timed out, and the sender has stopped at the point already
            return

        def send() -> None:
            values.append(b"%d" % len(values))
            futures.append(producer.send(topic, values[-1]))

        def fill() -> bool:
            """Send until the connection has no room. Return False if requests time out before: the machine is busy."""
            until = time.monotonic() + REQUEST_TIMEOUT_S / 2
            while time.monotonic() < until:
                for _ in range(IN_FLIGHT):
                    send()
                    time.sleep(0.005)  # for a request of its own
                if _in_flight(scene) >= IN_FLIGHT:
                    return True
            return False

        def attempt() -> bool:
            sender = wait_until(scene.world.supervised, TIMEOUT_S, "a sender with its supervisor")["sender_pid"]
            with silent_broker(scene):
                if fill():
                    for _ in range(BEHIND):
                        send()
                    os.kill(sender, signal.SIGKILL)
                    return True
            # After a request that has timed out, the sender itself may have stopped at the point.
            return scene.world.status() is None or futures[-1].result(TIMEOUT_S) is None

        wait_until(attempt, 3 * TIMEOUT_S, "requests in flight")
        yield
        for future in futures:
            future.result(TIMEOUT_S)
    scene.expect_values(topic, [b"warm", *values])


def _in_flight(scene: Scene) -> int:
    status = scene.world.status()
    return sum(connection["in_flight"] for connection in status["connections"]) if status else 0


def _process(which: str) -> Stimulus:
    @contextlib.contextmanager
    def kill(scene: Scene) -> Iterator[None]:
        # A sender that has lost its supervisor has another one a moment later.
        status = wait_until(scene.world.supervised, TIMEOUT_S, "a sender with its supervisor")
        os.kill(status[which], signal.SIGKILL)
        yield

    return kill


@contextlib.contextmanager
def sender_told_to_end(scene: Scene) -> Iterator[None]:
    """Tell a sender to end. One that was told before ends at once: it releases no front-end."""

    def untold() -> int | None:
        status = scene.world.supervised()
        return status["supervisor_pid"] if status and status["supervisor_pid"] not in _told_to_end else None

    pid = wait_until(untold, TIMEOUT_S, "a sender that was not told to end")
    _told_to_end.add(pid)
    os.kill(pid, signal.SIGTERM)
    yield


def _transact(scene: Scene, then: Callable[[KafkaProducer, str], None]) -> Callable[[], None]:
    """Commit two transactions of a new producer, after each of which `then` acts. Return a check of the topic."""
    topic, values = scene.topic(), [b"%d" % number for number in range(6)]
    with scene.producer(transactional_id=topic, linger_ms=0) as producer:
        producer.init_transactions(TIMEOUT_S)
        for part in (values[:3], values[3:]):
            with producer.transaction():
                for value in part:
                    producer.send(topic, value)
            then(producer, scene.topic())
    return lambda: scene.expect_values(topic, values)


@contextlib.contextmanager
def transactions(scene: Scene) -> Iterator[None]:
    """Commit and abort transactions of producers that come and go."""

    def abort(producer: KafkaProducer, topic: str) -> None:
        producer.begin_transaction()
        producer.send(topic, b"aborted")
        producer.abort_transaction(TIMEOUT_S)

    with _until_reached(scene, lambda: _transact(scene, abort)):
        yield


@contextlib.contextmanager
def aborted_retry(scene: Scene) -> Iterator[None]:
    """Abort a transaction while a batch, which a silent broker has not answered, waits to be sent again."""

    def abort(producer: KafkaProducer, topic: str) -> None:
        producer.begin_transaction()
        producer.send(topic, b"first").result(TIMEOUT_S)
        before = producer.metrics()["producer-metrics"]["record-retry-total"]
        with ThreadPoolExecutor(1) as pool:
            with silent_broker(scene):
                waiting = producer.send(topic, b"waits")
                wait_until(lambda: producer.metrics()["producer-metrics"]["record-retry-total"] > before, 30, "a retry")
                aborted = pool.submit(producer.abort_transaction, TIMEOUT_S)
                error = waiting.exception(TIMEOUT_S)  # no broker is needed for it, only for the end of the transaction
            aborted.result()
        if not isinstance(error, TransactionAbortedError):
            scene.defects.append(f"a record of an aborted transaction ended with {error!r}")

    with _until_reached(scene, lambda: _transact(scene, abort)):
        yield


STIMULI: dict[str, Stimulus] = {
    "attach.transactional-filled": transactions,
    **{name: transactions for name in points() if name.startswith("transaction.")},
    "transaction.epoch-needed": aborted_retry,
    "transaction.entry-dropped": aborted_retry,
    "build.packed": compressed,
    "write.blocked": full_socket,
    "read.abandoned": silent_broker,
    "metrics.retry-counted": silent_broker,
    "drain.state-asked": sender_with_work_killed,
    "read.cause-noted": silent_broker,
    "attach.topic-named": another_topic,
    "attach.partition-filled": another_topic,
    "publish.topic-named": another_topic,
    "publish.topic-entered": another_topic,
    "publish.leaders-stored": another_topic,
    "publish.row-stored": another_topic,
    "publish.change-put": another_topic,
    "publish.change-published": another_topic,
    "attach.lane-filled": _poison(1, 3),
    "complete.given-up": _poison(1, 0),
    "epoch.demanded": _poison(1, 3),
    "epoch.filled": _poison(1, 3),
    "epoch.in-force": _poison(1, 3),
    "epoch.one-renumbered": _poison(1, 3),
    "split.shed": _poison(1, 3),
    "split.all-shed": _poison(2, 0),
    "split.part-prepared": too_large,
    "split.committed": too_large,
    "split.part-assigned": too_large,
    "parts.prepared": too_large_alone,
    "parts.committed": too_large_alone,
    "parts.assigned": too_large_alone,
    "parts.encoded": too_large_alone,
    "parts.refused": named_records,
    "extent.filled": named_records,
    "extent.lengthened": too_large_alone,
    "expire.reported": short_delivery_timeout,
    "recover.part-kept": too_large,
    "recover.entry-taken": sender_with_work_killed,
    "recover.entry-ended": sender_with_work_killed,
    "recover.batch-queued": sender_with_work_killed,
    "recover.index-cleared": _process("sender_pid"),
    "attach.topic-used": another_topic,
    "attach.row-filled": another_topic,
    "publish.leaders-moved": another_topic,
    "topics.retired": another_topic,
    "topics.epoch-raised": another_topic,
    "topics.decided": another_topic,
    "topics.row-freed": another_topic,
    "topics.index-left": another_topic,
    "topics.cleared": another_topic,
    "topics.freed": another_topic,
    "metrics.topic-cleared": another_topic,
    "recover.row-freed": another_topic,
    "release.stored": sender_told_to_end,
    "release.scanned": sender_told_to_end,
    "supervise.before-fork": _process("sender_pid"),
    "supervise.forked": _process("sender_pid"),
    "supervise.sender-gone": _process("sender_pid"),
    "supervise.reaped": _process("sender_pid"),
    "supervise.lost": _process("supervisor_pid"),
    "supervise.successor-forked": _process("supervisor_pid"),
    "supervise.successor-begun": _process("supervisor_pid"),
}
