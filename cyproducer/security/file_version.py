"""Tells whether a file has changed: certificates, keys and tokens are then read again."""

import os

__all__ = ["version_at", "version_of"]


def version_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes with the content of a file."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def version_at(path: str | None) -> tuple[int, ...] | None:
    """Return the version of the file at `path`: empty if there is none, None without a path."""
    if not path:
        return None
    try:
        return version_of(os.stat(path))
    except OSError:
        return ()
