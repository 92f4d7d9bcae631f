"""Implements RecordBatch v2 in plain Python: the reference for tests of the compiled code.

It encodes exactly as the compiled code does, and decodes strictly: it accepts only one encoding of each content, all
lengths must add up, and the CRC must be right. Otherwise it raises `RecordFormatError` with the reason. It is not
optimized for speed.
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "Batch",
    "Record",
    "RecordFormatError",
    "crc32c",
    "decode_batch",
    "decode_records",
    "encode_batch",
    "encode_record",
    "encode_records",
    "merge_records",
    "varint",
    "varlong",
]

HEADER = struct.Struct(">qiibIhiqqqhii")
CRC_START = 21
LENGTH_BASE = 49
MAGIC = 2
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08


class RecordFormatError(ValueError):
    """The bytes are not a valid RecordBatch v2."""


@dataclass(frozen=True)
class Record:
    """One record. The timestamp is in ms; where a function says so, it is a delta to a base; None is Kafka's null.

    A header is (key, value); bytes of a key that are not UTF-8 become lone surrogates (surrogateescape).
    """

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batch:
    """A decoded batch: the header's fields with Kafka's names, timestamps in ms, and its records."""

    base_offset: int
    partition_leader_epoch: int
    crc: int
    attributes: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records: tuple[Record, ...]


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def crc32c(data: bytes, crc: int = 0) -> int:
    """Return the CRC-32C of `data`; `crc` is the finished checksum of the bytes before it."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def uvarint(value: int) -> bytes:
    """Return the unsigned LEB128 of `value` in its shortest form."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int, bits: int) -> bytes:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise RecordFormatError(f"{value} does not fit into {bits} bits")
    return uvarint(value * 2 if value >= 0 else -value * 2 - 1)


def varint(value: int) -> bytes:
    """Return the zig-zag LEB128 of an int32."""
    return _zigzag(value, 32)


def varlong(value: int) -> bytes:
    """Return the zig-zag LEB128 of an int64."""
    return _zigzag(value, 64)


def _nullable(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def encode_record(record: Record, base_timestamp: int, offset_delta: int) -> bytes:
    """Encode a record with its length field; its timestamp delta is `record.timestamp_ms - base_timestamp`."""
    body = bytearray(b"\0")
    body += varlong(record.timestamp_ms - base_timestamp)
    body += varint(offset_delta)
    body += _nullable(record.key) + _nullable(record.value)
    body += varint(len(record.headers))
    for key, value in record.headers:
        body += _nullable(key.encode("utf-8", "surrogateescape")) + _nullable(value)
    return varint(len(body)) + bytes(body)


def encode_records(records: Iterable[Record], base_timestamp: int, first_offset_delta: int = 0) -> bytes:
    """Encode records one after the other, with offset deltas that start at `first_offset_delta`."""
    return b"".join(encode_record(record, base_timestamp, first_offset_delta + i) for i, record in enumerate(records))


def encode_batch(
    records: Sequence[Record],
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    compress: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Encode a whole batch as a producer sends it: base offset 0, leader epoch -1.

    The base timestamp is that of the first record. `compress` must be the codec that `attributes` names.
    """
    if not records:
        raise RecordFormatError("a batch must have at least one record")
    body = encode_records(records, records[0].timestamp_ms)
    if compress is not None:
        body = compress(body)
    latest = max(record.timestamp_ms for record in records)
    batch = bytearray(
        HEADER.pack(
            0, LENGTH_BASE + len(body), -1, MAGIC, 0, attributes, len(records) - 1,
            records[0].timestamp_ms, latest, producer_id, producer_epoch, base_sequence, len(records),
        )
    )  # fmt: skip
    batch += body
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[CRC_START:])))
    return bytes(batch)


class _Reader:
    """Reads fields from [at, end) of some bytes; raises RecordFormatError if a field leads past the end."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data, self.at, self.end = data, at, end

    def take(self, n: int) -> bytes:
        if n < 0 or n > self.end - self.at:
            raise RecordFormatError(f"{n} bytes at {self.at} lead past {self.end}")
        self.at += n
        return self.data[self.at - n : self.at]

    def zigzag(self, bits: int) -> int:
        raw, shift = 0, 0
        while True:
            byte = self.take(1)[0]
            raw |= (byte & 0x7F) << shift
            if raw >> bits or shift > bits:
                raise RecordFormatError(f"a varint before {self.at} has more than {bits} bits")
            if byte < 0x80:
                break
            shift += 7
        if shift and not byte:
            raise RecordFormatError(f"a varint before {self.at} is not in its shortest form")
        return (raw >> 1) ^ -(raw & 1)

    def nullable(self) -> bytes | None:
        n = self.zigzag(32)
        return None if n == -1 else self.take(n)

    def record(self) -> tuple[int, Record]:
        """Read a record. Return (offset delta, record); the record's timestamp is its delta."""
        length = self.zigzag(32)
        if length < 0 or length > self.end - self.at:
            raise RecordFormatError(f"a record of {length} bytes at {self.at} leads past {self.end}")
        inner = _Reader(self.data, self.at, self.at + length)
        if inner.take(1) != b"\0":
            raise RecordFormatError(f"a record at {self.at} has attributes other than 0")
        timestamp, offset = inner.zigzag(64), inner.zigzag(32)
        key, value = inner.nullable(), inner.nullable()
        count = inner.zigzag(32)
        if count < 0:
            raise RecordFormatError(f"a record at {self.at} has {count} headers")
        headers = []
        for _ in range(count):
            name = inner.nullable()
            if name is None:
                raise RecordFormatError(f"a record at {self.at} has a header without a key")
            headers.append((name.decode("utf-8", "surrogateescape"), inner.nullable()))
        if inner.at != inner.end:
            raise RecordFormatError(f"a record at {self.at} has {inner.end - inner.at} bytes too many")
        self.at = inner.end
        return offset, Record(timestamp, key, value, tuple(headers))


def decode_records(data: bytes, count: int) -> tuple[int, list[Record]]:
    """Decode exactly `count` >= 1 records. Return (first offset delta, records whose timestamps are deltas).

    Offset deltas must be consecutive and not negative.
    """
    if count < 1:
        raise RecordFormatError(f"a batch must have at least one record, not {count}")
    reader = _Reader(data, 0, len(data))
    first, records = 0, []
    for i in range(count):
        offset, record = reader.record()
        if i == 0:
            first = offset
        if offset != first + i or offset < 0:
            raise RecordFormatError(f"record {i} has offset delta {offset}")
        records.append(record)
    if reader.at != len(data):
        raise RecordFormatError(f"there are {len(data) - reader.at} bytes behind the last record")
    return first, records


def merge_records(source: bytes, count: int, timestamp_shift: int, first_offset_delta: int) -> tuple[bytes, int]:
    """Re-encode `count` records. Return (their bytes, the largest shifted timestamp delta)."""
    _, records = decode_records(source, count)
    return (
        encode_records(records, -timestamp_shift, first_offset_delta),
        max(record.timestamp_ms for record in records) + timestamp_shift,
    )


def decode_batch(data: bytes, decompress: Callable[[int, bytes], bytes] | None = None) -> Batch:
    """Decode exactly one batch. Call `decompress(codec, payload)` if the batch is compressed."""
    if len(data) < HEADER.size:
        raise RecordFormatError(f"a batch has at least {HEADER.size} bytes, not {len(data)}")
    (
        base_offset, length, leader_epoch, magic, crc, attributes, last_offset_delta,
        base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    ) = HEADER.unpack_from(data)  # fmt: skip
    if length != len(data) - 12:
        raise RecordFormatError(f"batchLength is {length}, but the batch has {len(data)} bytes")
    if magic != MAGIC:
        raise RecordFormatError(f"magic must be {MAGIC}, not {magic}")
    if crc != crc32c(data[CRC_START:]):
        raise RecordFormatError(f"CRC is {crc:#010x}, but that of the content is {crc32c(data[CRC_START:]):#010x}")
    if last_offset_delta != count - 1:
        raise RecordFormatError(f"lastOffsetDelta is {last_offset_delta}, but there are {count} records")
    payload = data[HEADER.size :]
    if attributes & CODEC_MASK:
        if decompress is None:
            raise RecordFormatError(f"the batch is compressed with codec {attributes & CODEC_MASK}")
        payload = decompress(attributes & CODEC_MASK, payload)
    first, deltas = decode_records(payload, count)
    if first != 0:
        raise RecordFormatError(f"the first offset delta must be 0, not {first}")
    records = tuple(
        Record(base_timestamp + record.timestamp_ms, record.key, record.value, record.headers) for record in deltas
    )
    latest = max(record.timestamp_ms for record in records)
    if not attributes & LOG_APPEND_TIME and max_timestamp != latest:
        raise RecordFormatError(f"maxTimestamp is {max_timestamp}, but the records have {latest}")
    return Batch(
        base_offset, leader_epoch, crc, attributes, base_timestamp, max_timestamp,
        producer_id, producer_epoch, base_sequence, records,
    )  # fmt: skip
