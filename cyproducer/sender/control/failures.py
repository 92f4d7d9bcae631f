"""Counts the records that were not delivered, for the ledger of failures, which the supervisor keeps as well."""

import logging
import time

from cyproducer.errors import name_for_code
from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import fields
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.engine.native import FrontEnds, Loop
from cyproducer.sender.handover.handover import Line
from cyproducer.shm.native import count_undelivered

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

    def count_lost(self, app: str, cause: str, records: int) -> None:
        """Add the records of a front-end whose memory is not used again."""
        self._add([(app, "(all)", cause, records, time.time())])

    def count_left(self) -> int:
        """Add what processes that have ended leave undelivered, as this sender ends. Return how many records it is.

        Those that were in flight may be in the log.
        """
        total = 0
        for attach_id, slots in self._front_ends.ended().items():
            records = count_undelivered(self._front_ends.descriptors(attach_id)[0], slots)
            if records:
                self.count_lost(self._table.app_of(attach_id), "SENDER_STOPPED", records)
            total += records
        return total

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
