"""Makes and reads the records of a chaos run: each names its incarnation and number, which determine its bytes."""

import random
import re

# Few letters, so that codecs make it smaller.
PATTERN = bytes(random.Random(20).choices(b"abcdefghijklmnop", k=1 << 18))
_STEP = 7919
_NAME = re.compile(rb"(\d+)/(\d+)/")


def value_of(incarnation: int, number: int, size: int) -> bytes:
    """Return a value of about `size` bytes that can be checked without knowing `size`."""
    at = number * _STEP % (len(PATTERN) // 2)
    return b"%d/%d/" % (incarnation, number) + PATTERN[at : at + size]


def parse(value: bytes | None) -> tuple[int, int] | None:
    """Return (incarnation, number) of a value; None if its bytes are not as they were made."""
    parts = (value or b"").split(b"/", 2)
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    number = int(parts[1])
    at = number * _STEP % (len(PATTERN) // 2)
    if parts[2] != PATTERN[at : at + len(parts[2])]:
        return None
    return int(parts[0]), number


def named_in(chunk: bytes, count: int) -> list[tuple[int, int]]:
    """Return (incarnation, number) of the records that begin in a chunk; the last one may continue in another chunk."""
    found, at = [], 0
    for _ in range(count):
        length, inner = _varint(chunk, at)
        at = inner + length
        _, inner = _varint(chunk, inner + 1)  # attributes, timestamp
        _, inner = _varint(chunk, inner)  # offset
        key, inner = _varint(chunk, inner)
        _, inner = _varint(chunk, inner + max(0, key))
        name = _NAME.match(chunk, inner)
        assert name is not None, f"not a record of a chaos run at {inner} of {len(chunk)} bytes"
        found.append((int(name[1]), int(name[2])))
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and the offset behind it."""
    raw, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
