"""Counts the records that were not delivered, for the ledger of failures, which the supervisor keeps as well."""

import logging
import time

from cyproducer.errors import name_for_code
from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import fields
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.engine.native import FrontEnds, Loop
from cyproducer.sender.handover.handover import Line

__all__ = ["Failures"]


class Failures:
    """Adds the failures of the front-ends' records to a ledger. `path`: the file in which users find them."""

    def __init__(
        self,
        front_ends: FrontEnds,
        loop: Loop,
        table: PeerTable,
        line: Line,
        ledger: Ledger,
        path: str,
        log: logging.Logger,
    ) -> None:
        self.ledger = ledger
        self._front_ends = front_ends
        self._loop = loop
        self._table = table
        self._line = line
        self._path = path
        self._log = log

    def collect(self) -> None:
        """Add what has failed since the last call."""
        rows = [
            (self._table.app_of(attach_id), topic, name_for_code(code), records, time.time())
            for attach_id, topic, code, records in self._loop.take_failures()
        ]
        if rows:
            self._add(rows)

    def count_lost(self, app: str, records: int) -> None:
        """Add the records of a front-end whose memory is not used again."""
        self._add([(app, "(all)", "QUARANTINED", records, time.time())])

    def left(self) -> list[tuple[str, str, str, int, float]]:
        """Return the rows of what processes have left undelivered that have ended, if this sender ends now.

        Those that were in flight may be in the log.
        """
        return [
            (self._table.app_of(attach_id), topic, "SENDER_STOPPED", records, time.time())
            for (attach_id, topic), records in self._front_ends.left_records().items()
        ]

    def add_left(self, rows: list[tuple[str, str, str, int, float]]) -> None:
        """Add these rows. This comes last: a successor of this sender would find the records again."""
        if rows:
            text = "records of processes that have ended or closed their producer are not delivered"
            self._log.error(text, extra=fields(records=sum(row[3] for row in rows)))
            self._add(rows)

    def _add(self, rows: list[tuple[str, str, str, int, float]]) -> None:
        for row in rows:
            self.ledger.add(*row)
        self._line.tell_failures(rows)

    def warn(self, now: float) -> None:
        """Log the warnings that are due, by the monotonic clock."""
        for notice in self.ledger.warnings(now):
            more = fields(see="cyproducer status", file=self._path)
            self._log.warning(notice.text, extra={"app": notice.app, **more})

    def next_warning(self, now: float) -> float | None:
        """Return when warn() must be called; None: not before there is another failure."""
        due_s = self.ledger.next_warning_in(now)
        return None if due_s is None else now + due_s
