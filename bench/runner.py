"""Runs the contestants in turn, round by round, and measures every process of the client."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.brokers import Broker
from bench.contestants import CONTESTANTS, Cyproducer
from bench.measure import CpuMeter, busy_ns
from cyproducer.observe.status import status, stop

ROOT = Path(__file__).resolve().parents[1]


@dataclass
class Order:
    """What a run measures. ``messages`` a round and contestant (times its scale), over ``processes``."""

    contestants: list[str]
    rounds: int = 5
    messages: int = 1_000_000
    warmup: int = 100_000
    processes: int = 1
    value_bytes: int = 100
    partitions: int = 12
    ours: dict[str, Any] | None = None
    theirs: dict[str, Any] | None = None


@dataclass
class Measurement:
    """One contestant, one round. CPU in ns: ``sender`` with the supervisor, ``foreign`` everybody else's."""

    contestant: str
    round: int
    messages: int
    seconds: float
    front_end_cpu: int
    sender_cpu: int
    broker_cpu: int
    foreign_cpu: int

    @property
    def rate(self) -> float:
        """Messages per second, from the first send to the last acknowledgement."""
        return self.messages / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU us per message of all processes of the client."""
        return (self.front_end_cpu + self.sender_cpu) / 1000 / self.messages

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "rate": self.rate, "cpu_us_per_message": self.cpu_us}


class LostError(RuntimeError):
    """The topic does not hold what was sent."""


@contextlib.contextmanager
def own_senders() -> Iterator[None]:
    """A runtime directory of the benchmark's own, whose senders end with it."""
    directory = tempfile.mkdtemp(prefix="cyp-bench-")
    before = os.environ.get("CYPRODUCER_RUNTIME_DIR")
    os.environ["CYPRODUCER_RUNTIME_DIR"] = directory
    try:
        yield
    finally:
        try:
            for sender in status():
                stop(sender["socket"], 10)
        finally:
            if before is None:
                del os.environ["CYPRODUCER_RUNTIME_DIR"]
            else:
                os.environ["CYPRODUCER_RUNTIME_DIR"] = before
            shutil.rmtree(directory, ignore_errors=True)


def sender_pids() -> list[int]:
    """Senders and supervisors of the benchmark."""
    return [pid for s in status() for pid in (s["sender_pid"], s["supervisor_pid"]) if pid is not None]


def start_worker(module: str, order: dict[str, Any]) -> "subprocess.Popen[str]":
    """A Python process of this package with pipes; its standard error is ours."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


def say(worker: "subprocess.Popen[str]", text: str) -> None:
    """A line to a worker."""
    assert worker.stdin is not None
    worker.stdin.write(text + "\n")
    worker.stdin.flush()


def hear(worker: "subprocess.Popen[str]", what: str) -> dict[str, Any]:
    """The next answer of a worker. Raises RuntimeError if it ended instead."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"{what} ended with status {worker.wait()}")
    answer: dict[str, Any] = json.loads(line)
    return answer


@contextlib.contextmanager
def workers_of(
    orders: list[dict[str, Any]], module: str = "bench.worker"
) -> Iterator[list["subprocess.Popen[str]"]]:
    """Workers that have ended when the block has."""
    started = [start_worker(module, order) for order in orders]
    try:
        yield started
        for worker in started:
            say(worker, "end")
            worker.wait(60)
    finally:
        for worker in started:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


def share(total: int, processes: int, unit: int) -> int:
    """Records of each process: a multiple of the contestant's unit, and at least one unit."""
    return max(1, total // processes // unit) * unit


def measure(broker: Broker, order: Order, name: str, number: int, topic: str) -> Measurement:
    """One contestant once. Raises LostError if the topic does not hold every record afterwards."""
    kind = CONTESTANTS[name]
    ours = issubclass(kind, Cyproducer)
    each = share(order.messages * kind.scale, order.processes, kind.unit)
    warmup = share(order.warmup, order.processes, kind.unit)
    held = broker.records(topic)
    work = {
        "contestant": name,
        "bootstrap": broker.bootstrap,
        "topic": topic,
        "value_bytes": order.value_bytes,
        "settings": (order.ours if ours else order.theirs) or {},
        "warmup": warmup,
        "count": each,
    }
    with workers_of([work] * order.processes) as workers:
        for worker in workers:
            hear(worker, name)
        # Our sender idles while the others have their turn: that is none of their cost.
        senders = CpuMeter(sender_pids() if ours else [])
        brokers = CpuMeter([broker.pid] if broker.pid is not None else [])
        busy = busy_ns()
        for worker in workers:
            say(worker, "go")
        answers = [hear(worker, name) for worker in workers]
        sender_cpu, broker_cpu, busy = senders.used(), brokers.used(), busy_ns() - busy
    front_end = sum(answer["cpu_ns"] for answer in answers)
    took = max(answer["end_ns"] for answer in answers) - min(answer["begin_ns"] for answer in answers)
    sent = order.processes * (each + warmup)
    arrived = broker.records(topic) - held
    if arrived != sent or broker.faults():
        raise LostError(
            f"{name}: {sent} records were acknowledged, the topic grew by {arrived}, "
            f"the broker refused {broker.faults()} batches"
        )
    return Measurement(
        name,
        number,
        order.processes * each,
        took / 1e9,
        front_end,
        sender_cpu,
        broker_cpu,
        max(0, busy - front_end - sender_cpu - broker_cpu),
    )


def run(broker: Broker, order: Order) -> Iterator[Measurement]:
    """All contestants, A B C A B C; each measurement as it is made. A round has a topic of its own."""
    for number in range(order.rounds):
        topic = f"bench-{os.getpid()}-{time.time_ns()}"
        broker.create_topic(topic, order.partitions)
        try:
            for name in order.contestants:
                yield measure(broker, order, name, number, topic)
        finally:
            broker.delete_topic(topic)
