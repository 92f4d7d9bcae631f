"""Writes the ledger of failures to a file that outlives the sender; see observe/failures.py.

The supervisor writes it, since the sender must not wait for a file system. Each write has a thread of its own, so the
supervisor does not wait either.
"""

import logging
import os
import threading
import time

from cyproducer.observe import failures
from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import fields
from cyproducer.sender.handover.handover import Post
from cyproducer.sender.system.background import start_thread
from cyproducer.version import VERSION

__all__ = ["FailureFile"]

INTERVAL_S = 1.0
#: How long the supervisor's end waits until the file is written.
FLUSH_S = 1.0


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
