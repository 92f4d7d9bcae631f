"""Four processes that send every line of their files with ``send()``."""

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from cyproducer import KafkaProducer
from cyproducer.cli.demo_input import InputError, SourceFile, deal, split_lines
from cyproducer.errors import KafkaError

WORKERS = 4
# Spawned rather than forked: the demo's own process may run threads of librdkafka.
_PROCESSES = multiprocessing.get_context("spawn")


class WorkerError(Exception):
    """A worker could not send all of its lines; the text says why."""


@dataclass(slots=True)
class Placed:
    """Where the lines of a file went by their futures: the partition, and the sum of their offsets."""

    partition: int
    offset_sum: int


@dataclass(slots=True)
class LinesSent:
    """What the workers did, by key; times are seconds of the monotonic clock, valid in all processes."""

    placed: dict[bytes, Placed] = field(default_factory=dict)
    records: int = 0
    bytes: int = 0
    began: float = 0.0
    ended: float = 0.0


def send_share(
    number: int, producer: KafkaProducer, topic: str, files: list[SourceFile], progress: Any, answer: Connection
) -> None:
    """A worker's work: send the lines of `files`, wait for each one's outcome, and answer with LinesSent.

    The producer came here by pickling, as its settings. `progress` is shared: its element `number` counts
    the lines sent. The answer is a text if something failed.
    """
    # Ctrl-C is the demo's own process' to handle: it ends the workers.
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
    """The futures of the file's lines."""
    key = file.key
    return [
        producer.send(
            topic, line, key, [("line", b"%d" % number)], timestamp_ms=file.first_timestamp + number - 1
        )
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
        for number, share in enumerate(deal(files, WORKERS)):
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
        """Start them; they inherit that SIGINT is ignored."""
        for process, theirs in self._processes:
            process.start()
            theirs.close()
        self._waiting = list(self._answers)

    def sent(self) -> int:
        """Lines handed to ``send()`` up to now."""
        return sum(self._progress)

    def finish(self, tick: Callable[[], None]) -> LinesSent:
        """Wait for all of them, calling `tick` several times a second. Raises WorkerError."""
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
        """End those that still run."""
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
    """Workers that have been started, and are ended at the exit if they still run."""
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
