"""What is sent, by how many, to what: the load of a measurement, and its values, the same in every process."""

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
    """A record, as far as its sender says what is in it."""

    value: bytes
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True)
class Load:
    """One measurement's work. `messages` and `warmup` are shared by the processes, and capped by `most_bytes`.

    Who has sent them in less than `least_seconds` sends them again.
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
    text: bool = False
    rate: int = 1000
    """Messages a second of each process, where it does not send as fast as it can."""
    seconds: float = 5.0
    """How long such a measurement, or one of idleness, lasts."""
    idle: int = 0
    """Front-ends that are attached and do nothing."""
    busy: int = 0
    """Processes that keep the cores busy meanwhile."""
    most_bytes: int = 1 << 30

    def sized(self, count: int, scale: float = 1.0) -> int:
        """`count` times `scale`, no more than `most_bytes` of values."""
        return max(1, min(int(count * scale), self.most_bytes // self.value_bytes))

    def share(self, count: int, unit: int, scale: float = 1.0) -> int:
        """Records of each process: a multiple of the contestant's unit, and at least one unit."""
        return max(1, self.sized(count, scale) // self.processes // unit) * unit

    def value_count(self) -> int:
        """How many different values there are: fewer when they are big."""
        return max(1, min(MOST_VALUES, VALUES_BYTES // self.value_bytes))


def values_of(load: Load) -> list[bytes]:
    """The values that everybody sends in turn: hexadecimal noise, or lines of a log that compress as logs do."""
    source = random.Random(load.value_bytes)
    size, count = load.value_bytes, load.value_count()
    if load.text:
        return [_log_line(source, size) for _ in range(count)]
    return [source.randbytes(-(-size // 2)).hex()[:size].encode() for _ in range(count)]


def keys_of() -> list[bytes]:
    """Random keys: enough to fall on a thousand partitions."""
    source = random.Random(1)
    return [source.randbytes(KEY_BYTES) for _ in range(KEYS)]


def topics_of(prefix: str, load: Load) -> list[str]:
    """The names of the topics."""
    return [f"{prefix}-{number}" for number in range(load.topics)]


def _log_line(source: random.Random, size: int) -> bytes:
    """A request as a web server logs it in JSON, filled up with words to `size` bytes."""
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
