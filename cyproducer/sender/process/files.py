"""Has the files of a sender: those by which processes find it, the ledger of failures, and those of ended senders.

A directory for temporary files may be cleaned while a sender lives, by an administrator or by systemd-tmpfiles. Then no
process finds the sender, and the next process that needs one starts another sender. The supervisor checks the files
every two seconds and creates missing ones again. If another sender has taken the place meanwhile, new processes find
that one, and this sender continues to serve the front-ends that it has.

The ledger of failures (observe/failures.py) is in a file that outlives the sender. The supervisor writes it, since the
sender must not wait for a file system. Each write has a thread of its own, so the supervisor does not wait either.

Logs and ledgers of ended senders are kept for a day, and at most those of the last hundred senders. Sockets,
descriptions and lock files of killed senders are kept for a day. Each supervisor removes files once, in a thread, when
its first sender has started. That is enough, since files are added only when a sender is started.
"""

import json
import logging
import os
import re
import socket
import stat
import threading
import time
from typing import Any

from cyproducer.host import lock_file
from cyproducer.host.rendezvous import create_private, private_directory, senders_in
from cyproducer.observe import failures
from cyproducer.observe.differences import bootstrap_servers, differences, network
from cyproducer.observe.failures import KEPT_S
from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import fields
from cyproducer.sender.handover.handover import Post
from cyproducer.sender.system.daemonise import start_thread, start_time
from cyproducer.version import VERSION

__all__ = ["FailureFile", "Names", "describe", "remove_old_files", "too_many", "write_description"]

INTERVAL_S = 1.0
#: How long the supervisor's end waits until the file with the ledger is written.
FLUSH_S = 1.0
#: How long it waits until a description is written.
WRITE_S = 1.0
SENDERS_PER_CLUSTER = 3
ENDED_MAX = 100
_SHOWN_VALUES = 4
# Matches only names that rendezvous.py makes: the directory may contain other files.
_NAME = re.compile(
    r"(?P<stem>[0-9a-f]{16})\."
    r"((?P<log>log(\.1)?)|(?P<ledger>failures)|(?P<part>(json|failures)\.\d+)|(?P<name>sock|json|lock|spawn))"
)


# ---------------------------------------------------------------------- the files by which processes find the sender


class Names:
    """The files of one sender: lock, socket and description."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.election = post.election
        self.place = post.place
        self.log = post.log
        self._writing = threading.Lock()
        self._last_problem = ""

    def describe(self) -> None:
        """Write the description, unless the place belongs to another sender. Raise OSError.

        Do nothing while another thread writes it.
        """
        if not self._writing.acquire(blocking=False):
            return
        try:
            if self.election.holds_place():
                mine = describe(self.place.socket, self.post.identity)
                write_description(self.place.description, mine)
        finally:
            self._writing.release()

    def release(self) -> None:
        """Remove the files and end the lock. Wait until no thread writes the description, which would be left."""
        written = self._writing.acquire(timeout=WRITE_S)
        try:
            self.election.release()
        finally:
            if written:
                self._writing.release()

    def missing(self) -> bool:
        """Return whether a file is missing, or belongs to another sender, or is no socket where the socket was."""
        place = self.place
        return not (self.election.holds_place() and _is_socket(place.socket) and os.path.exists(place.description))

    def make_again(self) -> bool:
        """Create missing files again. True: there is a new listener or lock, which the sender must receive."""
        try:
            return self._make_again()
        except OSError as error:
            self._report("the sender's files were removed and cannot be created again", str(error))
            return False

    def _make_again(self) -> bool:
        directory = os.path.dirname(self.place.description)
        if self.place.is_private or not os.path.exists(directory):
            problem = private_directory(directory)
            if problem:
                raise OSError(f"{directory}: {problem}")
        locked_again = not self.election.holds_place()
        if locked_again and not self.election.lock_again():
            self._report("the sender's files were removed, and new processes find another sender in its place", "")
            return False
        # With a new lock the socket is created anew as well: the existing file is that of another sender.
        renewed = locked_again or not _is_socket(self.place.socket)
        listener: socket.socket | None = self.election.listen(self.post.mode) if renewed else None
        if listener is not None:
            self.post.listen_on(listener)
        self._last_problem = ""
        extra = fields(socket=self.place.socket)
        self.log.warning("the sender's files were removed and have been created again", extra=extra)
        try:
            self.describe()
        except OSError as error:
            self._report("`cyproducer status` will not find this sender: its description cannot be written", str(error))
        return renewed

    def _report(self, what: str, why: str) -> None:
        """Log a problem once, not at each attempt."""
        text = f"{what}: {why}" if why else what
        if text != self._last_problem:
            self._last_problem = text
            self.log.warning("%s", text, extra=fields(socket=self.place.socket))


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def describe(socket: str, identity: dict[str, Any]) -> dict[str, Any]:
    """Return the content of this process' description file. `identity` holds no secrets."""
    return {"socket": socket, "pid": os.getpid(), "start": start_time(os.getpid()), "identity": identity}


def write_description(path: str, description: dict[str, Any]) -> None:
    """Write the file completely or not at all. Raise OSError."""
    temporary = f"{path}.{os.getpid()}"
    fd = create_private(temporary)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(description, file)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def too_many(directory: str, mine: dict[str, Any]) -> str:
    """Return a warning if more than three living senders serve the cluster of `mine`, with what differs; else ""."""
    cluster = bootstrap_servers(mine)
    others = [
        d
        for d in senders_in(directory)
        if d["socket"] != mine["socket"]
        and bootstrap_servers(d) == cluster
        and network(d) == network(mine)  # else one address may mean another cluster
        and _is_alive(d, mine)
    ]
    together = [mine, *others]
    if len(together) <= SENDERS_PER_CLUSTER:
        return ""
    differing = []
    for found in differences([d["identity"] for d in together]):
        values = sorted(set(found.values))
        some = ", ".join(values[:_SHOWN_VALUES]) + (", ..." if len(values) > _SHOWN_VALUES else "")
        differing.append(f"{found.name} ({some})")
    return (
        f"{len(together)} senders of this user serve {', '.join(cluster)}; one is enough if all processes use the same "
        f"settings. These differ in: {'; '.join(differing) or 'only their sockets'}"
    )


def _is_alive(other: dict[str, Any], mine: dict[str, Any]) -> bool:
    """Return whether a sender's process lives. One of another PID namespace is not visible and counts as living."""
    if other["identity"].get("pid_namespace") != mine["identity"].get("pid_namespace"):
        return True
    pid = other.get("pid")
    return isinstance(pid, int) and start_time(pid) == other.get("start") != ""


# ---------------------------------------------------------------------- the ledger of failures


class FailureFile:
    """The file of one sender, written at most once a second. `ledger` is the supervisor's copy."""

    def __init__(self, post: Post, ledger: Ledger) -> None:
        self.path = post.place.failures
        self.log: logging.Logger = post.log
        self.ledger = ledger
        self._about = {
            "socket": post.place.socket,
            "bootstrap_servers": post.settings.get("bootstrap_servers"),
            "version": VERSION,
            "log": post.relay.path,
        }
        self._due: float | None = None
        self._not_before = 0.0
        self._thread: threading.Thread | None = None
        self._last_problem = ""

    def restore(self) -> None:
        """Add the rows that a former sender of the same place has left. Called before the first sender is started."""
        found = failures.read(self.path)
        for row in found["rows"] if found is not None else ():
            if not self.ledger.has(row):
                self.ledger.restore(row)

    def changed(self) -> None:
        """Schedule a write of the ledger; do nothing if there is no failure."""
        if self._due is None and self.ledger.rows():
            self._due = self._not_before

    def due(self) -> float | None:
        """Return when write_if_due() has something to do, by time.monotonic(); None: never."""
        return self._due

    def write_if_due(self) -> None:
        """Start a write if it is due and the last write has ended."""
        now = time.monotonic()
        if self._due is None or now < self._due:
            return
        self._not_before = now + INTERVAL_S
        if self._thread is not None and self._thread.is_alive():
            self._due = self._not_before
            return
        self._due = None
        data = failures.encode({**self._about, "pid": os.getpid()}, self.ledger.rows())
        self._thread = start_thread(lambda: self._write(data), "cyproducer-failures")
        if self._thread is None:
            self._due = self._not_before

    def _write(self, data: bytes) -> None:
        try:
            failures.write(self.path, data)
            self._last_problem = ""
        except OSError as error:
            text = str(error)
            if text != self._last_problem:  # once, not at each attempt
                self._last_problem = text
                self.log.warning("the ledger of failures cannot be written: %s; it is tried again", text)

    def close(self) -> None:
        """Write what is left, and wait for that for one second at most."""
        if not self.ledger.rows():
            return
        deadline = time.monotonic() + FLUSH_S
        self._wait(deadline)
        self._due = 0.0
        self.write_if_due()
        self._wait(deadline)
        self.log.warning(
            "records have failed; `cyproducer status` shows them for a day",
            extra=fields(records=sum(row["count"] for row in self.ledger.rows()), file=self.path),
        )

    def _wait(self, deadline: float) -> None:
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))


# ---------------------------------------------------------------------- files of ended senders


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
