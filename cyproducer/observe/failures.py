"""Reads and writes the file in the runtime directory that keeps a ledger of failures for a day after its sender's end.

By default a sender without front-ends ends after half a minute. Its failures must be visible for longer.
"""

import json
import os
from typing import Any

from cyproducer.host.rendezvous import create_private
from cyproducer.shm import system_clock

__all__ = ["KEPT_S", "encode", "read", "write"]

#: How long after its last failure a row is kept.
KEPT_S = 86_400.0
_ROWS_MAX = 1001  # the rows of a full ledger, with "(others)"
_TEXT_MAX = 256
_BYTES_MAX = 8 << 20
_TEXTS = ("app", "topic", "cause")


def encode(about: dict[str, Any], rows: list[dict[str, Any]]) -> bytes:
    """Return the file's content: `about` the sender and the ledger's rows of the last day, bounded in size."""
    return json.dumps({**about, "rows": _of_the_last_day(rows)}).encode()


def write(path: str, data: bytes) -> None:
    """Write the file completely or not at all. Raise OSError."""
    temporary = f"{path}.{os.getpid()}"
    fd = create_private(temporary)
    try:
        try:
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def read(path: str) -> dict[str, Any] | None:
    """Return what encode() has written, with the rows of the last day; None if there is no such row or file."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_BYTES_MAX))
        rows = _of_the_last_day([row for row in found["rows"] if _is_row(row)])
        return {**found, "rows": rows} if rows else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_row(row: dict[str, Any]) -> bool:
    texts = all(isinstance(row[name], str) for name in _TEXTS)
    return texts and isinstance(row["count"], int) and all(isinstance(row[t], int | float) for t in ("first", "last"))


def _of_the_last_day(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    since = system_clock.wall() - KEPT_S
    return [
        {**row, **{name: row[name][:_TEXT_MAX] for name in _TEXTS}} for row in rows[:_ROWS_MAX] if row["last"] >= since
    ]
