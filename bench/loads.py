"""Defines the load of a measurement (records, processes, topics) and the values, which are equal in every process."""

import json
import random
from dataclasses import dataclass
from typing import NamedTuple

MOST_VALUES = 1000
VALUES_BYTES = 16 << 20
KEYS = 20_000
KEY_BYTES = 16
WORDS = ("user", "order", "basket", "payment", "accepted", "refused", "timeout", "retry", "page", "view", "cache")
HEADERS = [("trace", b"0123456789abcdef"), ("kind", b"bench")]


class Sent(NamedTuple):
    """The content of a record: value, key and headers."""

    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class Load:
    """The work of one measurement. The processes share `messages` and `warmup`, which `most_bytes` limits.

    A process that has sent its messages in less than `least_seconds` sends them again.
    """

    messages: int = 1_000_000
    warmup: int = 100_000
    least_seconds: float = 0.5
    processes: int = 1
    value_bytes: int = 100
    partitions: int = 12
    topics: int = 1
    brokers: int = 1
    replication: int = 1
    linger_ms: int = 5
    compression: str | None = None
    tls: bool = False
    text: bool = False
    rate: int = 1000
    """Messages per second of each process, in measurements with a fixed rate."""
    seconds: float = 5.0
    """Duration of a measurement with a fixed rate, or with idle front-ends."""
    idle: int = 0
    """Front-ends that are attached and do nothing."""
    busy: int = 0
    """Processes that keep the cores busy meanwhile."""
    transaction: int = 0
    """Records of each transaction; 0: there are none."""
    disturbance: str = ""
    """What disturbs the measured records (see bench/disturbance.py)."""
    most_bytes: int = 1 << 30

    def sized(self, count: int, scale: float = 1.0) -> int:
        """Return `count` times `scale`, at most as many as have `most_bytes` of values."""
        return max(1, min(int(count * scale), self.most_bytes // self.value_bytes))

    def share(self, count: int, unit: int, scale: float = 1.0) -> int:
        """Return the records of each process: a multiple of the contestant's unit, and at least one unit."""
        return max(1, self.sized(count, scale) // self.processes // unit) * unit

    def value_count(self) -> int:
        """Return the number of different values, which is smaller for large values."""
        return max(1, min(MOST_VALUES, VALUES_BYTES // self.value_bytes))


def values_of(load: Load) -> list[bytes]:
    """Return the values that all contestants send in turn: random hexadecimal text, or compressible lines of a log."""
    source = random.Random(load.value_bytes)
    size, count = load.value_bytes, load.value_count()
    if load.text:
        return [_log_line(source, size) for _ in range(count)]
    return [source.randbytes(-(-size // 2)).hex()[:size].encode() for _ in range(count)]


def keys_of() -> list[bytes]:
    """Return random keys, enough for a thousand partitions."""
    source = random.Random(1)
    return [source.randbytes(KEY_BYTES) for _ in range(KEYS)]


def topics_of(prefix: str, load: Load) -> list[str]:
    """Return the names of the topics."""
    return [f"{prefix}-{number}" for number in range(load.topics)]


def _log_line(source: random.Random, size: int) -> bytes:
    """Return a JSON line of a web server's log, filled with words up to `size` bytes."""
    line = {
        "timestamp": f"2026-01-{source.randrange(1, 29):02}T{source.randrange(24):02}:{source.randrange(60):02}Z",
        "level": source.choice(["INFO", "INFO", "INFO", "WARN", "ERROR"]),
        "service": source.choice(WORDS) + "-service",
        "request_id": source.randbytes(16).hex(),
        "client": ".".join(str(source.randrange(256)) for _ in range(4)),
        "status": source.choice([200, 200, 200, 304, 404, 500]),
        "duration_ms": round(source.expovariate(0.02), 3),
    }
    message = ""
    while len(message) < size:
        message += source.choice(WORDS) if source.random() < 0.7 else str(source.randrange(100_000))
        message += " "
    return json.dumps({**line, "message": message})[: size - 2].encode() + b'"}'
