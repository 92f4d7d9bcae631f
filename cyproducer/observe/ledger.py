"""Counts records that could not be delivered, by application, topic and cause.

An error must be visible even if the application does not read its future. So it is counted here, `cyproducer status`
shows it, and from time to time the attached front-ends get a warning.
"""

from typing import Any, NamedTuple

__all__ = ["Ledger", "Notice"]

ROWS_MAX = 1000
WARNING_INTERVAL_S = 60.0
_OTHER = ("(others)", "(others)", "(others)")


class Notice(NamedTuple):
    """A warning for the front-ends of an application."""

    app: str
    text: str


class _Row:
    __slots__ = ("count", "first", "last", "reported", "reported_at")

    def __init__(self, when: float) -> None:
        self.count = 0
        self.first = self.last = when
        self.reported = 0
        self.reported_at = float("-inf")


class Ledger:
    """The counts of failed records. Bounded: beyond `ROWS_MAX` rows it counts new combinations as "(others)"."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], _Row] = {}
        self._has_unreported = False

    def add(self, app: str, topic: str, cause: str, count: int, when: float) -> None:
        """Add `count` failed records. `when` is in seconds since 1970; it is only displayed."""
        key = (app, topic, cause)
        if key not in self._rows and len(self._rows) >= ROWS_MAX:
            key = _OTHER
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = _Row(when)
        row.count += count
        row.last = when
        self._has_unreported = True

    def has(self, row: dict[str, Any]) -> bool:
        """Return whether there is a row of the same application, topic and cause."""
        return (row["app"], row["topic"], row["cause"]) in self._rows

    def restore(self, row: dict[str, Any]) -> None:
        """Take over a row of another ledger's rows(), which has given the warnings for it."""
        kept = _Row(row["first"])
        kept.count = kept.reported = row["count"]
        kept.last = row["last"]
        self._rows[row["app"], row["topic"], row["cause"]] = kept

    def rows(self) -> list[dict[str, Any]]:
        """Return every row as `{app, topic, cause, count, first, last}`, the latest failure first."""
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
        """Return seconds until warnings() has something to return; None: never. `now` is as in warnings()."""
        if not self._has_unreported:
            return None
        waits = [row.reported_at + WARNING_INTERVAL_S - now for row in self._rows.values() if row.count > row.reported]
        return max(0.0, min(waits)) if waits else None

    def warnings(self, now: float) -> list[Notice]:
        """Return the warnings that are due: for each row the first failure at once, then at most one text a minute.

        `now` is in seconds of a monotonic clock.
        """
        if not self._has_unreported:
            return []
        due = []
        for (app, topic, cause), row in self._rows.items():
            if row.count > row.reported and now - row.reported_at >= WARNING_INTERVAL_S:
                number = row.count - row.reported
                records = "1 record" if number == 1 else f"{number} records"
                due.append(Notice(app, f"{records} of {app} for topic {topic} failed: {cause}"))
                row.reported, row.reported_at = row.count, now
        self._has_unreported = any(row.count > row.reported for row in self._rows.values())
        return due
