"""The records of a chaos run: each names its incarnation and number, and its bytes follow from them."""

import random

PATTERN = random.Random(20).randbytes(1 << 18)
_STEP = 7919


def value_of(incarnation: int, number: int, size: int) -> bytes:
    """A value of about `size` bytes that can be checked without knowing `size`."""
    at = number * _STEP % (len(PATTERN) // 2)
    return b"%d/%d/" % (incarnation, number) + PATTERN[at:at + size]


def parse(value: bytes | None) -> tuple[int, int] | None:
    """(incarnation, number) of a value; None if its bytes are not as they were made."""
    parts = (value or b"").split(b"/", 2)
    if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
        return None
    number = int(parts[1])
    at = number * _STEP % (len(PATTERN) // 2)
    if parts[2] != PATTERN[at:at + len(parts[2])]:
        return None
    return int(parts[0]), number
