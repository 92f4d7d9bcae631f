"""Drains a sender that has to end: delivers what is undelivered first, for a limited time."""

import logging
from collections.abc import Iterable
from typing import Any

from cyproducer.observe.logfmt import fields
from cyproducer.sender.handover.handover import Line

__all__ = ["DRAIN_POLL_S", "RELEASE_AFTER_S", "Drain"]

DRAIN_POLL_S = 0.01
#: Seconds after which front-ends are released although they still send, if the brokers answer.
RELEASE_AFTER_S = 1.0
#: Seconds before the time limit at which all are released that have no open transaction.
RELEASE_BEFORE_S = 3.0


class Drain:
    """One drain, from `since` to `deadline` at most, both times of the control plane's clock.

    A record that is committed after the sender has read an arena for the last time would be lost if its process ends.
    So the attached front-ends are released (FrontEnds.release) before the end: a released one cannot commit a record.
    A transactional producer is released between two transactions, since an open one fails at the sender's end. Until
    then the front-ends that are not transactional are not released, so that they need not wait for the sender's end.
    """

    def __init__(self, engine: Any, line: Line, log: logging.Logger, since: float, deadline: float) -> None:
        self.deadline = deadline
        self._engine = engine
        self._line = line
        self._log = log
        self._since = since
        self._delivered_before: int = engine.delivered()
        self._releases = False
        self._released: set[int] = set()

    def next_look(self, now: float) -> float:
        """Return when is_over() must be called next."""
        return min(now + DRAIN_POLL_S, self.deadline)

    def is_over(self, now: float, front_ends: Iterable[int]) -> bool:
        """Return whether the sender may end. Release the attached `front_ends` when it is time for that."""
        undelivered, transactional = self._engine.undelivered(), self._engine.transactional_front_ends()
        # Other processes end the transactions in which several front-ends take part (0).
        open_count = sum(is_open for attach_id, is_open in transactional.items() if attach_id)
        if now >= self.deadline:
            if undelivered or open_count:
                text = (
                    "the drain reached its time limit: batches of living processes stay with them, others are lost; "
                    "open transactions fail"
                )
                self._log.warning(text, extra=fields(undelivered=undelivered, transactions=open_count))
            return True
        if self._is_time_to_release(now, undelivered):
            keeps_others = open_count > 0 and now < self.deadline - RELEASE_BEFORE_S
            chosen = {each for each in front_ends if not transactional.get(each, keeps_others)} - self._released
            for attach_id in chosen:
                self._engine.release(attach_id)
            self._released |= chosen
            return not (chosen or undelivered or open_count or self._engine.is_closing())
        return False

    def _is_time_to_release(self, now: float, undelivered: int) -> bool:
        """Return whether front-ends are released from now on."""
        # Front-ends that send all the time leave no moment without a batch, so they are released while they send. A
        # released front-end waits in send(), so this is not done while the brokers do not answer.
        is_busy = now >= self._since + RELEASE_AFTER_S and self._engine.delivered() > self._delivered_before
        # The supervisor must know of the drain first: a successor that does not drain would never serve the front-ends
        # that this sender has released.
        if not self._releases and (not undelivered or is_busy) and self._line.is_flushed:
            self._releases = True
            text = "attached processes are released: they continue with the next sender"
            self._log.info(text, extra=fields(undelivered=undelivered))
        return self._releases
