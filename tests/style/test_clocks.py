"""No wall clock decides anything: whoever reads one only shows it, or stamps a record with it."""

import re

from test_tidy import ROOT, label

WALL_CLOCK = re.compile(
    r"\btime\.time(?:_ns)?\b|\bfrom time import\b|\bdatetime\.|CLOCK_REALTIME|\bgettimeofday\b|\brealtime_coarse_ms\("
    r"|\b(?:gmtime|localtime|st_[mca]time)"
)
#: file: (lines that read a wall clock, what for)
READERS = {
    "cyproducer/shm/linux.h": (1, "timestamps of records"),
    "cyproducer/shm/clock.pxd": (0, "declares it"),
    "cyproducer/producer/producer.pyx": (1, "timestamps of records"),
    "cyproducer/producer/prepared.pyx": (1, "timestamps of records"),
    "cyproducer/producer/bulk.pyx": (1, "timestamps of records"),
    "cyproducer/sender/custody.py": (1, "when a sender was started, for its status"),
    "cyproducer/sender/control.py": (2, "when a sender was started, and records failed, for its status"),
    "cyproducer/sender/succession.py": (1, "when records failed, for the status"),
    "cyproducer/observe/logfmt.py": (1, "the time of a line of the log"),
}


def readers() -> dict[str, int]:
    """How many lines of each source file read a wall clock; the command line's, which only shows, left out."""
    found = {}
    for path in sorted((ROOT / "cyproducer").rglob("*")):
        if path.suffix in (".py", ".pyx", ".pxd", ".h") and "cli" not in path.parts:
            number = sum(bool(WALL_CLOCK.search(line)) for line in path.read_text().splitlines())
            if number:
                found[label(path)] = number
    return found


def test_wall_clocks_are_read_where_it_is_known_what_for():
    assert readers() == {name: number for name, (number, _) in READERS.items() if number}


def test_every_way_to_read_one_is_found():
    for line in (
        "now = time.time()", "field(default_factory=time.time)", "time.time_ns() // 1000", "from time import time",
        "datetime.now()", "time.clock_gettime(time.CLOCK_REALTIME)", "clock_gettime(CLOCK_REALTIME_COARSE, &now);",
        "gettimeofday(&now, NULL);", "self.now = realtime_coarse_ms()", "os.stat(path).st_mtime_ns",
    ):  # fmt: skip
        assert WALL_CLOCK.search(line), line
    for line in ("time.monotonic()", "time.monotonic_ns()", "clock_gettime(CLOCK_MONOTONIC, &now);", "timestamp"):
        assert not WALL_CLOCK.search(line), line
