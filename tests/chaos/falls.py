"""Finds the records of dead front-ends that are lost because a supervisor and its sender died together.

No other process holds the memory of such front-ends. Nothing here depends on guesses about time: the arena of a dead
front-end does not change, so its records that were not done when both processes were gone are exactly those that may be
missing.
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from support import layout

from chaos.records import named_in
from cyproducer.host.control_messages import peer_credentials

_ARENA = "cyproducer-arena"
_HEADER, _ROW = "cyp_arena_header", "cyp_slot_row"
_UNIT_BYTES = 4096
_STATE_SHIFT, _COUNT_SHIFT, _COUNT_MASK, _BYTES_MASK = 60, 18, 0xFFFF, 0x3FFFF
_GENERATION_MASK = 0xFFFFFF << 34
_OPEN, _TAKEN = 1, 3
_FOLLOW_S = 0.005


@dataclass
class Fall:
    """The death of a supervisor and its sender without a successor.

    begin, end  before the first signal, and when both were gone (monotonic ns)
    founder     pid of the supervisor that made the socket: it identifies this line of processes
    held        {incarnation: numbers} of the records in arenas that were not done at the end; if the front-end
                lived on, those that it had not given up itself
    at_begin    the same at the beginning
    """

    begin: int
    end: int
    founder: int
    held: dict[int, set[int]] = field(default_factory=dict)
    at_begin: dict[int, set[int]] = field(default_factory=dict)


class Arenas:
    """Keeps the arenas that some processes hold, to read them after the end of these processes."""

    def __init__(self, pids: list[int]) -> None:
        self.pids = pids
        self.fds: dict[tuple[int, int], int] = {}
        self.take()

    def take(self) -> None:
        """Keep also the arenas that were added in the meantime."""
        for pid in self.pids:
            with contextlib.suppress(OSError):
                for entry in os.listdir(f"/proc/{pid}/fd"):
                    self._keep(Path(f"/proc/{pid}/fd/{entry}"))

    def _keep(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            if _ARENA not in os.readlink(path):
                return
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(fd)
            known = self.fds.setdefault((status.st_dev, status.st_ino), fd)
            if known != fd:
                os.close(fd)

    def read(self) -> dict[int, set[int]]:
        """Return {incarnation: numbers} of all records that are not done."""
        found: dict[int, set[int]] = {}
        for fd in self.fds.values():
            for incarnation, number in _not_done(fd):
                found.setdefault(incarnation, set()).add(number)
        return found

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)
        self.fds.clear()


@contextlib.contextmanager
def falling(pids: list[int], founder: int) -> Iterator[Fall]:
    """Record the death of the processes in the block. Yield a Fall that is complete at the end of the block."""
    fall = Fall(time.monotonic_ns(), 0, founder)
    arenas, over = Arenas(pids), threading.Event()
    fall.at_begin = arenas.read()

    def follow() -> None:
        while not over.wait(_FOLLOW_S):
            arenas.take()

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        yield fall
    finally:
        over.set()
        follower.join()
        fall.end = time.monotonic_ns()
        fall.held = arenas.read()
        arenas.close()


def _not_done(fd: int) -> list[tuple[int, int]]:
    """Return (incarnation, number) of the records in an arena's chunks that are open or closed but not done.

    If the owner lives, chunks may be freed and used again meanwhile: the batches in those were settled.
    """
    header = layout.read_all(os.pread(fd, layout.size(_HEADER), 0), _HEADER, 0)
    row_bytes, slots_offset = layout.size(_ROW), header["slots_offset"]
    table = os.pread(fd, header["slot_count"] * row_bytes, slots_offset)
    words = layout.column(table, _ROW, 0, header["slot_count"], "word")
    state = words >> np.uint64(_STATE_SHIFT)
    found = []
    for slot in np.flatnonzero((state >= _OPEN) & (state <= _TAKEN)):
        word = int(words[slot])
        chunk = os.pread(fd, word & _BYTES_MASK, header["chunks_offset"] + int(slot) * _UNIT_BYTES)
        again = os.pread(fd, row_bytes, slots_offset + int(slot) * row_bytes)
        later = layout.read(again, _ROW, 0, "word")
        if later & _GENERATION_MASK == word & _GENERATION_MASK and later >> _STATE_SHIFT in range(_OPEN, _TAKEN + 1):
            found += named_in(chunk, word >> _COUNT_SHIFT & _COUNT_MASK)
    return found


def founder_of(path: str) -> int:
    """Return the pid of the process that listens, or that made the socket and passed it on; 0: no process answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(1.0)
        try:
            sock.connect(path)
            return peer_credentials(sock)[0]
        except OSError:
            return 0
