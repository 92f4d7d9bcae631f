"""Sends every line of standard input as a record: ``cyproducer send TOPIC < lines``."""

import argparse
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from typing import IO, Any, TextIO

from cyproducer import KafkaProducer
from cyproducer.cli.options import add_settings, given_settings
from cyproducer.config.table import BY_NAME
from cyproducer.errors import (
    InvalidTopicError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
    SenderUnavailableError,
    TopicAuthorizationFailedError,
)

__all__ = ["add_arguments", "run"]

# The most records whose outcomes have not been read yet. This and buffer_memory limit the use of memory.
OUTSTANDING_MAX = 50_000
PROGRESS_INTERVAL_S = 0.5
INTERRUPTED = 130
PARTITION_MAX = 2**31 - 1
# These errors would occur for every further line as well, so the command stops reading.
_FINAL = (
    InvalidTopicError,
    KafkaConfigurationError,
    KafkaTimeoutError,
    ProducerClosedError,
    SenderUnavailableError,
    TopicAuthorizationFailedError,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("topic", metavar="TOPIC", help="the topic that the lines are sent to")
    parser.add_argument(
        "--bootstrap-servers", metavar="HOST:PORT,...", help="the brokers to connect to first; default: localhost:9092"
    )
    parser.add_argument(
        "--key-separator",
        metavar="S",
        help="use the part of a line before the first S as the key; a line without S has no key",
    )
    parser.add_argument("--partition", metavar="N", type=_partition, help="send to this partition only")
    parser.add_argument(
        "--header",
        metavar="K=V",
        type=_named,
        action="append",
        default=[],
        help="add a header to each record; the name must be UTF-8; can be repeated",
    )
    add_settings(parser, " of the producer", ", for example linger.ms=50")


def run(args: argparse.Namespace) -> int:
    """Send standard input. Return 0: every line was acknowledged, 1: some were not, 130: interrupted."""
    separator = None if args.key_separator is None else _bytes(args.key_separator)
    if separator == b"":
        raise KafkaConfigurationError("--key-separator is empty; give at least one character")
    settings = _settings(args)
    headers = [_header(text) for text in args.header]
    producer = KafkaProducer(**settings)
    lines = Lines(sys.stdin.buffer, settings_limit(settings), separator)
    sending = Sending(producer, args.topic, args.partition, headers or None, sys.stderr)
    return sending.run(lines)


def settings_limit(settings: dict[str, Any]) -> int:
    """Return the size in bytes of the longest record that the settings allow."""
    given = settings.get("max.request.size")
    default: int = BY_NAME["max_request_size"].default
    return default if given is None else int(given)


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the settings by Kafka's own names, under which a number may be given as text."""
    settings = given_settings(args.config, args.set)
    if args.bootstrap_servers is not None:
        settings["bootstrap.servers"] = args.bootstrap_servers
    elif "bootstrap.servers" not in settings and "sender" not in settings:
        settings["bootstrap.servers"] = "localhost:9092"
    return settings


def _bytes(text: str) -> bytes:
    """Return an argument as the bytes that were typed."""
    return text.encode("utf-8", "surrogateescape")


def _partition(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = -1
    if not 0 <= number <= PARTITION_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {PARTITION_MAX}")
    return number


def _named(text: str) -> str:
    """Return the argument if the part before its first = is valid as a header's name."""
    try:
        text.partition("=")[0].encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"the name in {text!r} is not UTF-8") from None
    return text


def _header(text: str) -> tuple[str, bytes]:
    name, found, value = text.partition("=")
    if not found or not name:
        raise KafkaConfigurationError(f"--header {text}: write name=value")
    return name, _bytes(value)


class Lines:
    """Iterates over a binary stream as (key, value) of each line, without line ends.

    A line of more than `limit` bytes does not fit into a record: the iterator skips it and returns None.
    """

    def __init__(self, stream: IO[bytes], limit: int, separator: bytes | None) -> None:
        self._stream = stream
        self._limit = limit
        self._separator = separator

    def __iter__(self) -> Iterator[tuple[bytes | None, bytes] | None]:
        separator = self._separator
        while line := self._stream.readline(self._limit + 1):
            if line.endswith(b"\n"):
                line = line[:-1]
            elif len(line) > self._limit:
                while line and not line.endswith(b"\n"):
                    line = self._stream.readline(65536)
                yield None
                continue
            if separator is None:
                yield None, line
                continue
            key, found, value = line.partition(separator)
            yield (key, value) if found else (None, line)


class Sending:
    """One run of the command: sends lines with the producer and counts the outcomes."""

    def __init__(
        self,
        producer: KafkaProducer,
        topic: str,
        partition: int | None,
        headers: list[tuple[str, bytes]] | None,
        messages: TextIO,
    ) -> None:
        self.producer = producer
        self.topic = topic
        self.partition = partition
        self.headers = headers
        self.messages = messages
        self.terminal = messages.isatty()
        self.read = 0
        self.bytes = 0
        self.acknowledged = 0
        self.failures: Counter[str] = Counter()
        self.first: dict[str, str] = {}
        self._waiting: deque[Any] = deque()
        self._began = time.monotonic()
        self._next_progress = self._began

    def run(self, lines: Lines) -> int:
        """Send all lines and wait for their outcomes; return the exit status."""
        interrupted = False
        try:
            try:
                self._send_all(lines)
            except _FINAL as error:
                self._count_failure(error)
            self._await_outcomes()
        except KeyboardInterrupt:
            interrupted = True
            self._finish_interrupted()
        finally:
            # After an interrupt, close() must not wait for the outcomes a second time.
            self.producer.close(0 if interrupted else None)
        self._end_progress()
        self._summary()
        if interrupted:
            return INTERRUPTED
        return 1 if self.failures else 0

    def _send_all(self, lines: Lines) -> None:
        send, waiting, topic = self.producer.send, self._waiting, self.topic
        for line in lines:
            self.read += 1
            if line is None:
                self._count_failure(RecordTooLargeError(f"line {self.read} is longer than max.request.size"))
                continue
            key, value = line
            try:
                waiting.append(send(topic, value, key, self.headers, self.partition))
            except _FINAL:
                raise
            except KafkaError as error:
                self._count_failure(error)
                continue
            self.bytes += len(value) + len(key or b"")
            if len(waiting) > OUTSTANDING_MAX or not self.read & 0xFF:
                self._collect(OUTSTANDING_MAX)
                self._progress()

    def _collect(self, leave: int) -> None:
        """Count outcomes, oldest first, that are available; wait while more than `leave` records have no outcome."""
        waiting = self._waiting
        while waiting and (len(waiting) > leave or waiting[0].done()):
            error = waiting[0].exception()
            waiting.popleft()
            if error is None:
                self.acknowledged += 1
            else:
                self._count_failure(error)

    def _await_outcomes(self) -> None:
        """Wait for all outcomes."""
        while self._waiting:
            # Flush with a short timeout, so that the progress line is updated.
            try:
                self.producer.flush(PROGRESS_INTERVAL_S if self.terminal else None)
            except KafkaTimeoutError:
                self._collect(len(self._waiting))
            else:
                self._collect(0)
            self._progress()

    def _finish_interrupted(self) -> None:
        """After Ctrl-C: wait for the records that were accepted, until a second Ctrl-C."""
        self._end_progress()
        text = f"cyproducer send: interrupted after {self.read} lines"
        if self._waiting:
            text += f"; waiting for {len(self._waiting)} records that were accepted (Ctrl-C again: do not wait)"
        print(text, file=self.messages, flush=True)
        try:
            self._await_outcomes()
        except KeyboardInterrupt:
            print(
                f"cyproducer send: not waiting for {len(self._waiting)} records; the sender continues to send them",
                file=self.messages,
            )

    def _count_failure(self, error: BaseException) -> None:
        name = type(error).__name__
        self.failures[name] += 1
        self.first.setdefault(name, str(error))

    def _progress(self) -> None:
        now = time.monotonic()
        if self.terminal and now >= self._next_progress:
            self._next_progress = now + PROGRESS_INTERVAL_S
            rate = self.read / max(now - self._began, 0.001)
            self.messages.write(
                f"\r{self.read} lines, {self.bytes / 1e6:.1f} MB, {self.acknowledged} acknowledged, "
                f"{rate:.0f} lines/s\x1b[K"
            )
            self.messages.flush()

    def _end_progress(self) -> None:
        if self.terminal:
            self._next_progress = 0.0
            self._progress()
            print(file=self.messages)

    def _summary(self) -> None:
        if not self.failures:
            return
        print(
            f"cyproducer send: {self.acknowledged} of {self.read} lines were acknowledged; "
            f"{self.failures.total()} errors:",
            file=self.messages,
        )
        for name, count in self.failures.most_common():
            print(f"  {count} x {name}: {self.first[name]}", file=self.messages)
