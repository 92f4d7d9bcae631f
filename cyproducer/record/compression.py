"""Compresses the records of a RecordBatch, in the framing that every Kafka client reads.

The records behind the batch header are compressed as one unit:
gzip    one member (RFC 1952)
snappy  the blocks of snappy-java: magic, two versions, then length and raw block for each block
lz4     one frame of version 1 with independent blocks of 64 KiB, no checksums and no content size, as Kafka's
        KafkaLZ4BlockOutputStream writes it (Java readers refuse linked blocks)
zstd    one frame
Reference: Kafka's documentation, "Record Batch", attributes 0 to 2; KIP-390 for the levels.
"""

import contextlib
import struct
from collections.abc import Callable
from typing import Any

__all__ = ["CODES", "DEFAULT_LEVELS", "compressor", "import_library"]

#: The codec's number in a batch's attributes.
CODES = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
#: The default level of each codec, as in Kafka's Java client. snappy has no levels.
DEFAULT_LEVELS = {"gzip": 6, "lz4": 9, "zstd": 3}

_BLOCK_BYTES = 65536
_SNAPPY_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
# FLG: version 1, independent blocks; BD: blocks of 64 KiB; then the second byte of the xxHash32 of these two
_LZ4_HEADER = b"\x04\x22\x4d\x18" + bytes((0x60, 0x40, 0x82))
_LZ4_STORED = 0x80000000
_LZ4_END = bytes(4)

Compress = Callable[[Any], Any]


def import_library() -> None:
    """Import the library of all codecs, if it is installed: its files may be removed while the process runs."""
    with contextlib.suppress(ImportError):
        import cramjam  # noqa: F401


def compressor(codec: str, level: int | None = None) -> Compress:
    """Return the function that compresses the records of a batch, from contiguous bytes to a buffer.

    `level` is within config.COMPRESSION_LEVELS. Raise ValueError for another codec, ImportError if
    cramjam is not installed.
    """
    import cramjam

    chosen = DEFAULT_LEVELS.get(codec) if level is None else level
    if codec == "gzip":
        return lambda data: cramjam.gzip.compress(data, level=chosen)
    if codec == "zstd":
        return lambda data: cramjam.zstd.compress(data, level=chosen)
    if codec == "snappy":
        raw = cramjam.snappy.compress_raw
        return lambda data: _snappy(raw, memoryview(data))
    if codec != "lz4":
        raise ValueError(f"there is no compressor for {codec!r}")
    if chosen == DEFAULT_LEVELS["lz4"]:  # as in Java: the default level is the fast compressor, others are LZ4 HC
        block = cramjam.lz4.compress_block
        return lambda data: _lz4(lambda part: block(part, store_size=False), memoryview(data))
    frame = cramjam.lz4.compress
    return lambda data: _lz4(lambda part: _only_block(frame(part, level=chosen)), memoryview(data))


def _snappy(raw: Compress, data: memoryview) -> bytes:
    parts: list[Any] = [_SNAPPY_HEADER]
    for at in range(0, len(data), _BLOCK_BYTES):
        block = raw(data[at : at + _BLOCK_BYTES])
        parts += (struct.pack(">i", len(block)), block)
    return b"".join(parts)


def _only_block(frame: Any) -> Any:
    """Return the block of a frame of up to 64 KiB: cramjam's blocks have no levels, and Java refuses its frames."""
    size = struct.unpack_from("<I", frame, len(_LZ4_HEADER))[0]
    at = len(_LZ4_HEADER) + 4
    return memoryview(frame)[at : at + (size & ~_LZ4_STORED)]


def _lz4(compress_block: Compress, data: memoryview) -> bytes:
    parts: list[Any] = [_LZ4_HEADER]
    for at in range(0, len(data), _BLOCK_BYTES):
        part = data[at : at + _BLOCK_BYTES]
        block = compress_block(part)
        if len(block) < len(part):
            parts += (struct.pack("<I", len(block)), block)
        else:
            parts += (struct.pack("<I", len(part) | _LZ4_STORED), part)
    parts.append(_LZ4_END)
    return b"".join(parts)
