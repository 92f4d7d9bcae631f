"""Reads the descriptors of other processes."""

import contextlib
import os


def targets_of(descriptors: str) -> list[str]:
    """Return what the links in a directory of descriptors (/proc/PID/fd) name."""
    found = []
    for fd in os.listdir(descriptors):
        with contextlib.suppress(FileNotFoundError):  # transient: a connection that was refused, or a file
            found.append(os.readlink(f"{descriptors}/{fd}"))
    return found
