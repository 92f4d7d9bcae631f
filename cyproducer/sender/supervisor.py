"""The supervisor: holds every descriptor that a sender leaves behind, and starts the next one.

It does nothing else, so that little can end it but who wants to: no threads, no shared memory mapped, one
poll(). A sender is forked from it, never executed: the files that it came from may be gone by then.
"""

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from cyproducer.observe.logfmt import fields
from cyproducer.sender import neighbours, replace
from cyproducer.sender.custody import Custody, Post, received
from cyproducer.sender.signals import Kin, Signals, fork
from cyproducer.sender.surroundings import reap, state_of
from cyproducer.shm import handshake
from cyproducer.shm.crash import DEBUG, crashpoint
from cyproducer.shm.vitals import read_vitals

__all__ = ["Child", "StartError", "Supervisor", "backoff_s"]

#: A sender that has work and does not tick for so long, neither stopped nor traced, is killed.
HANG_S = 10.0
#: How often its ticks are looked at.
LOOK_S = 2.0
#: After so many senders that crashed at one front-end's memory the next leaves that front-end alone.
QUARANTINE_DEATHS = 3
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 5.0
_KILLED_BACKOFF_MAX_S = 0.5
_LONG_LIFE_S = 60.0
_SIGNALS_MAX = 3
_FIRST_STARTS_MAX = 3

Report = Callable[[dict[str, Any]], None]


class StartError(OSError):
    """The first sender did not come up; the text is its own."""


class Child:
    """The sender as its supervisor knows it. Owns what it gets from the fork."""

    def __init__(self, kin: Kin, started: bool) -> None:
        self.pid = kin.pid
        self.pidfd = kin.pidfd
        self.socket = kin.socket
        self.since = time.monotonic()
        self.started = started
        self.finished = False
        self.failure = ""
        self.hung = False
        self.tick: int | None = None
        self.ticked_at = self.looked_at = self.since

    def kill(self) -> None:
        """SIGKILL; `pidfd` tells when it is gone."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        self.socket.close()
        os.close(self.pidfd)


def backoff_s(in_a_row: int, killed: bool) -> float:
    """Seconds until the next sender: 0 after the first death in a row, then 50 ms, doubling up to 5 s.

    Up to 0.5 s only after a SIGKILL, which is somebody's will and says nothing about the sender.
    """
    if in_a_row <= 1:
        return 0.0
    limit = _KILLED_BACKOFF_MAX_S if killed else _BACKOFF_MAX_S
    return min(limit, _BACKOFF_MIN_S * 2.0 ** min(in_a_row - 2, 30))


class Supervisor:
    """One process' time as supervisor, until the sender has finished or another build has taken over.

    `child` is a sender that runs already: the one that this process was forked from.
    """

    def __init__(
        self, post: Post, custody: Custody, signals: Signals, child: Child | None, report: Report
    ) -> None:
        self.post = post
        self.custody = custody
        self.signals = signals
        self.child = child
        self.report = report
        self.log = post.log
        self.start_at = time.monotonic()
        self.delay_s = 0.0
        self.over = False
        self.came_up = child is not None or bool(custody.regions)
        self._heir: socket.socket | None = None

    def run(self) -> Kin | None:
        """None when all is over; in a forked child, which is to be the sender, its supervisor.

        Raises StartError if the first sender does not come up.
        """
        mine = neighbours.describe(self.post.place.socket, self.post.identity)
        neighbours.write_description(self.post.place.description, mine)
        while not self.over:
            if self.child is None and time.monotonic() >= self.start_at:
                kin = self._start()
                if kin is not None and kin.signals is not None:
                    return kin
            self._wait()
        self.signals.close()
        return None

    def _start(self) -> Kin | None:
        if DEBUG:
            crashpoint("supervise.before-fork")
        try:
            kin = fork(self.signals)
        except OSError as error:
            if not self.came_up:
                self._finish()
                raise StartError(error.errno, f"no process for the sender: {error.strerror}") from None
            self.log.error("no sender can be started: %s", error)
            self._start_later(killed=False)
            return None
        if kin.signals is None:
            if DEBUG:
                crashpoint("supervise.forked")
            self.child = Child(kin, started=False)
        return kin

    def _start_later(self, killed: bool) -> None:
        self.custody.in_a_row += 1
        self.delay_s = backoff_s(self.custody.in_a_row, killed)
        self.start_at = time.monotonic() + self.delay_s

    # ------------------------------------------------------------------ waiting

    def _wait(self) -> None:
        child = self.child
        poller = select.poll()
        poller.register(self.signals.reader, select.POLLIN)
        until = self.start_at
        if child is not None:
            poller.register(child.pidfd, select.POLLIN)
            poller.register(child.socket, select.POLLIN)
            until = child.looked_at + LOOK_S
        ready = {fd for fd, _ in poller.poll(max(0, int((until - time.monotonic()) * 1000) + 1))}
        for number in self.signals.take():
            self._on_signal(signal.Signals(number).name)
        if child is None or self.over:
            return
        # In this order: a sender that has ended says nothing more.
        gone = child.pidfd in ready
        self._take_messages(child)
        if gone:
            self._on_end(child)
        elif self._heir is not None:
            self._hand_over(child, self._heir)
        else:
            self._look(child)

    def _on_signal(self, name: str) -> None:
        self.custody.heard += 1
        if not self.custody.draining:
            self.custody.draining = name  # a successor drains as well
        if self.child is None:
            if self.custody.heard > 1:
                self._finish()
            return
        try:
            message = {"op": "signal", "name": name, "count": self.custody.heard}
            handshake.send(self.child.socket, message)
        except OSError:
            pass  # it is ending, or has not read many of them
        if self.custody.heard >= _SIGNALS_MAX:
            self.child.kill()

    def _take_messages(self, child: Child) -> None:
        for message, fds in received(child.socket):
            op = message.get("op")
            if op == "started":
                child.started = True
                if not self.came_up:
                    self.came_up = True
                    self.report({"ready": child.pid})
            elif op == "failed":
                child.failure = str(message.get("message"))
            elif op == "finished":
                child.finished = True
            elif op == "replace" and len(fds) == 1:
                if self._heir is not None:
                    self._heir.close()
                self._heir = socket.socket(fileno=fds[0])
            else:
                self.custody.note(message, fds)
                if DEBUG:
                    crashpoint("supervise.noted")

    # ------------------------------------------------------------------ the sender's end

    def _on_end(self, child: Child) -> None:
        if DEBUG:
            crashpoint("supervise.sender-gone")
        self._take_messages(child)
        how = reap(child.pidfd)
        if DEBUG:
            crashpoint("supervise.reaped")
        child.close()
        self.child = None
        if not self.came_up and how == "SIGKILL" and self.custody.in_a_row < _FIRST_STARTS_MAX:
            self._start_later(killed=True)  # nothing of its own doing: the next one may come up
            return
        if not self.came_up:
            self._finish()
            text = child.failure or f"it ended as soon as it was started ({how})"
            raise StartError(0, text)
        if child.finished or self.custody.heard > 1:
            self._finish()
            return
        now = time.monotonic()
        lived_s = now - child.since
        if lived_s >= _LONG_LIFE_S:
            self.custody.deaths.clear()
        if lived_s >= max(1.0, 10 * self.delay_s):
            self.custody.in_a_row = 0
        self.custody.restarts += 1
        if child.hung or how not in ("", "SIGKILL"):
            self._suspect()
        self._start_later(killed=how in ("", "SIGKILL") and not child.hung)
        self.log.warning(
            "the sender has ended and is replaced",
            extra=fields(
                sender=child.pid,
                how=child.failure or how or "unknown",
                lived=f"{lived_s:.3f}",
                front_ends=len(self.custody.held),
                restarts=self.custody.restarts,
                delay=f"{self.delay_s:.3f}",
            ),
        )

    def _suspect(self) -> None:
        """Whose memory was the sender at when it crashed? After the third time nobody looks at it any more."""
        attach_id = read_vitals(self.custody.regions[0]).breadcrumb_attach if self.custody.regions else 0
        held = self.custody.held.get(attach_id)
        if held is None:
            return
        deaths = self.custody.deaths[attach_id] = self.custody.deaths.get(attach_id, 0) + 1
        if deaths < QUARANTINE_DEATHS:
            return
        self.custody.quarantined[attach_id] = self.custody.held.pop(attach_id)
        if not held.ended:
            held.give_up(f"{QUARANTINE_DEATHS} senders crashed at this process' shared memory, which is left alone now")
        self.log.error(
            "senders crashed at a front-end's memory, which is left alone from here on",
            extra=fields(
                attach_id=attach_id, peer=held.meta.get("pid"), app=held.meta.get("app"), deaths=deaths
            ),
        )

    def _look(self, child: Child) -> None:
        """Kills a sender that has work and does not tick, or that does not come up."""
        now = time.monotonic()
        if now < child.looked_at + LOOK_S:
            return
        # After a pause of this process the sender may have been paused as well: both begin again.
        paused = now - child.looked_at > 3 * LOOK_S
        child.looked_at = now
        vitals = read_vitals(self.custody.regions[0]) if self.custody.regions else None
        tick = vitals.tick if vitals is not None else None
        idle = child.started and (vitals is None or vitals.pending == 0)
        if idle or paused or tick != child.tick or state_of(child.pid) in ("T", "t"):
            child.tick, child.ticked_at = tick, now
        elif now - child.ticked_at >= HANG_S and not child.hung:
            child.hung = True
            self.log.error("the sender hangs and is killed", extra=fields(sender=child.pid, seconds=HANG_S))
            child.kill()

    # ------------------------------------------------------------------ the end

    def _hand_over(self, child: Child, heir: socket.socket) -> None:
        """To another build's supervisor, all or nothing; the sender ends first, so there are never two."""
        self._heir = None
        child.kill()
        poller = select.poll()
        poller.register(child.pidfd, select.POLLIN)
        poller.poll()
        self._take_messages(child)
        reap(child.pidfd)
        child.close()
        self.child = None
        with heir:
            if child.finished:
                self._finish()
            elif replace.hand_over(heir, self.post, self.custody):
                self.log.info("replaced", extra=fields(by=handshake.peer_credentials(heir)[0]))
                self.over = True
                self.post.election.forget()
                self.post.listener.close()
                self.custody.forget()
            else:
                self.log.warning("who wanted to take over did not; a sender is started again")
                self.custody.restarts += 1
                self.start_at = time.monotonic()

    def _finish(self) -> None:
        """Unlinks the names, ends the lock, and hangs up on those who wait for that."""
        self.over = True
        if self.child is not None:
            self.child.close()
        self.post.election.release()
        self.post.listener.close()
        self.custody.close()
        self.log.info("ended")
