"""Lists the comparisons that vary one field of the load over a range and show how the cost grows."""

from typing import Any

from bench.comparisons import CALL_LIMITS, MANY, ROWS, Comparison
from bench.goals import Goal
from bench.loads import Load
from bench.tls_rows import TLS_ROWS

FLAT = 1.5


def flat(contestant: str, points: tuple[Any, ...]) -> tuple[Goal, ...]:
    """Return the goal that CPU per record at the last point is at most 1.5 times that at the first point."""
    return (Goal(contestant, "cpu_us", most=FLAT, point=points[-1], base=points[0]),)


def growth(
    what: str, title: str, contestants: tuple[str, ...], vary: str, points: tuple[Any, ...], load: Load, **more: Any
) -> Comparison:
    """Return a comparison of throughput that draws CPU per record; the goal is that our cost does not grow."""
    given = {
        "rounds": 5, "quick_points": (points[0], points[-1]), "goals": flat(contestants[0], points),
        "limits": CALL_LIMITS, "growth": True, **more,
    }  # fmt: skip
    return Comparison(
        f"growth-{what}", title, given.pop("measure", "throughput"), contestants, load, vary=vary, points=points,
        **given,
    )  # fmt: skip


WORKERS = (1, 4, 16, 64)
PARTITIONS = (1, 10, 100, 1000)
TOPICS = (1, 10, 100, 500)
RECORD_BYTES = (10, 100, 1000, 10_000, 100_000, 1_000_000)
BROKERS = (1, 2, 3)
IDLE = (0, 10, 100, 1000)

GROWTH = (
    growth("workers", "workers from 1 to 64", ("send", "confluent"), "processes", WORKERS,
           MANY, quick_points=(1, 16)),
    growth("partitions", "partitions from 1 to 1,000, random keys", ("send_keyed", "confluent_keyed"), "partitions",
           PARTITIONS, Load(messages=600_000, warmup=60_000)),
    growth("topics", "topics from 1 to 500, sent to in turn", ("send_topics", "confluent_topics"), "topics", TOPICS,
           Load(messages=300_000, warmup=30_000)),
    growth("sizes", "record size from 10 B to 1 MB", ("send", "confluent"), "value_bytes", RECORD_BYTES,
           Load(messages=600_000, warmup=20_000, most_bytes=500_000_000), rounds=3, goals=(),
           # The physical limits of a call are measured for values of 100 bytes.
           limits=()),
    growth("brokers", "brokers from 1 to 3", ("send_keyed", "confluent_keyed"), "brokers", BROKERS,
           Load(messages=600_000, warmup=60_000)),
    growth("idle", "up to 1,000 attached but idle front-ends", ("send",), "idle", IDLE,
           Load(messages=1_000_000, seconds=3), measure="idle", rounds=3, quick_points=(0, 100),
           figures=("cpu_us", "sender_us", "idle_wake_ups_per_s", "idle_sender_wake_ups_per_s",
                    "idle_supervisor_wake_ups_per_s", "attach_ms"),
           goals=(
               *flat("send", IDLE),
               *(Goal("send", "idle_sender_wake_ups_per_s", most=0, point=point) for point in IDLE),
               *(Goal("send", "idle_wake_ups_per_s", most=0, point=point) for point in IDLE[1:]),
           )),
)  # fmt: skip

COMPARISONS: dict[str, Comparison] = {one.name: one for one in (*ROWS, *TLS_ROWS, *GROWTH)}
"""All comparisons, in the order of the report."""
