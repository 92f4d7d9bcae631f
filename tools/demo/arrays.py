"""Sends arrays in the demo: a structured array, text as (data, offsets), and an Arrow table."""

import os
import time
from dataclasses import dataclass, field
from typing import Any

from cyproducer import KafkaProducer
from demo.input import SourceFile, SourceTree

# Longer texts are cut, because a record must fit into a request.
TEXT_BYTES_MAX = 512 * 1024
HEAD_BYTES_MAX = 16 * 1024

Header = tuple[str, bytes]


@dataclass(frozen=True, slots=True)
class Row:
    """A record that was sent in an array. `place` is (partition, offset) according to its future."""

    key: bytes
    value: bytes
    headers: tuple[Header, ...]
    timestamp: int
    place: tuple[int, int] = (-1, -1)


@dataclass(slots=True)
class BulkSent:
    """One call: its rows in the order of the array, and its duration in seconds, acknowledgements included."""

    rows: list[Row] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def bytes(self) -> int:
        """The number of bytes of keys and values."""
        return sum(len(row.key) + len(row.value) for row in self.rows)


def directory_key(file: SourceFile) -> bytes:
    """Return the key of a file's row: its directory, so that several successive rows have the same key."""
    return os.fsencode(os.path.dirname(file.name) or ".")


def name_header(file: SourceFile) -> Header:
    """Return the header with the name of a row's file."""
    return ("file", os.fsencode(os.path.basename(file.name)))


def send_files(producer: KafkaProducer, topic: str, tree: SourceTree) -> BulkSent:
    """Send a NumPy structured array with size, times, mode and lines of each file; each element is a record."""
    import numpy

    layout = [("size", "<i8"), ("modified_ns", "<i8"), ("changed_ns", "<i8"), ("mode", "<u4"), ("lines", "<u4")]
    facts = numpy.array(
        [(file.size, file.modified_ns, file.changed_ns, file.mode, file.lines) for file in tree.files],
        dtype=layout,
    )
    # The expected bytes are computed here without NumPy, to check the bytes that NumPy has laid out.
    values = [
        b"".join(
            number.to_bytes(width, "little", signed=width == 8)
            for number, width in (
                (file.size, 8),
                (file.modified_ns, 8),
                (file.changed_ns, 8),
                (file.mode, 4),
                (file.lines, 4),
            )
        )
        for file in tree.files
    ]
    return _send(producer, topic, tree, facts, values)


def send_heads(producer: KafkaProducer, topic: str, tree: SourceTree) -> BulkSent:
    """Send variable-length text as (data, offsets): each file up to its first blank line."""
    heads = [file.read().split(b"\n\n", 1)[0][:HEAD_BYTES_MAX] for file in tree.files]
    return _send(producer, topic, tree, _data_and_offsets(heads), heads)


def send_texts(producer: KafkaProducer, topic: str, tree: SourceTree) -> BulkSent:
    """Send an Arrow table with the columns value, key, headers and timestamp: each file's text in one row."""
    import pyarrow

    texts = [file.read()[:TEXT_BYTES_MAX] for file in tree.files]
    rows = _rows(tree, texts)
    header = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))
    table = pyarrow.table(
        {
            "value": pyarrow.array(texts, pyarrow.binary()),
            "key": pyarrow.array([row.key for row in rows], pyarrow.binary()),
            "headers": pyarrow.array(
                [[{"key": name, "value": value} for name, value in row.headers] for row in rows], header
            ),
            "timestamp": pyarrow.array([row.timestamp for row in rows], pyarrow.timestamp("ms", "UTC")),
        }
    )
    began = time.monotonic()
    return _placed(rows, producer.send_arrow(table, topic=topic), began)


def _rows(tree: SourceTree, values: list[bytes]) -> list[Row]:
    return [
        Row(directory_key(file), value, (name_header(file),), file.timestamp)
        for file, value in zip(tree.files, values, strict=True)
    ]


def _data_and_offsets(parts: list[bytes]) -> tuple[Any, Any]:
    import numpy

    offsets = numpy.zeros(len(parts) + 1, dtype=numpy.int64)
    numpy.cumsum([len(part) for part in parts], out=offsets[1:])
    return numpy.frombuffer(b"".join(parts), dtype=numpy.uint8), offsets


def _send(producer: KafkaProducer, topic: str, tree: SourceTree, array: Any, expected: list[bytes]) -> BulkSent:
    import numpy

    rows = _rows(tree, expected)
    keys = _data_and_offsets([row.key for row in rows])
    timestamps = numpy.array([row.timestamp for row in rows], dtype=numpy.int64)
    headers = [list(row.headers) for row in rows]
    began = time.monotonic()
    future = producer.send_array(topic, array, keys=keys, timestamps_ms=timestamps, headers=headers)
    return _placed(rows, future, began)


def _placed(rows: list[Row], future: Any, began: float) -> BulkSent:
    result = future.result()
    seconds = time.monotonic() - began
    places = zip(result.partition.tolist(), result.offset.tolist(), strict=True)
    placed = [
        Row(row.key, row.value, row.headers, row.timestamp, place) for row, place in zip(rows, places, strict=True)
    ]
    return BulkSent(placed, seconds)
