"""Tests that no decision depends on a wall clock: code that reads one only shows it, or stamps a record with it."""

import re

from test_tidy import ROOT, label

WALL_CLOCK = re.compile(
    r"\btime\.time(?:_ns)?\b|\bfrom time import\b|\bdatetime\.|CLOCK_REALTIME|\bgettimeofday\b|\brealtime_coarse_ms\("
    r"|\b(?:gmtime|localtime|st_[mca]time)|\bsystem_clock\.wall\b"
)
#: What tests of applications freeze or replace. See `cyproducer.shm.native`.
REPLACED = re.compile(r"\btime\.(?:time|monotonic|perf_counter|process_time|sleep)(?:_ns)?\b|\bfrom time import\b")
#: file of what an application runs: lines that use them, and why
USERS = {
    "cyproducer/spark/check.py": (1, "runs in an executor"),
    "cyproducer/spark/atomic.py": (1, "a pause in a loop whose end another clock decides"),
}
#: file: (lines that read a wall clock, purpose)
READERS = {
    "cyproducer/shm/linux.h": (1, "timestamps of records"),
    "cyproducer/shm/protocol.pxd": (0, "declares it"),
    "cyproducer/shm/clock.pyx": (1, "the clock for Python code"),
    "cyproducer/producer/tokens/token_supplier.py": (1, "when to replace a token, as in token_source.py"),
    "cyproducer/producer/tokens/provider_answer.py": (1, "whether a token has expired, as in token_source.py"),
    "cyproducer/producer/kafka_producer.pyx": (
        2,
        "timestamps of records, and when a producer was made, for its metrics",
    ),
    "cyproducer/producer/core/arguments.pyx": (1, "timestamps of records"),
    "cyproducer/producer/bulk/bulk.pyx": (1, "timestamps of records"),
    "cyproducer/sender/handover/handover.py": (1, "when a sender was started, for its status"),
    "cyproducer/sender/control/facts.py": (1, "when a sender was started, for its status"),
    "cyproducer/sender/control/failures.py": (3, "when records failed, for the status"),
    "cyproducer/sender/control/status.py": (2, "when a sender was started, and for how long it has run"),
    "cyproducer/sender/process/files.py": (2, "the age of files; a wrong clock keeps them or not"),
    "cyproducer/sender/cluster/telemetry.py": (2, "the times of metrics that are pushed to brokers"),
    "cyproducer/observe/failures.py": (1, "the age of failures in a file; a wrong clock keeps them or not"),
    "cyproducer/observe/logfmt.py": (1, "the time of a line of the log"),
    "cyproducer/security/token_source.py": (1, "when to replace a token, whose issuer gives its expiry as a wall time"),
    "cyproducer/security/file_version.py": (1, "compared only: whether a file was written again"),
    "cyproducer/security/oauthbearer.py": (1, "shown beside the error about a token that is refused"),
    "cyproducer/security/tls_errors.py": (2, "shown beside an error about the validity of a certificate"),
    "cyproducer/security/validity.py": (1, "shows a time"),
}


def readers() -> dict[str, int]:
    """Count the lines of each source file that read a wall clock; lines that only print are left out."""
    found = {}
    for path in sorted((ROOT / "cyproducer").rglob("*")):
        if path.suffix in (".py", ".pyx", ".pxd", ".h") and {"cli"}.isdisjoint(path.parts):
            number = sum(bool(WALL_CLOCK.search(line)) for line in path.read_text().splitlines())
            if number:
                found[label(path)] = number
    return found


def test_wall_clocks_are_read_only_in_listed_places():
    assert readers() == {name: number for name, (number, _) in READERS.items() if number}


def test_what_an_application_runs_uses_no_clock_that_its_tests_replace():
    found = {}
    for folder in ("producer", "host", "shm", "config", "record", "observe", "spark"):
        for path in sorted((ROOT / "cyproducer" / folder).rglob("*")):
            if path.suffix in (".py", ".pyx"):
                code = re.sub(r'"""[\s\S]*?"""|#.*', "", path.read_text())
                number = sum(bool(REPLACED.search(line)) for line in code.splitlines())
                if number:
                    found[label(path)] = number
    assert found == {name: number for name, (number, _) in USERS.items()}


def test_every_way_to_read_one_is_found():
    for line in (
        "now = time.time()", "field(default_factory=time.time)", "time.time_ns() // 1000", "from time import time",
        "datetime.now()", "time.clock_gettime(time.CLOCK_REALTIME)", "clock_gettime(CLOCK_REALTIME_COARSE, &now);",
        "gettimeofday(&now, NULL);", "self.now = realtime_coarse_ms()", "os.stat(path).st_mtime_ns",
    ):  # fmt: skip
        assert WALL_CLOCK.search(line), line
    for line in ("time.monotonic()", "time.monotonic_ns()", "clock_gettime(CLOCK_MONOTONIC, &now);", "timestamp"):
        assert not WALL_CLOCK.search(line), line
