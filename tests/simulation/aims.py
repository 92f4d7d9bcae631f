"""Says what leads a schedule to a crash point that it seldom passes by chance, and which points it never passes."""

from collections.abc import Mapping

from support.crashpoints import AFTER_LOST_ANSWERS

__all__ = ["NEVER_PASSED", "needs_front_ends", "next_point", "refuses_batches", "refuses_records"]

AIMED_KILLS = 3  # of a schedule
_OF_REFUSED_BATCHES = ("split.committed", "split.part-", "parts.", "extent.", "recover.part-kept")
_OF_REFUSED_RECORDS = ("split.shed", "split.all-shed", "parts.refused")
#: The points of a takeover that needs a death at another point before it.
FIRST = {"recover.part-kept": "parts.committed", "recover.row-freed": "topics.decided"}
#: Engines are killed there by other tests, with scripted brokers or a real Kafka.
NEVER_PASSED = {
    "complete.before-wake": "no front-end of a simulation sleeps; test_takeover_points.py",
    "release.stored": "no sender of a simulation ends while its front-ends live; tests/crash",
    "release.scanned": "as release.stored; tests/crash",
    "split.all-shed": "it needs records of all front-ends of a batch refused at once; test_takeover_points.py",
    **dict.fromkeys(
        AFTER_LOST_ANSWERS, "it needs several lost answers in a row; test_takeover_points.py, _sequences.py"
    ),
}


def next_point(point: str | None, killed_at: Mapping[str, int]) -> str | None:
    """Return where the next sender is killed, if the process aims at `point`; None: nowhere."""
    if point is None or killed_at.get(point, 0) >= AIMED_KILLS:
        return None
    before = FIRST.get(point)
    return before if before is not None and not killed_at.get(before) else point


def refuses_batches(point: str | None) -> bool:
    """Return whether a schedule passes the point only if brokers refuse large batches of several front-ends."""
    return point is not None and point.startswith(_OF_REFUSED_BATCHES)


def refuses_records(point: str | None) -> bool:
    """Return whether a schedule passes the point only if brokers refuse records in batches of several front-ends."""
    return point in _OF_REFUSED_RECORDS


def needs_front_ends(point: str | None) -> bool:
    """Return whether a schedule with one front-end does not pass the point."""
    return refuses_batches(point) or refuses_records(point)
