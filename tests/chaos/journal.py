"""Writes and reads the journal of a front-end, a file that survives a `kill -9`: intents, acceptances, outcomes.

A line is 32 bytes in one write(2) to a file opened with O_APPEND. A page holds a whole number of lines, so that an
interrupted write (the kernel checks for a SIGKILL between two pages) leaves whole lines.
"""

import os
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

LINE = struct.Struct("<BBHiqqq")
LINE_BYTES = LINE.size
DTYPE = np.dtype(
    [
        ("kind", "u1"),
        ("flags", "u1"),
        ("spare", "<u2"),
        ("code", "<i4"),
        ("number", "<i8"),
        ("value", "<i8"),
        ("time", "<i8"),
    ]
)
(BEGIN, INTENT, ACCEPTED, REFUSED, ACKED, FAILED, ATTACHED, END, SAFE) = range(1, 10)
#: Flags of END: `close()` returned; else the process left with outcomes outstanding, which is allowed: by an orderly
#: exit, or by _exit (0).
CLOSED, EXIT = 1, 2
#: Flag of FAILED: some rows of the bulk call failed, not all.
SOME = 1
SUFFIX = ".journal"


def name_of(slot: int, life: int) -> str:
    """Return the file of the `life`-th process in a slot (a front-end's place, filled again when it dies)."""
    return f"{slot}-{life}{SUFFIX}"


def incarnation_of(path: Path) -> int:
    """Return a number for a journal, unique in a run; records carry it."""
    slot, life = path.name.removesuffix(SUFFIX).split("-")
    return int(slot) * 1_000_000 + int(life)


def start_ticks(pid: int) -> int:
    """Return when a process began (clock ticks since boot), which with its pid identifies it. 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except OSError:
        return 0


class Writer:
    """Appends lines; threads may share one. Times are CLOCK_MONOTONIC in ns."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self.put(BEGIN, os.getpid(), start_ticks(os.getpid()))

    def put(self, kind: int, number: int, value: int = 0, code: int = 0, flags: int = 0) -> None:
        os.write(self.fd, LINE.pack(kind, flags, 0, code, number, value, time.monotonic_ns()))

    def put_acked(self, first: int, partitions: "np.ndarray", offsets: "np.ndarray") -> None:
        """Write ACKED for records that follow one another."""
        lines = np.zeros(len(offsets), DTYPE)
        lines["kind"] = ACKED
        lines["number"] = np.arange(first, first + len(offsets))
        lines["code"] = partitions
        lines["value"] = offsets
        lines["time"] = time.monotonic_ns()
        os.write(self.fd, lines.tobytes())

    def close(self) -> None:
        os.close(self.fd)


@dataclass
class Life:
    """A journal as it was read: one process, its records 0 .. count-1 in the order of send().

    accepted, refused   bool per record: send() returned, or raised
    outcomes            number of journaled outcomes per record (1 is right)
    error               code of the outcome, 0: acknowledged
    some                bool per record: the error is that of a bulk call of which this row may have been written
    bulk                bool per record: sent by a bulk call, which has an outcome when all of its rows have one
    partition, offset   of the acknowledgement; -1: none, or unknown
    intended, resolved  times of the intent and of the outcome in ns, 0: none
    ended, end          None: killed; else the flags of END, and its time
    safe                (time, founder): from this time on, the records accepted before it, and those accepted until
                        the next such entry, are in an arena that the senders of that founder hold
    """

    incarnation: int
    pid: int
    began: int
    count: int
    accepted: "np.ndarray"
    refused: "np.ndarray"
    outcomes: "np.ndarray"
    error: "np.ndarray"
    some: "np.ndarray"
    bulk: "np.ndarray"
    partition: "np.ndarray"
    offset: "np.ndarray"
    intended: "np.ndarray"
    resolved: "np.ndarray"
    last: int = 0
    ended: int | None = None
    end: int = 0
    safe: list[tuple[int, int]] = field(default_factory=list)
    attach_ns: list[int] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)


def begin_of(path: Path) -> tuple[int, int] | None:
    """Return (pid, start ticks) of the process that writes a journal; None if its first line is not there yet."""
    with open(path, "rb") as file:
        line = file.read(LINE_BYTES)
    if len(line) < LINE_BYTES:
        return None
    _, _, _, _, pid, ticks, _ = LINE.unpack(line)
    return pid, ticks


def read(path: Path) -> Life:
    """Read a journal, however its writer died."""
    lines = np.fromfile(path, DTYPE)
    intents = lines[lines["kind"] == INTENT]
    count = int((intents["number"] + intents["value"]).max()) if len(intents) else 0
    life = Life(
        incarnation_of(path),
        0,
        0,
        count,
        np.zeros(count, bool),
        np.zeros(count, bool),
        np.zeros(count, "u4"),
        np.zeros(count, "i4"),
        np.zeros(count, bool),
        np.zeros(count, bool),
        np.full(count, -1, "i4"),
        np.full(count, -1, "i8"),
        np.zeros(count, "i8"),
        np.zeros(count, "i8"),
    )
    begin = lines[lines["kind"] == BEGIN]
    if len(begin):
        life.pid, life.began = int(begin[0]["number"]), int(begin[0]["time"])
    life.last = int(lines["time"].max()) if len(lines) else 0
    _mark(life.intended, intents, intents["time"])
    _mark(life.bulk, intents, intents["value"] > 1)
    for kind, marks in ((ACCEPTED, life.accepted), (REFUSED, life.refused)):
        chosen = lines[lines["kind"] == kind]
        _mark(marks, chosen, np.ones(len(chosen), bool))
    life.refusals = [int(code) for code in lines[lines["kind"] == REFUSED]["code"]]
    acked, failed = lines[lines["kind"] == ACKED], lines[lines["kind"] == FAILED]
    np.add.at(life.outcomes, acked["number"], 1)
    np.add.at(life.outcomes, failed["number"], 1)
    life.error[failed["number"]] = failed["code"]
    life.some[failed["number"]] = failed["flags"] == SOME
    life.partition[acked["number"]] = acked["code"]
    life.offset[acked["number"]] = acked["value"]
    life.resolved[acked["number"]] = acked["time"]
    life.resolved[failed["number"]] = failed["time"]
    life.attach_ns = [int(value) for value in lines[lines["kind"] == ATTACHED]["value"]]
    life.safe = [(int(line["time"]), int(line["value"])) for line in lines[lines["kind"] == SAFE]]
    ends = lines[lines["kind"] == END]
    if len(ends):
        life.ended, life.end = int(ends[-1]["flags"]), int(ends[-1]["time"])
    return life


def _mark(marks: "np.ndarray", lines: "np.ndarray", values: "np.ndarray") -> None:
    """Set the records that each line names to its value."""
    single = lines["value"] == 1
    marks[lines["number"][single]] = values[single]
    for line, value in zip(lines[~single], values[~single], strict=True):
        marks[line["number"] : line["number"] + line["value"]] = value


def read_all(directory: Path) -> list[Life]:
    """Read every journal of a run."""
    return [read(path) for path in sorted(directory.glob(f"*{SUFFIX}"))]
