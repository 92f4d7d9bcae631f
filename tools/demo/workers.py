"""Sends every line of the files with ``send()`` from four processes."""

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from cyproducer import KafkaProducer
from cyproducer.errors import KafkaError
from demo.input import InputError, SourceFile, distribute, split_lines

WORKERS = 4
# Spawned instead of forked, because the demo's process may run threads of librdkafka.
_PROCESSES = multiprocessing.get_context("spawn")


class WorkerError(Exception):
    """A worker could not send all of its lines; the text says why."""


@dataclass(slots=True)
class Placed:
    """The place of a file's lines according to their futures: the partition, and the sum of the offsets."""

    partition: int
    offset_sum: int


@dataclass(slots=True)
class LinesSent:
    """The results of the workers. Times are seconds of the monotonic clock, which is the same in all processes."""

    placed: dict[bytes, Placed] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    began: float = 0.0
    ended: float = 0.0


def send_share(
    number: int, producer: KafkaProducer, topic: str, files: list[SourceFile], progress: Any, answer: Connection
) -> None:
    """Send the lines of `files`, wait for all outcomes, and send LinesSent to `answer`; run in a worker.

    The producer arrives pickled, as its settings. `progress` is shared memory: its element `number` counts
    the lines sent. After a failure the answer is a text.
    """
    # The demo's main process handles Ctrl-C and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sent = LinesSent(began=time.monotonic())
    futures: dict[bytes, list[Any]] = {}
    try:
        with producer:
            for file in files:
                futures[file.key] = _send_file(producer, topic, file)
                sent.records += file.lines
                sent.bytes += file.size + file.lines * len(file.key)
                progress[number] = sent.records
            producer.flush()
            for key, of_file in futures.items():
                records = [future.result() for future in of_file]
                if records:
                    sent.placed[key] = Placed(records[0].partition, sum(record.offset for record in records))
    except (KafkaError, InputError, OSError) as error:
        answer.send(f"{type(error).__name__}: {error}")
        return
    sent.ended = time.monotonic()
    answer.send(sent)


def _send_file(producer: KafkaProducer, topic: str, file: SourceFile) -> list[Any]:
    """Send the lines of a file and return their futures."""
    key = file.key
    return [
        producer.send(topic, line, key, [("line", b"%d" % number)], timestamp_ms=file.first_timestamp + number - 1)
        for number, line in enumerate(split_lines(file.read()), 1)
    ]


class Workers:
    """The worker processes of one run."""

    def __init__(self, producer: KafkaProducer, topic: str, files: list[SourceFile]) -> None:
        self._progress = _PROCESSES.RawArray("Q", WORKERS)
        self._answers: list[Connection] = []
        self._waiting: list[Connection] = []
        self._processes = []
        self.total = LinesSent(began=float("inf"))
        for number, share in enumerate(distribute(files, WORKERS)):
            ours, theirs = _PROCESSES.Pipe(duplex=False)
            self._answers.append(ours)
            process = _PROCESSES.Process(
                target=send_share,
                args=(number, producer, topic, share, self._progress, theirs),
                name=f"cyproducer-demo-{number}",
                daemon=True,
            )
            self._processes.append((process, theirs))

    def start(self) -> None:
        """Start the processes. The caller ignores SIGINT, and they inherit that."""
        for process, theirs in self._processes:
            process.start()
            theirs.close()
        self._waiting = list(self._answers)

    def sent(self) -> int:
        """Return the number of lines that were passed to ``send()`` so far."""
        return sum(self._progress)

    def finish(self, tick: Callable[[], None]) -> LinesSent:
        """Wait for all workers and return their results. Call `tick` several times a second. Raise WorkerError."""
        while self._waiting:
            ready = wait(list(self._waiting), 0.25)
            for answer in [answer for answer in self._waiting if answer in ready]:
                self._waiting.remove(answer)
                self._take(answer)
            tick()
        for process, _ in self._processes:
            process.join()
        return self.total

    def _take(self, answer: Connection) -> None:
        number = self._answers.index(answer)
        try:
            sent = answer.recv()
        except EOFError:
            process = self._processes[number][0]
            process.join(10)
            raise WorkerError(f"worker {number} ended with status {process.exitcode}") from None
        if isinstance(sent, str):
            raise WorkerError(f"worker {number} failed: {sent}")
        self.total.placed.update(sent.placed)
        self.total.records += sent.records
        self.total.bytes += sent.bytes
        self.total.began = min(self.total.began, sent.began)
        self.total.ended = max(self.total.ended, sent.ended)

    def stop(self) -> None:
        """End the workers that still run."""
        for process, theirs in self._processes:
            theirs.close()
            if process.pid is not None:
                process.terminate()
        for process, _ in self._processes:
            if process.pid is not None:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()
                process.close()
        for answer in self._answers:
            answer.close()


@contextlib.contextmanager
def run_workers(producer: KafkaProducer, topic: str, files: list[SourceFile]) -> Iterator[Workers]:
    """Start workers; end those that still run at the exit."""
    workers = Workers(producer, topic, files)
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            workers.start()
        finally:
            signal.signal(signal.SIGINT, before)
        yield workers
    finally:
        workers.stop()
