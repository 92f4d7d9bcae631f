"""Locks files that stand for a right: to be the sender of a place, or to start one.

The holder unlinks the file at its end. So a process that gets the lock of an open file checks whether the file still
has its path: only then does it hold the right.
"""

import fcntl
import os

__all__ = ["is_at", "try_lock"]


def is_at(fd: int, path: str) -> bool:
    """Return whether `path` names the open file. The file is open, so its inode number is not reused.

    Raise FileNotFoundError if `path` names no file, and other OSErrors.
    """
    return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))


def try_lock(fd: int, path: str) -> bool:
    """Lock the open file, without waiting. Return whether it still is the file at `path`.

    Raise BlockingIOError if another open file description has the lock, and the errors of is_at().
    """
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return is_at(fd, path)
