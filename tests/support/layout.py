"""Reads and writes fields of shared memory by name, where the built package has them (cyproducer/shm/layout.h).

A memory is a memoryview, an mmap, or bytes that were read from a region. Places are bytes in it.
"""

import mmap
import struct
from typing import Any

from probe.native import layout

__all__ = [
    "LAYOUT",
    "column",
    "offset",
    "read",
    "read_all",
    "read_bytes",
    "read_from",
    "size",
    "sticky",
    "write",
    "write_to",
]

#: {struct: {field: (offset, size, form)}}, see probe.native.layout().
LAYOUT = layout()

Memory = memoryview | mmap.mmap


def size(owner: str) -> int:
    """Return the bytes of a struct."""
    return LAYOUT[owner][""][1]


def offset(owner: str, field: str) -> int:
    """Return where a field begins in its struct."""
    return LAYOUT[owner][field][0]


def read(memory: Memory | bytes, owner: str, at: int, field: str) -> int:
    """Return a field of the struct at `at`."""
    start, _, form = LAYOUT[owner][field]
    value: int = struct.unpack_from("=" + form, memory, at + start)[0]
    return value


def read_bytes(memory: Memory | bytes, owner: str, at: int, field: str) -> bytes:
    """Return the bytes of a field of the struct at `at`."""
    start, count, _ = LAYOUT[owner][field]
    return bytes(memory[at + start : at + start + count])


def read_all(memory: Memory | bytes, owner: str, at: int) -> dict[str, int]:
    """Return all fields of the struct at `at` that are numbers."""
    return {field: read(memory, owner, at, field) for field, (_, _, form) in LAYOUT[owner].items() if form != "s"}


def write(memory: Memory, owner: str, at: int, **values: int | bytes) -> None:
    """Store fields of the struct at `at`, in the order of the arguments: numbers, or the first bytes of an array.

    Each is stored in one step: pack_into() would store zeros first, which another process could see.
    """
    for field, value in values.items():
        start, count, form = LAYOUT[owner][field]
        data = value if isinstance(value, bytes) else struct.pack("=" + form, value)
        assert len(data) <= count, field
        memory[at + start : at + start + len(data)] = data


def sticky(snapshot: memoryview, topic: int) -> int:
    """Return the sticky partition of a topic, by the topic's number with its generation."""
    at = read(snapshot, "cyp_snapshot_header", 0, "sticky_offset")
    return snapshot[at:].cast("i")[topic & 0x3FFF]


def column(memory: memoryview | bytes, owner: str, at: int, count: int, field: str) -> Any:
    """Return a field of `count` structs from `at` on, as a NumPy array over the memory."""
    import numpy as np

    start, _, form = LAYOUT[owner][field]
    return np.ndarray(count, np.dtype("=" + form), memory, at + start, (size(owner),))


def read_from(fd: int, owner: str, at: int, field: str) -> int:
    """Return a field of the struct at `at` in the region of a descriptor."""
    with mmap.mmap(fd, 0) as memory:
        return read(memory, owner, at, field)


def write_to(fd: int, owner: str, at: int, **values: int | bytes) -> None:
    """Store fields as write(), in the region of a descriptor."""
    with mmap.mmap(fd, 0) as memory:
        write(memory, owner, at, **values)
