"""Decides when a sender ends: after it was idle for long enough, or when it was told to end and has delivered all."""

import logging
from collections.abc import Callable

from cyproducer.observe.logfmt import fields
from cyproducer.sender.cluster.telemetry import Telemetry
from cyproducer.sender.cluster.transactions import Transactions
from cyproducer.sender.control.facts import Facts
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.engine.native import FrontEnds, Loop
from cyproducer.sender.handover.handover import Line

__all__ = ["DRAIN_POLL_S", "RELEASE_AFTER_S", "Ending"]

#: The shortest time that a sender waits for its first front-end. With an idle timeout of 0 it would end at once.
FIRST_IDLE_S = 1.0
DELIVERY_POLL_S = 0.05
#: Pause between looks at the last push of metrics, whose response also wakes the engine.
LAST_PUSH_POLL_S = 0.02
DRAIN_POLL_S = 0.01
#: Seconds after which front-ends are released although they still send, if the brokers answer.
RELEASE_AFTER_S = 1.0
#: Seconds before the time limit at which all are released that have no open transaction.
RELEASE_BEFORE_S = 3.0


class Ending:
    """Knows since when the sender is idle, and drains it. All times are those of the control server's clock.

    A record that is committed after the sender has read an arena for the last time would be lost if its process ends.
    So the attached front-ends are released (FrontEnds.release) before the end: a released one cannot commit a record.
    A transactional producer is released between two transactions, since an open one fails at the sender's end. Until
    then the front-ends that are not transactional are not released, so that they need not wait for the sender's end.

    idle_timeout_s  after this time without a front-end the sender ends; None: it does not end by itself
    drain_until     the time limit of the drain; None: the sender does not drain
    """

    def __init__(
        self,
        front_ends: FrontEnds,
        loop: Loop,
        telemetry: Telemetry,
        transactions: Transactions,
        table: PeerTable,
        line: Line,
        facts: Facts,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self.idle_timeout_s = facts.idle_timeout_s
        self._attached_any = False
        self.drain_until: float | None = None
        self._front_ends = front_ends
        self._loop = loop
        self._telemetry = telemetry
        self._transactions = transactions
        self._table = table
        self._line = line
        self._drain_s = facts.drain_s
        self._log = log
        self._clock = clock
        self._idle_since: float | None = clock()
        self._pushes_last = False  # the sender is idle for long enough, and pushes its metrics for the last time
        self._drain_since = 0.0
        self._delivered_before = 0
        self._releases = False
        self._released: set[int] = set()

    def is_over(self) -> bool:
        """Return whether the sender may end, if no process connects at this moment. Do what has to precede the end."""
        now = self._clock()
        if self.drain_until is not None:
            # The last push comes first, since released front-ends wait for the end of this sender.
            return (self._telemetry.end(_ms(now)) or now >= self.drain_until) and self._is_drained(now)
        if self._table.front_ends or self._is_ending_anything():
            if self._idle_since is not None:
                self._idle_since = None
                self._pushes_last = False
                self._telemetry.resume()
            return False
        if self._idle_since is None:
            self._idle_since = now
        if self.idle_timeout_s is None or now < self._idle_since + self._idle_limit_s(self.idle_timeout_s):
            return False
        self._pushes_last = not self._telemetry.end(_ms(now))
        return not self._pushes_last

    def next_time(self) -> float | None:
        """Return when is_over() must be called next; None: not before something happens."""
        now = self._clock()
        if self.drain_until is not None:
            return min(now + DRAIN_POLL_S, self.drain_until)
        if self._table.front_ends:
            return None
        if self._is_ending_anything():
            return now + DELIVERY_POLL_S
        if self._pushes_last:
            return now + LAST_PUSH_POLL_S
        if self._idle_since is not None and self.idle_timeout_s is not None:
            return self._idle_since + self._idle_limit_s(self.idle_timeout_s)
        return None

    # ------------------------------------------------------------------ idle

    def on_attached(self) -> None:
        """Record that a front-end was attached: the first idle time is over."""
        self._attached_any = True

    def extend_idle_timeout(self, asked_ms: int) -> None:
        """Keep the longest idle timeout that a front-end has requested. A sender without one keeps none."""
        if self.idle_timeout_s is None or asked_ms / 1000 <= self.idle_timeout_s:
            return
        self.idle_timeout_s = asked_ms / 1000
        self._line.tell({"op": "idle", "timeout_s": self.idle_timeout_s})

    def _is_ending_anything(self) -> bool:
        """Return whether front-ends that have ended have undelivered batches or a transaction that is not ended."""
        return bool(self._front_ends.undelivered() or any(self._transactions.active().values()))

    def _idle_limit_s(self, timeout_s: float) -> float:
        return timeout_s if self._attached_any else max(timeout_s, FIRST_IDLE_S)

    # ------------------------------------------------------------------ drain

    @property
    def is_draining(self) -> bool:
        """Whether a drain has begun."""
        return self.drain_until is not None

    def drain(self, why: str, until: float | None = None) -> None:
        """Begin a drain: the sender ends when everything is delivered, or at the deadline.

        Attached front-ends then find another sender. What they send in the meantime is delivered, or stays with them.
        """
        if self.drain_until is not None:
            return
        self._drain_since = now = self._clock()
        self.drain_until = now + self._drain_s if until is None else until
        self._delivered_before = self._delivered()
        self._line.tell({"op": "draining", "why": why, "until": self.drain_until})
        attached, undelivered = len(self._table.front_ends), self._front_ends.undelivered()
        self._log.info("draining", extra=fields(why=why, front_ends=attached, undelivered=undelivered))

    def _delivered(self) -> int:
        """Return the number of acknowledged records."""
        return self._loop.totals()["records"]

    def _is_drained(self, now: float) -> bool:
        """Return whether the sender may end. Release the attached front-ends when it is time for that."""
        assert self.drain_until is not None
        undelivered, transactional = self._front_ends.undelivered(), self._transactions.active()
        # Other processes end the transactions in which several front-ends take part (0).
        open_count = sum(is_open for attach_id, is_open in transactional.items() if attach_id)
        if now >= self.drain_until:
            if undelivered or open_count:
                text = (
                    "the drain reached its time limit: batches of living processes stay with them, others are lost; "
                    "open transactions fail"
                )
                self._log.warning(text, extra=fields(undelivered=undelivered, transactions=open_count))
            return True
        if self._is_time_to_release(now, undelivered):
            keeps_others = open_count > 0 and now < self.drain_until - RELEASE_BEFORE_S
            attached = list(self._table.front_ends)
            chosen = {each for each in attached if not transactional.get(each, keeps_others)} - self._released
            for attach_id in chosen:
                self._front_ends.release(attach_id)
            self._released |= chosen
            return not (chosen or undelivered or open_count or self._front_ends.is_closing())
        return False

    def _is_time_to_release(self, now: float, undelivered: int) -> bool:
        """Return whether front-ends are released from now on."""
        # Front-ends that send all the time leave no moment without a batch, so they are released while they send. A
        # released front-end waits in send(), so this is not done while the brokers do not answer.
        is_busy = now >= self._drain_since + RELEASE_AFTER_S and self._delivered() > self._delivered_before
        # The supervisor must know of the drain first: a successor that does not drain would never serve the front-ends
        # that this sender has released.
        if not self._releases and (not undelivered or is_busy) and self._line.is_flushed:
            self._releases = True
            text = "attached processes are released: they continue with the next sender"
            self._log.info(text, extra=fields(undelivered=undelivered))
        return self._releases


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
