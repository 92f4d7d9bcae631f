"""Removes files of ended senders from the runtime directory.

Logs and ledgers of failures are kept for a day, and at most those of the last hundred senders. Sockets, descriptions
and lock files of killed senders are kept for a day. Each supervisor removes files once, in a thread, when its first
sender has started. That is enough, since files are added only when a sender is started.
"""

import os
import re
import time

from cyproducer.host import lock_file
from cyproducer.observe.failures import KEPT_S

__all__ = ["remove_old_files"]

ENDED_MAX = 100
# Matches only names that rendezvous.py makes: the directory may contain other files.
_NAME = re.compile(
    r"(?P<stem>[0-9a-f]{16})\."
    r"((?P<log>log(\.1)?)|(?P<ledger>failures)|(?P<part>(json|failures)\.\d+)|(?P<name>sock|json|lock|spawn))"
)


def remove_old_files(directory: str) -> None:
    """Remove the files of ended senders that are too old or too many. Raise OSError if they cannot be listed."""
    now = time.time()
    kinds: dict[str, dict[str, list[os.DirEntry[str]]]] = {"log": {}, "ledger": {}, "part": {}, "name": {}}
    with os.scandir(directory) as entries:
        for entry in entries:
            match = _NAME.fullmatch(entry.name)
            if match is not None:
                kind = next(kind for kind in kinds if match[kind])
                kinds[kind].setdefault(match["stem"], []).append(entry)
    for kind, stems in kinds.items():
        ages = {stem: min(_age(entry, now) for entry in entries) for stem, entries in stems.items()}
        kept = 0
        for stem in sorted(stems, key=ages.__getitem__):
            old = ages[stem] >= KEPT_S
            if not old and kind in ("part", "name"):
                continue
            lock = _lock_if_ended(os.path.join(directory, stem + ".lock"))
            if lock is None or (kind == "name" and lock < 0):
                continue  # locked; or a description without a lock beside it: its sender has a socket path of its own
            try:
                kept += not old
                if old or kept > ENDED_MAX:
                    for entry in stems[stem]:
                        _remove(entry)
            finally:
                if lock >= 0:
                    os.close(lock)


def _age(entry: "os.DirEntry[str]", now: float) -> float:
    """Return seconds since the file was written; negative if the clock was set back."""
    try:
        return now - entry.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0


def _lock_if_ended(path: str) -> int | None:
    """Return None if a sender holds the lock, -1 if there is no lock file, else a descriptor that holds the lock.

    While the descriptor is open, no other process can be elected. The lock also shows a sender in another PID
    namespace.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1
    try:
        if lock_file.try_lock(fd, path):
            return fd
    except OSError:
        pass
    os.close(fd)
    return None


def _remove(entry: "os.DirEntry[str]") -> None:
    try:
        if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
            os.unlink(entry.path)
    except OSError:
        pass
