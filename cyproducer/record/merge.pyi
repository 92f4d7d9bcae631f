"""Declares the types of the compiled module merge."""

from typing_extensions import Buffer

def merge(
    source: Buffer, count: int, timestamp_shift: int, first_offset_delta: int, target: Buffer
) -> tuple[int, int]: ...
def scan(source: Buffer, count: int) -> int: ...
