"""Defines what a check of a Spark session finds."""

from dataclasses import dataclass

__all__ = ["ERROR", "OK", "WARNING", "Finding"]

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True)
class Finding:
    """One result of `check_session`.

    level   "ok", "warning" or "error"
    where   "session", "driver", "interpreters", "archives", "data source", "threads", "SQL", "executors", "memory",
            "exactly once", or the host of executors
    text    what was found, and for a warning or an error, what to do
    """

    level: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.level:8} {self.where}: {self.text}"
