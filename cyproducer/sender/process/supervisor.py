"""Runs the supervisor: it holds every descriptor that a successor needs, and starts the next sender.

It does little else, so that little can make it fail: it has one poll(), a thread that copies the log (log_relay.py) and
short-lived threads for files, and maps no shared memory permanently. A sender is forked from it, never executed: the
program's files may be removed by then.
"""

import os
import select
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from cyproducer.host import control_messages
from cyproducer.host.orphans import reap_orphans
from cyproducer.observe.logfmt import fields
from cyproducer.sender.handover import upgrade
from cyproducer.sender.handover.handover import Handover, Post, received
from cyproducer.sender.process.files import FailureFile, Names, remove_old_files
from cyproducer.sender.system.daemonise import PeerProcess, Signals, fork, reap, start_thread, state_of
from cyproducer.shm.native import DEBUG, crashpoint, read_liveness

__all__ = ["Child", "StartError", "Supervisor", "backoff_s"]

#: A sender that has work and does not tick for this long is killed, unless it is stopped or traced.
HANG_S = 10.0
#: Seconds between two checks of its ticks.
LOOK_S = 2.0
#: How long the end of a process may take, after a SIGKILL or the end of its main thread.
END_S = 10.0
#: After this many senders crashed at one front-end's memory, the next sender does not use that memory.
QUARANTINE_DEATHS = 3
_BACKOFF_MIN_S = 0.05
_BACKOFF_MAX_S = 5.0
_KILLED_BACKOFF_MAX_S = 0.5
_LONG_LIFE_S = 60.0
_SIGNALS_MAX = 3
_FIRST_STARTS_MAX = 3

Report = Callable[[dict[str, Any]], None]


class StartError(OSError):
    """The first sender did not start; the text is the sender's own error."""


class Child:
    """The sender process as its supervisor sees it. Owns the socket and the pidfd from the fork."""

    def __init__(self, peer_process: PeerProcess, started: bool) -> None:
        self.pid = peer_process.pid
        self.pidfd = peer_process.pidfd
        self.socket = peer_process.socket
        self.since = time.monotonic()
        self.started = started
        self.finished = False
        self.failure = ""
        self.hung = False
        self.main_ended_at: float | None = None
        self.tick: int | None = None
        self.ticked_at = self.checked_at = self.since

    def kill(self) -> None:
        """Send SIGKILL. `pidfd` becomes readable when the process has ended."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def close(self) -> None:
        """Close the socket and the pidfd."""
        self.socket.close()
        os.close(self.pidfd)


def backoff_s(restarts_in_a_row: int, killed: bool) -> float:
    """Return seconds until the next sender starts: 0 after the first death in a row, then 50 ms, doubling up to 5 s.

    After a SIGKILL the limit is 0.5 s: the signal comes from outside and does not indicate a defect of the sender.
    """
    if restarts_in_a_row <= 1:
        return 0.0
    limit = _KILLED_BACKOFF_MAX_S if killed else _BACKOFF_MAX_S
    return min(limit, _BACKOFF_MIN_S * 2.0 ** min(restarts_in_a_row - 2, 30))


class Supervisor:
    """Supervises the sender until it has finished, or until another supervisor has taken over.

    `child` is a running sender from which this process was forked, or None.
    """

    def __init__(self, post: Post, handover: Handover, signals: Signals, child: Child | None, report: Report) -> None:
        self.post = post
        self.election = post.election
        self.place = post.place
        self.relay = post.relay
        self.handover = handover
        self.signals = signals
        self.child = child
        self.report = report
        self.log = post.log
        self.service_manager = post.service_manager
        self.start_at = time.monotonic()
        self.delay_s = 0.0
        self.over = False
        self.came_up = child is not None or bool(handover.regions)
        self.names = Names(post)
        self.failures = FailureFile(post, handover.ledger)
        self._names_unsent = False
        self._successor: socket.socket | None = None

    def run(self) -> PeerProcess | None:
        """Run the supervisor. Return None at its end; in a forked child, which becomes the sender, its supervisor.

        Raise StartError if the first sender does not start.
        """
        if self.child is None:
            try:
                self.names.describe()
            except OSError as error:
                if not self.came_up:
                    raise
                text = "`cyproducer status` will not find this sender: its description cannot be written: %s"
                self.log.warning(text, error)
            self.failures.restore()
            self.relay.start()
        else:  # a sender runs and is not supervised yet, so this thread must not wait for a file
            self.relay.start(first=self.names.describe)
            self.service_manager.ready()
        self.failures.changed()
        while not self.over:
            if self.child is None and time.monotonic() >= self.start_at:
                peer_process = self._start()
                if peer_process is not None and peer_process.signals is not None:
                    return peer_process
            self._wait()
        self.signals.close()
        return None

    def _start(self) -> PeerProcess | None:
        if DEBUG:
            crashpoint("supervise.before-fork")
        try:
            peer_process = fork(self.signals)
        except OSError as error:
            if not self.came_up:
                self._finish()
                raise StartError(error.errno, f"cannot create the sender's process: {error.strerror}") from None
            self.log.error("cannot start a sender: %s; the supervisor tries again", error)
            self._start_later(killed=False)
            return None
        if peer_process.signals is None:
            if DEBUG:
                crashpoint("supervise.forked")
            self.child = Child(peer_process, started=False)
            self._names_unsent = False  # the new sender has inherited them
        return peer_process

    def _start_later(self, killed: bool) -> None:
        self.handover.restarts_in_a_row += 1
        self.delay_s = backoff_s(self.handover.restarts_in_a_row, killed)
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
            until = child.checked_at + LOOK_S
        due = self.failures.due()
        until = min(until, self.service_manager.due(), until if due is None else due)
        ready = {fd for fd, _ in poller.poll(max(0, int((until - time.monotonic()) * 1000) + 1))}
        for number in self.signals.take():
            self._on_signal(signal.Signals(number).name)
        self.failures.write_if_due()
        self.service_manager.attend(self._works())
        if child is None or self.over:
            return
        # Before the messages are read: a sender that has ended sends no more, so none is missed.
        gone = child.pidfd in ready
        self._handle_messages(child)
        if gone:
            self._on_end(child)
        elif self._successor is not None:
            self._hand_over(child, self._successor)
        else:
            self._check_liveness(child)
        if self.handover.draining and not self.over:
            self.service_manager.stopping()

    def _on_signal(self, name: str) -> None:
        self.handover.end_signals += 1
        if not self.handover.draining:
            self.handover.draining = name  # a successor drains as well
        if self.child is None:
            if self.handover.end_signals > 1:
                self._finish()
            return
        try:
            message = {"op": "signal", "name": name, "count": self.handover.end_signals}
            control_messages.send(self.child.socket, message)
        except OSError:
            pass  # the sender is ending, or its queue is full
        if self.handover.end_signals >= _SIGNALS_MAX:
            self.child.kill()

    def _handle_messages(self, child: Child) -> None:
        for message, fds in received(child.socket):
            op = message.get("op")
            if op == "started":
                child.started = True
                self.service_manager.ready()
                if not self.came_up:
                    self.came_up = True
                    self.report({"ready": child.pid})
                    start_thread(self._remove_old_files, "cyproducer-files")
            elif op == "failed":
                child.failure = str(message.get("message"))
            elif op == "finished":
                child.finished = True
            elif op == "replace" and len(fds) == 1:
                if self._successor is not None:
                    self._successor.close()
                self._successor = socket.socket(fileno=fds[0])
            else:
                self.handover.apply(message, fds)
                if op == "failures":
                    self.failures.changed()
                if DEBUG:
                    crashpoint("supervise.noted")

    def _remove_old_files(self) -> None:
        try:
            remove_old_files(os.path.dirname(self.place.description))
        except OSError as error:
            self.log.warning("cannot remove the files of ended senders: %s", error)

    # ------------------------------------------------------------------ the sender's end

    def _on_end(self, child: Child) -> None:
        if DEBUG:
            crashpoint("supervise.sender-gone")
        self._handle_messages(child)
        how = reap(child.pidfd)
        reap_orphans()
        if DEBUG:
            crashpoint("supervise.reaped")
        child.close()
        self.child = None
        if not self.came_up and how == "SIGKILL" and self.handover.restarts_in_a_row < _FIRST_STARTS_MAX:
            self._start_later(killed=True)  # SIGKILL comes from outside: the next one may start
            return
        if not self.came_up:
            self._finish()
            text = child.failure or f"it ended before it was ready ({how}); see the log"
            raise StartError(0, text)
        if child.finished or self.handover.end_signals > 1:
            self._finish()
            return
        now = time.monotonic()
        lived_s = now - child.since
        if lived_s >= _LONG_LIFE_S:
            self.handover.deaths.clear()
        if lived_s >= max(1.0, 10 * self.delay_s):
            self.handover.restarts_in_a_row = 0
        self.handover.restarts += 1
        if child.hung or how not in ("", "SIGKILL"):
            self._count_crash_at_memory()
        self._start_later(killed=how in ("", "SIGKILL") and not child.hung)
        self.log.warning(
            "the sender has ended and is replaced",
            extra=fields(
                sender=child.pid,
                how=child.failure or how or "unknown",
                lived=f"{lived_s:.3f}",
                front_ends=len(self.handover.held),
                restarts=self.handover.restarts,
                delay=f"{self.delay_s:.3f}",
            ),
        )

    def _count_crash_at_memory(self) -> None:
        """Count a crash for the front-end whose memory the sender was using, and quarantine it after the third."""
        _, _, attach_id = read_liveness(self.handover.regions[0]) if self.handover.regions else (0, 0, 0)
        held = self.handover.held.get(attach_id)
        if held is None:
            return
        deaths = self.handover.deaths[attach_id] = self.handover.deaths.get(attach_id, 0) + 1
        if deaths < QUARANTINE_DEATHS:
            return
        self.handover.quarantined[attach_id] = self.handover.held.pop(attach_id)
        if not held.ended:
            crashed = f"{QUARANTINE_DEATHS} senders crashed at its shared memory"
            held.detach(f"the sender detached this process: {crashed}; see the sender's log")
        self.log.error(
            "a front-end is quarantined: senders crashed at its shared memory, which is not used again",
            extra=fields(attach_id=attach_id, peer=held.meta.get("pid"), app=held.meta.get("app"), deaths=deaths),
        )

    def _check_liveness(self, child: Child) -> None:
        """Kill a sender that has work and does not tick, or that does not start."""
        now = time.monotonic()
        if now < child.checked_at + LOOK_S:
            return
        if state_of(child.pid) == "Z":
            child.checked_at = now
            self._check_end(child, now)
            return
        # If this process was paused, the sender may have been paused too: the time without ticks starts again.
        paused = now - child.checked_at > 3 * LOOK_S
        child.checked_at = now
        self._restore_names(child)
        tick, pending, _ = read_liveness(self.handover.regions[0]) if self.handover.regions else (None, 0, 0)
        idle = child.started and pending == 0
        if idle or paused or tick != child.tick or state_of(child.pid) in ("T", "t"):
            child.tick, child.ticked_at = tick, now
        elif now - child.ticked_at >= HANG_S and not child.hung:
            child.hung = True
            child.kill()
            self.log.error("the sender hangs and is killed", extra=fields(sender=child.pid, seconds=HANG_S))

    def _works(self) -> bool:
        """Return whether a sender runs and ticks, or has nothing to do."""
        child = self.child
        return child is not None and child.started and not child.hung and time.monotonic() < child.ticked_at + HANG_S

    def _check_end(self, child: Child, now: float) -> None:
        """Replace a sender whose main thread has ended, though its process does not end, see _has_ended()."""
        if child.main_ended_at is None:
            child.main_ended_at = now
        elif now - child.main_ended_at >= END_S:
            self.log.error("the main thread of the sender has ended and its process does not end: it is replaced")
            self._on_end(child)

    def _restore_names(self, child: Child) -> None:
        if self.names.missing():
            self._handle_messages(child)  # an ending sender sends "draining" before it unlinks its files
            if not self.handover.draining:
                self._names_unsent |= self.names.make_again()
                self.failures.changed()  # the file of failures was removed as well
        if self._names_unsent:
            try:
                fds = self.election.lock_fd, self.post.listener.fileno()
                control_messages.send(child.socket, {"op": "names"}, fds)
                self._names_unsent = False
            except OSError:
                pass  # the sender is ending, or its queue is full

    # ------------------------------------------------------------------ the end

    def _hand_over(self, child: Child, successor: socket.socket) -> None:
        """Hand everything or nothing over to another supervisor. Kill the sender first: there are never two."""
        self._successor = None
        self.service_manager.reloading()
        child.kill()
        if not self._has_ended(child):
            successor.close()
            return
        self._handle_messages(child)
        reap(child.pidfd)
        child.close()
        self.child = None
        with successor:
            if child.finished:
                self._finish()
            elif upgrade.hand_over(successor, self.post, self.handover):
                pid = control_messages.peer_credentials(successor)[0]
                # Before this process ends: systemd would take its end for that of the service.
                self.service_manager.replaced_by(pid)
                self.log.info("replaced", extra=fields(by=pid))
                self.over = True
                self.election.forget()
                self.post.listener.close()
                self.handover.forget()
            else:
                self.log.warning("the new process gave up the takeover; the old sender is restarted")
                self.handover.restarts += 1
                self.start_at = time.monotonic()

    def _has_ended(self, child: Child) -> bool:
        """Wait until a sender has ended that was killed. Return False, and log it, if it may still send records.

        A thread of it may wait in close() for ever, see SECURITY.md: then the process does not end. But its main thread
        has ended, and no other thread has a broker's connection.
        """
        poller = select.poll()
        poller.register(child.pidfd, select.POLLIN)
        if poller.poll(int(END_S * 1000)):
            return True
        stuck = state_of(child.pid) == "Z"
        self.log.error(
            "the sender was killed and its process does not end: "
            + ("its main thread has ended, so another sender takes over" if stuck else "no other sender can take over"),
            extra=fields(sender=child.pid, seconds=END_S),
        )
        return stuck

    def _finish(self) -> None:
        """Remove the sender's files, end the lock, and hang up on the processes that wait for this end."""
        self.over = True
        self.service_manager.stopping()
        if self.child is not None:
            self.child.close()
        self.failures.close()  # before the lock ends: afterwards another sender of this place may read the file
        self.names.release()
        self.post.listener.close()
        self.handover.close()
        self.log.info("ended")
