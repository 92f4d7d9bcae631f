"""Reads everything back with confluent-kafka's consumer, and compares it with the files of the input."""

import itertools
import json
import os
import re
import struct
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from demo.input import Input

# Reading ends when no record arrives for this time. Every record that is missing then is a difference.
SILENCE_S = 30.0
SHOWN_DIFFERENCES = 20
TEXT_BYTES = 500_000
_IDENTIFIER = re.compile(rb"(?<![0-9A-Za-z_])[A-Za-z_][0-9A-Za-z_]*")


class Expected(NamedTuple):
    """A record as it must come back."""

    value: bytes
    headers: list[tuple[str, bytes]]


#: The records of a topic by their key. Those of a key must arrive in this order.
Records = dict[bytes, Iterator[Expected]]


class TopicCheck:
    """Compares the records of a topic with those that must be there. `differences` has the first ones as texts."""

    def __init__(self, name: str, expected: Records) -> None:
        self.name = name
        self.records = self.bytes = self.count = 0
        self.differences: list[str] = []
        self._left = expected

    def compare(self, message: Any) -> None:
        """Compare a message with the next record of its key."""
        key, value = message.key() or b"", message.value() or b""
        self.records += 1
        self.bytes += len(key) + len(value)
        wanted = next(self._left.get(key, iter(())), None)
        if wanted is None:
            self._differ(f"an unexpected record with the key {key!r}: {value!r:.100}")
        elif wanted != (value, message.headers() or []):
            self._differ(f"key {key!r}: {value!r:.100} with headers {message.headers()} instead of {wanted!r:.200}")

    def finish(self) -> None:
        """Add the records that are missing."""
        for key, rest in self._left.items():
            if missing := sum(1 for _ in rest):
                self._differ(f"key {key!r}: {missing} records are missing")

    def _differ(self, text: str) -> None:
        self.count += 1
        if len(self.differences) < SHOWN_DIFFERENCES:
            self.differences.append(f"{self.name}: {text}")


def records_of_example(tree: Input) -> dict[str, Records]:
    """Return what examples/demo.py sends, by the last part of the topic's name."""
    texts: dict[bytes, list[Path]] = defaultdict(list)
    for file in tree.files:
        texts[os.path.dirname(_name(tree, file)) or b"."].append(file)
    return {
        "lines": {_name(tree, file): _numbered_lines(file) for file in tree.files},
        "files": {_name(tree, file): _facts(file) for file in tree.files},
        "texts": {directory: _texts(tree, files) for directory, files in texts.items()},
        "directories": {
            directory: iter([Expected(_json({"directory": os.fsdecode(directory), "files": len(files)}), [])])
            for directory, files in texts.items()
        },
    }


def records_of_spark(tree: Input, streamed: dict[str, Path]) -> dict[str, Records]:
    """Return what demo/spark_jobs.py sends. `streamed` are the files of the streaming query by their names there."""
    counts = Counter(itertools.chain.from_iterable(_IDENTIFIER.findall(file.read_bytes()) for file in tree.files))
    return {
        "identifiers": {word: iter([Expected(b"%d" % count, [])]) for word, count in counts.items()},
        "stream": {name.encode(): _plain_lines(file) for name, file in streamed.items()},
    }


def _name(tree: Input, file: Path) -> bytes:
    return os.fsencode(file.relative_to(tree.root))


def _json(document: object) -> bytes:
    return json.dumps(document).encode()


def _numbered_lines(file: Path) -> Iterator[Expected]:
    for number, line in enumerate(file.read_bytes().splitlines(keepends=True), 1):
        yield Expected(line, [("line", b"%d" % number)])


def _plain_lines(file: Path) -> Iterator[Expected]:
    for line in file.read_bytes().splitlines():
        yield Expected(line, [("job", b"stream")])


def _facts(file: Path) -> Iterator[Expected]:
    data = file.read_bytes()
    yield Expected(struct.pack("<qiq", len(data), len(data.splitlines()), int(file.stat().st_mtime)), [])


def _texts(tree: Input, files: list[Path]) -> Iterator[Expected]:
    for file in files:
        yield Expected(file.read_bytes()[:TEXT_BYTES], [("file", _name(tree, file))])


def read_back(servers: str, checks: dict[str, TopicCheck]) -> None:
    """Pass every committed record of the topics in `checks` to its check, until the end of each partition."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "cyproducer-demo-check",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
            "queued.max.messages.kbytes": 65536,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    try:
        left = {
            (topic, partition)
            for topic in checks
            for partition in consumer.list_topics(topic, timeout=30).topics[topic].partitions
        }
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING) for place in left])
        deadline = time.monotonic() + SILENCE_S
        while left and time.monotonic() < deadline:
            for message in consumer.consume(5000, 0.2):
                deadline = time.monotonic() + SILENCE_S
                topic, error = str(message.topic()), message.error()
                if error is None:
                    checks[topic].compare(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((topic, message.partition()))
    finally:
        consumer.close()
    for check in checks.values():
        check.finish()
