"""What brings the sender past points that ordinary traffic does not reach, and whether it did right there."""

import contextlib
import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future as PoolFuture
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from chaos.world import World
from support.consumer import read_topic
from support.process import wait_until

from cyproducer import KafkaProducer
from cyproducer.cli.kafka_node import KafkaCluster
from cyproducer.errors import KafkaError

PATIENCE_S = 60.0
ATTEMPTS = 40
IN_FLIGHT, BEHIND = 5, 20  # requests of a connection, the most that there are; records that are sent after those
JUDGED = 3  # attempts that are looked at afterwards, the last ones
_topics = itertools.count(1)


@dataclass
class Scene:
    """Where a stimulus acts, and what it found wrong."""

    cluster: KafkaCluster
    world: World
    defects: list[str] = field(default_factory=list)

    def topic(self, partitions: int = 1, **configs: str) -> str:
        """A fresh topic."""
        return self.cluster.create_topic(f"{self.world.topic}-{next(_topics)}", partitions, 1, configs)

    @contextlib.contextmanager
    def producer(self, **settings: Any) -> Iterator[KafkaProducer]:
        """A front-end in this process, of the world's sender."""
        producer = KafkaProducer(
            **{**self.world.order.settings, "linger_ms": 30, "compression_type": None, **settings}
        )
        try:
            yield producer
        finally:
            producer.close(10)

    def expect_values(self, topic: str, values: list[bytes]) -> None:
        """The topic holds exactly these, in this order."""
        found = read_topic(self.cluster.bootstrap_servers, topic, len(values), timeout=5).value
        if found != values:
            self.defects.append(f"topic {topic} holds {found!r:.200}, expected {values!r:.200}")


Stimulus = Callable[[Scene], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def silent_broker(scene: Scene) -> Iterator[None]:
    """Sockets fill, requests time out."""
    scene.cluster.pause(1)
    try:
        yield
    finally:
        scene.cluster.resume(1)


@contextlib.contextmanager
def _until_reached(scene: Scene, attempt: Callable[[], Callable[[], None]]) -> Iterator[None]:
    """Repeats `attempt` in a thread while the block runs; each returns how it is judged afterwards."""
    over = threading.Event()

    def repeat() -> list[Callable[[], None]]:
        judges = []
        for _ in range(ATTEMPTS):
            if over.is_set():
                break
            judges.append(attempt())
        return judges

    with ThreadPoolExecutor(1) as pool:
        judges: PoolFuture[list[Callable[[], None]]] = pool.submit(repeat)
        try:
            yield
        finally:
            over.set()
        for judge in judges.result(PATIENCE_S)[-JUDGED:]:
            try:
                judge()
            except AssertionError as error:
                scene.defects.append(str(error))


@contextlib.contextmanager
def another_topic(scene: Scene) -> Iterator[None]:
    """Topics that the sender does not know."""
    with scene.producer() as producer:

        def attempt() -> Callable[[], None]:
            topic = scene.topic()
            future = producer.send(topic, b"first")
            future.exception(PATIENCE_S)
            return lambda: scene.expect_values(topic, [b"first"])

        with _until_reached(scene, attempt):
            yield


def _poison(offenders: int, records: int) -> Stimulus:
    """Records without a key for compacted topics, in one wire batch with `records` of a neighbour that have one."""

    @contextlib.contextmanager
    def stimulus(scene: Scene) -> Iterator[None]:
        with scene.producer() as honest, contextlib.ExitStack() as opened:
            bad_ones = [opened.enter_context(scene.producer()) for _ in range(offenders)]

            def attempt() -> Callable[[], None]:
                topic = scene.topic(**{"cleanup.policy": "compact"})
                for producer in (honest, *bad_ones):
                    producer.partitions_for(topic)
                bad = [producer.send(topic, b"poison") for producer in bad_ones]
                good = [honest.send(topic, b"%d" % n, key=b"key") for n in range(records)]
                for future in bad:
                    future.exception(PATIENCE_S)

                def judge() -> None:
                    if not all(isinstance(future.exception(PATIENCE_S), KafkaError) for future in bad):
                        scene.defects.append("a record without a key was acknowledged on a compacted topic")
                    scene.defects.extend(f"the neighbour: {e!r}" for f in good if (e := f.exception(PATIENCE_S)))
                    scene.expect_values(topic, [b"%d" % n for n in range(records)])

                return judge

            with _until_reached(scene, attempt):
                yield

    return stimulus


@contextlib.contextmanager
def too_large(scene: Scene) -> Iterator[None]:
    """Batches of two that the broker takes alone, and refuses as one without naming a record.

    Small ones: a batch of several chunks is not merged.
    """
    with scene.producer() as one, scene.producer() as other:

        def attempt() -> Callable[[], None]:
            topic = scene.topic(**{"max.message.bytes": "4000"})
            both = (one, other)
            for producer in both:
                producer.partitions_for(topic)
            futures = [[producer.send(topic, bytes([n]) * 280) for n in range(10)] for producer in both]
            for future in itertools.chain(*futures):
                future.exception(PATIENCE_S)

            def judge() -> None:
                errors = [e for future in itertools.chain(*futures) if (e := future.exception(PATIENCE_S))]
                if errors:
                    scene.defects.append(f"{len(errors)} records of a batch in parts: {errors[0]!r}")
                    return
                read = read_topic(scene.cluster.bootstrap_servers, topic, 20, timeout=5)
                for mine in futures:
                    offsets = [future.value.offset for future in mine]
                    values = [read.value[offset] for offset in offsets]
                    if offsets != sorted(offsets) or values != [bytes([n]) * 280 for n in range(10)]:
                        scene.defects.append(f"the parts of a batch: offsets {offsets}")
                if len(read) != 20:
                    scene.defects.append(f"{len(read)} records for 20")

            return judge

        with _until_reached(scene, attempt):
            yield


@contextlib.contextmanager
def compressed(scene: Scene) -> Iterator[None]:
    """Batches that the broker takes since they are compressed."""
    with scene.producer(compression_type="gzip") as producer:

        def attempt() -> Callable[[], None]:
            topic = scene.topic(**{"max.message.bytes": "4000"})
            values = [b"%d" % n * 10_000 for n in range(3)]
            errors = [future.exception(PATIENCE_S) for future in [producer.send(topic, value) for value in values]]

            def judge() -> None:
                scene.defects.extend(f"compressed: {error!r}" for error in errors if error)
                scene.expect_values(topic, values)

            return judge

        with _until_reached(scene, attempt):
            yield


@contextlib.contextmanager
def full_socket(scene: Scene) -> Iterator[None]:
    """More than the sockets take (five requests of a megabyte, each of another partition), for a silent broker."""
    topic = scene.topic(8)
    values = [bytes([n]) * 1_000_000 for n in range(8)]
    with scene.producer(buffer_memory=16 << 20) as producer:
        producer.partitions_for(topic)
        with silent_broker(scene):
            futures = [producer.send(topic, value, partition=n) for n, value in enumerate(values)]
            yield
        for future in futures:
            future.result(PATIENCE_S)
    read = read_topic(scene.cluster.bootstrap_servers, topic, len(values), timeout=10)
    if sorted(zip(read.partition, read.value, strict=True)) != list(enumerate(values)):
        scene.defects.append(f"{len(read)} records for {len(values)}, or not what was sent")


@contextlib.contextmanager
def impatient(scene: Scene) -> Iterator[None]:
    """A record whose delivery timeout is over while its request is with a silent broker."""
    topic = scene.topic()
    with scene.producer(linger_ms=0, delivery_timeout_ms=2_100) as producer:
        producer.partitions_for(topic)
        producer.send(topic, b"warm").result(PATIENCE_S)
        with silent_broker(scene):
            future = producer.send(topic, b"late")
            yield
        if future.exception(PATIENCE_S) is None:
            scene.defects.append("a record was acknowledged after its delivery timeout")


@contextlib.contextmanager
def sender_with_work_killed(scene: Scene) -> Iterator[None]:
    """Requests are on the way, and batches queued behind them, when it dies."""
    topic = scene.topic()
    values: list[bytes] = []
    with scene.producer(linger_ms=0) as producer:
        futures = [producer.send(topic, b"warm")]
        futures[0].result(PATIENCE_S)

        def send() -> None:
            values.append(b"%d" % len(values))
            futures.append(producer.send(topic, values[-1]))

        with silent_broker(scene):
            wait_until(lambda: send() or _in_flight(scene) == IN_FLIGHT, PATIENCE_S, "requests on the way")
            for _ in range(BEHIND):
                send()
            with _process("sender_pid")(scene):
                pass
        yield
        for future in futures:
            future.result(PATIENCE_S)
    scene.expect_values(topic, [b"warm", *values])


def _in_flight(scene: Scene) -> int:
    status = scene.world.status()
    return sum(connection["in_flight"] for connection in status["connections"]) if status else 0


def _process(which: str) -> Stimulus:
    @contextlib.contextmanager
    def kill(scene: Scene) -> Iterator[None]:
        # A sender that has lost its supervisor has another one a moment later.
        status = wait_until(scene.world.supervised, PATIENCE_S, "a sender with its supervisor")
        os.kill(status[which], signal.SIGKILL)
        yield

    return kill


STIMULI: dict[str, Stimulus] = {
    "build.packed": compressed,
    "write.blocked": full_socket,
    "read.abandoned": silent_broker,
    "attach.topic-named": another_topic,
    "attach.partition-filled": another_topic,
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
    "expire.reported": impatient,
    "adopt.part-kept": too_large,
    "adopt.entry-taken": sender_with_work_killed,
    "adopt.batch-queued": sender_with_work_killed,
    "supervise.before-fork": _process("sender_pid"),
    "supervise.forked": _process("sender_pid"),
    "supervise.sender-gone": _process("sender_pid"),
    "supervise.reaped": _process("sender_pid"),
    "supervise.lost": _process("supervisor_pid"),
    "supervise.heir-forked": _process("supervisor_pid"),
    "supervise.heir-begun": _process("supervisor_pid"),
}
