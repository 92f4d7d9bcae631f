"""The ledger of failures: what could not be delivered, by application, topic and cause.

An error that nobody reads from a future must not vanish: it is counted here, shown by `cyproducer status`,
and now and then told to the front-ends that live.
"""

from typing import Any, NamedTuple

__all__ = ["Ledger", "Notice"]

ROWS_MAX = 1000
WARNING_INTERVAL_S = 60.0
_OTHER = ("(others)", "(others)", "(others)")


class Notice(NamedTuple):
    """Something to tell the front-ends of an application."""

    app: str
    text: str


class _Row:
    __slots__ = ("count", "first", "last", "told", "told_at")

    def __init__(self, when: float) -> None:
        self.count = 0
        self.first = self.last = when
        self.told = 0
        self.told_at = float("-inf")


class Ledger:
    """Counts of records that failed. Bounded: beyond `ROWS_MAX` rows what is new is counted as "(others)"."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], _Row] = {}
        self._untold = False

    def add(self, app: str, topic: str, cause: str, count: int, when: float) -> None:
        """Counts `count` records; `when` is in seconds since 1970, and only shown."""
        key = (app, topic, cause)
        if key not in self._rows and len(self._rows) >= ROWS_MAX:
            key = _OTHER
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(when)
        row.count += count
        row.last = when
        self._untold = True

    def restore(self, row: dict[str, Any]) -> None:
        """Takes a row of another ledger's `rows()` over; it was told there."""
        kept = _Row(row["first"])
        kept.count = kept.told = row["count"]
        kept.last = row["last"]
        self._rows[row["app"], row["topic"], row["cause"]] = kept

    def rows(self) -> list[dict[str, Any]]:
        """Every row as `{app, topic, cause, count, first, last}`, the latest failure first."""
        ordered = sorted(self._rows.items(), key=lambda item: -item[1].last)
        return [
            {
                "app": app,
                "topic": topic,
                "cause": cause,
                "count": row.count,
                "first": row.first,
                "last": row.last,
            }
            for (app, topic, cause), row in ordered
        ]

    def next_warning_in(self, now: float) -> float | None:
        """Seconds until `warnings` has something to say; None: nothing. `now` is as there."""
        if not self._untold:
            return None
        waits = [
            row.told_at + WARNING_INTERVAL_S - now for row in self._rows.values() if row.count > row.told
        ]
        return max(0.0, min(waits)) if waits else None

    def warnings(self, now: float) -> list[Notice]:
        """What is to be told now: of each row its first failure at once, then at most one text a minute.

        `now` is in seconds of a clock that nobody sets.
        """
        if not self._untold:
            return []
        due = []
        for (app, topic, cause), row in self._rows.items():
            if row.count > row.told and now - row.told_at >= WARNING_INTERVAL_S:
                number = row.count - row.told
                records = "1 record" if number == 1 else f"{number} records"
                due.append(Notice(app, f"{records} of {app} for topic {topic} failed: {cause}"))
                row.told, row.told_at = row.count, now
        self._untold = any(row.count > row.told for row in self._rows.values())
        return due
