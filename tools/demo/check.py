"""Reads everything back with confluent-kafka's consumer, and compares it with the records that were sent."""

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from demo.arrays import Row
from demo.input import SourceFile, identifiers_by_words
from demo.workers import Placed

# Reading ends when no record arrives for this time. Every record that is missing then is a difference.
SILENCE_S = 30.0
_FETCH = 5000

Expected = TypeVar("Expected")


class Check(Protocol):
    """The check of one topic. `records` and `bytes` (of keys and values) count what was read."""

    records: int
    bytes: int

    def take(self, message: Any) -> None:
        """Compare a message; messages arrive in the order of their partition."""

    def finish(self) -> None:
        """Compare what can only be compared after the last message."""

    differences: list[str]


class _Counting:
    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.records = 0
        self.bytes = 0
        self.differences: list[str] = []

    def differ(self, text: str) -> None:
        self.differences.append(f"{self.topic}: {text}")


class _Lines:
    """The lines of one file that were read."""

    __slots__ = ("file", "hasher", "next", "offset_sum", "partition")

    def __init__(self, file: SourceFile) -> None:
        self.file = file
        self.next = 1
        self.hasher = hashlib.blake2b(digest_size=16)
        self.offset_sum = 0
        self.partition = -1


class LinesCheck(_Counting):
    """Checks every line of every file: order, header, timestamp, content, and the offsets in the futures."""

    def __init__(self, topic: str, files: Iterable[SourceFile], placed: dict[bytes, Placed]) -> None:
        super().__init__(topic)
        self._files = {file.key: _Lines(file) for file in files}
        self._placed = placed

    def take(self, message: Any) -> None:
        """Compare a message with the next line of its file."""
        key, value = message.key(), message.value()
        self.records += 1
        self.bytes += len(key or b"") + len(value or b"")
        came = self._files.get(key)
        if came is None or value is None:
            self.differ(f"a record with the unknown key {key!r}, or without a value")
            return
        number = came.next
        if message.headers() != [("line", b"%d" % number)]:
            self.differ(f"{came.file.name}: headers {message.headers()}, expected those of line {number}")
        if message.timestamp()[1] != came.file.first_timestamp + number - 1:
            self.differ(f"{came.file.name}, line {number}: timestamp {message.timestamp()[1]}")
        came.next = number + 1
        came.hasher.update(value)
        came.offset_sum += message.offset()
        came.partition = message.partition()

    def finish(self) -> None:
        """Compare counts, content and offsets of each file."""
        for key, came in self._files.items():
            name = came.file.name
            if came.next - 1 != came.file.lines:
                self.differ(f"{name}: {came.next - 1} of {came.file.lines} lines were read")
            elif came.hasher.digest() != came.file.digest:
                self.differ(f"{name}: the content differs")
            promised = self._placed.get(key)
            if promised is not None and (came.partition, came.offset_sum) != (
                promised.partition,
                promised.offset_sum,
            ):
                self.differ(f"{name}: the offsets differ from those in the futures")


class _InOrder(_Counting, Generic[Expected]):
    """Checks that each key has the expected rows in the expected order."""

    def __init__(self, topic: str, expected: dict[bytes, list[Expected]]) -> None:
        super().__init__(topic)
        self._expected = expected
        self._came: Counter[bytes] = Counter()

    def _next(self, message: Any) -> Expected | None:
        """Return the row that the message should be, by its key; None if no further row is expected."""
        key, value = message.key(), message.value()
        self.records += 1
        self.bytes += len(key or b"") + len(value or b"")
        rows = self._expected.get(key, [])
        self._came[key] += 1
        if self._came[key] > len(rows):
            self.differ(f"an unexpected record with the key {key!r}: {value!r:.100}")
            return None
        return rows[self._came[key] - 1]

    def finish(self) -> None:
        """Note the records that are missing."""
        for key, rows in self._expected.items():
            if self._came[key] < len(rows):
                self.differ(f"key {key!r}: {self._came[key]} of {len(rows)} records were read")


class SequenceCheck(_InOrder[Row]):
    """Checks that each key has these rows in this order, at the place that the future gave (if it gave one)."""

    def __init__(self, topic: str, rows: Iterable[Row]) -> None:
        expected: dict[bytes, list[Row]] = {}
        for row in rows:
            expected.setdefault(row.key, []).append(row)
        super().__init__(topic, expected)

    def take(self, message: Any) -> None:
        """Compare a message with the next row of its key."""
        row = self._next(message)
        if row is None:
            return
        key, value, number = message.key(), message.value(), self._came[message.key()]
        if value != row.value:
            self.differ(f"key {key!r}, record {number}: {value!r:.100} instead of {row.value!r:.100}")
        if tuple(message.headers() or ()) != row.headers:
            self.differ(f"key {key!r}, record {number}: headers {message.headers()}")
        if message.timestamp()[1] != row.timestamp:
            self.differ(f"key {key!r}, record {number}: timestamp {message.timestamp()[1]}")
        if row.place != (-1, -1) and row.place != (message.partition(), message.offset()):
            self.differ(f"key {key!r}, record {number}: the place differs from {row.place}, which the future gave")


class IdentifiersCheck(_InOrder[tuple[bytes, int]]):
    """Checks Spark's counts of the identifiers of each file, in their order, with another way of counting.

    `timestamps`: the expected timestamps of the records, by key.
    """

    def __init__(self, topic: str, job: str, files: Iterable[SourceFile], timestamps: dict[bytes, int]) -> None:
        super().__init__(topic, {file.key: sorted(identifiers_by_words(file.read()).items()) for file in files})
        self._headers = [("job", job.encode())]
        self._timestamps = timestamps

    def take(self, message: Any) -> None:
        """Compare a message with the next identifier of its file and its count."""
        row = self._next(message)
        if row is None:
            return
        key, value, number = message.key(), message.value(), self._came[message.key()]
        word, count = row
        try:
            said = json.loads(value)
        except (ValueError, TypeError):
            said = None
        if said != {"identifier": word.decode(), "count": count}:
            self.differ(f"key {key!r}, record {number}: {value!r:.100}, expected {word!r}: {count}")
        if message.headers() != self._headers:
            self.differ(f"key {key!r}, record {number}: headers {message.headers()}")
        if message.timestamp()[1] != self._timestamps[key]:
            self.differ(f"key {key!r}, record {number}: timestamp {message.timestamp()[1]}")


def read_back(servers: str, checks: dict[str, Check], tick: Callable[[int], None]) -> None:
    """Pass every record of the topics in `checks` to its check, until the end of each partition.

    Call `tick` with the number of records several times a second.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "cyproducer-demo-check",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 65536,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        left: dict[tuple[str, int], int] = {}
        for topic in checks:
            for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
                low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
                if high > low:
                    left[topic, partition] = high
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in left])
        _read(consumer, checks, left, tick)
    finally:
        consumer.close()
    for check in checks.values():
        check.finish()


def _read(
    consumer: Any,
    checks: dict[str, Check],
    left: dict[tuple[str, int], int],
    tick: Callable[[int], None],
) -> None:
    read = 0
    deadline = time.monotonic() + SILENCE_S
    while left and time.monotonic() < deadline:
        messages = consumer.consume(_FETCH, 0.2)
        for message in messages:
            if message.error() is not None:
                continue
            place = (message.topic(), message.partition())
            checks[place[0]].take(message)
            if message.offset() + 1 >= left.get(place, 0):
                left.pop(place, None)
        if messages:
            read += len(messages)
            deadline = time.monotonic() + SILENCE_S
        tick(read)
