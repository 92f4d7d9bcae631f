"""Runs one sender process: starts engine and control server, from a handover if there is one, and serves until the end.

The sender is forked from its supervisor. If the supervisor dies, the sender forks the next supervisor from itself.
"""

import contextlib
import errno
import logging
import os
import signal
import socket
import time

from cyproducer.host.messages import ARENA, OUTCOMES, SENDER_WAKE, WAKE
from cyproducer.observe.logfmt import fields
from cyproducer.sender.cluster.engine import Engine
from cyproducer.sender.control.facts import DRAIN_S, Facts
from cyproducer.sender.engine.predecessor import FormerFrontEnd, PredecessorState
from cyproducer.sender.handover.handover import Handover, Line, Post
from cyproducer.sender.process import files
from cyproducer.sender.process.assembly import Control, assemble
from cyproducer.sender.system.daemonise import PeerProcess, Signals, fork, name_process, reap, to_null
from cyproducer.shm.native import DEBUG, crashpoint, set_role

__all__ = ["Serving"]

_RESTARTS_WORTH_A_WARNING = 3
_SUPERVISOR_LIFE_S = 1.0
_IN_FLIGHT_S = 3.0
_IN_FLIGHT_PAUSE_S = 0.05
_FORK_PAUSE_S = 0.2

# Load the codecs that a look-up of a host name and an unusual character in a log line need: by then their files may be
# removed.
"host".encode("idna")
"\n".encode("unicode_escape")


class Serving:
    """One sender. It starts from `handover`; `peer_process` is its supervisor."""

    def __init__(self, post: Post, handover: Handover, peer_process: PeerProcess) -> None:
        assert peer_process.signals is not None
        self.post = post
        self.election = post.election
        self.relay = post.relay
        self.handover = handover
        self.signals: Signals = peer_process.signals
        self.line = Line(peer_process.socket, peer_process.pid, peer_process.pidfd)
        self.log = post.log
        self.end_signals = self.own_signals = self.passed_on_signals = 0
        self.supervised_since = 0.0
        self.fork_at: float | None = None

    def run(self) -> tuple[Handover, PeerProcess] | None:
        """Run the sender. Return None at its end.

        In a forked child, which becomes the supervisor, return the handover that it holds and the sender's process.
        """
        os.setsid()  # only the supervisor gets signals to its process group, as from a terminal, and passes them on
        to_null(0, 1)
        self.relay.forget_thread()
        name_process("cyp-sender")
        set_role("sender")
        with contextlib.ExitStack() as at_end:
            try:
                engine, control = self._begin(at_end)
            except Exception as error:
                self.line.tell({"op": "failed", "message": f"{type(error).__name__}: {error}"})
                self.log.exception("the sender could not start")
                os._exit(1)
            try:
                forked = self._serve(engine, control)
                if forked is not None:
                    at_end.pop_all()  # everything in it belongs to the parent
                    return forked
                self._end(control)
            except Exception:
                # Ends as if it were killed: an orderly end would discard the state from which the successor continues.
                self.log.exception("the sender failed")
                os._exit(1)
        if not self.line.send_last({"op": "finished"}):
            # No supervisor is left, so this process writes the ledger of failures and the log.
            files.FailureFile(self.post, control.failures.ledger).close()
            self.election.release()
            self.relay.start()
            self.log.info("ended")
        return None

    # ------------------------------------------------------------------ beginning

    def _begin(self, at_end: contextlib.ExitStack) -> tuple[Engine, Control]:
        post, handover = self.post, self.handover
        at_end.callback(self.signals.close)
        engine = Engine(post.settings, self.log, _predecessor_state(handover))
        at_end.callback(engine.close)
        if not handover.regions:
            self._give_regions(engine.regions())
        facts = Facts(
            post.place.socket,
            post.settings,
            handover.idle_timeout_s,
            post.allow_uids,
            post.allow_gids,
            started_at=handover.started_at,
            restarts=handover.restarts,
            cluster_id=handover.cluster_id,
            log=post.relay.path,
            failures=post.place.failures,
            # A process that replaces it would have to prove what it knows, and it knows no secret.
            replaceable=not post.foreground and engine.supplied_tokens() is None,
            private=post.place.is_private,
        )
        control = assemble(engine.parts(), post.listener, facts, self.line, handover.ledger, self.log)
        self.log.addHandler(control.handler)
        at_end.callback(self.log.removeHandler, control.handler)
        control.takeover.restore(handover, engine.refused)
        self._report(engine, control)
        engine.watch(self.signals.reader.fileno())
        self._watch_supervisor(engine)
        if DEBUG:
            crashpoint("attach.listening")
        self.line.tell({"op": "started"})
        return engine, control

    def _give_regions(self, regions: tuple[int, int]) -> None:
        """Give the supervisor the state region and the snapshot for the successors.

        The kernel limits the descriptors in unread messages for each user, to the RLIMIT_NOFILE of this process
        (unix(7)). If those of other processes are too many, this waits until they are read. Raise OSError if that takes
        too long.
        """
        give_up = time.monotonic() + _IN_FLIGHT_S
        while not self.line.give({"op": "regions"}, regions):
            error = self.line.refusal or OSError("its queue is full")
            if error.errno != errno.ETOOMANYREFS:
                raise OSError(error.errno, f"the supervisor gets no descriptors: {error}") from error
            if time.monotonic() >= give_up:
                text = "the supervisor gets no descriptors: too many of this user are in messages that nobody has read"
                raise OSError(error.errno, f"{text}; raise RLIMIT_NOFILE (ulimit -n)") from error
            time.sleep(_IN_FLIGHT_PAUSE_S)

    def _report(self, engine: Engine, control: Control) -> None:
        post, handover = self.post, self.handover
        place = post.place
        mine = files.describe(place.socket, post.identity)
        warning = files.too_many(os.path.dirname(place.description), mine)
        if warning:
            control.attaching.add_warning(warning)
        if not handover.restarts:
            if warning:
                self.log.warning("%s", warning)
            servers = post.settings.get("bootstrap_servers")
            self.log.info("listening", extra=fields(socket=place.socket, servers=servers))
            return
        often = handover.restarts_in_a_row >= _RESTARTS_WORTH_A_WARNING
        self.log.log(
            logging.WARNING if often else logging.INFO,
            "the sender has ended again and again and a new one continues; its log has the reasons"
            if often
            else "continues the work of a sender that has ended",
            extra=fields(restarts=handover.restarts, undelivered=engine.undelivered()),
        )

    # ------------------------------------------------------------------ serving

    def _serve(self, engine: Engine, control: Control) -> tuple[Handover, PeerProcess] | None:
        while not control.server.finished:
            ready = engine.run(self._timeout_ms(control))
            self._on_signals(engine, control)
            if self.line.socket is not None and self.line.socket.fileno() in ready:
                self._on_messages(engine, control)
            if self.line.pidfd in ready:
                self._on_supervisor_gone(engine, control)
            control.server.turn(ready)
            if self.end_signals > 1 and not control.server.finished:
                undelivered = engine.undelivered()
                self.log.warning("a second signal: ending at once", extra=fields(undelivered=undelivered))
                break
            if self.fork_at is not None and time.monotonic() >= self.fork_at:
                forked = self._fork_supervisor(engine, control)
                if forked is not None:
                    return forked
        return None

    def _timeout_ms(self, control: Control) -> int:
        timeout_ms = control.server.timeout_ms()
        if self.fork_at is None:
            return timeout_ms
        mine = max(0, int((self.fork_at - time.monotonic()) * 1000) + 1)
        return mine if timeout_ms < 0 else min(timeout_ms, mine)

    def _on_signals(self, engine: Engine, control: Control) -> None:
        for number in self.signals.take():
            self.own_signals += 1
            self._on_signal(engine, control, signal.Signals(number).name)

    def _on_messages(self, engine: Engine, control: Control) -> None:
        for message, fds in self.line.messages():
            if message.get("op") == "signal":
                self.passed_on_signals = int(message["count"])
                self._on_signal(engine, control, str(message.get("name")))
            elif message.get("op") == "names" and len(fds) == 2:
                lock, listener = fds
                self.election.replace_lock(lock)
                self.post.listener = socket.socket(fileno=listener)
                control.server.listen_on(self.post.listener)
                continue
            for fd in fds:
                os.close(fd)

    def _on_signal(self, engine: Engine, control: Control, name: str) -> None:
        # Not the sum: a service manager sends one signal to both processes.
        self.end_signals = max(self.own_signals, self.passed_on_signals)
        control.ending.drain(name)
        undelivered = engine.undelivered()
        if self.end_signals == 1 and undelivered:
            seconds = round(DRAIN_S)
            self.log.info(
                "undelivered batches are sent first; a second signal ends the sender at once",
                extra=fields(undelivered=undelivered, at_most_seconds=seconds),
            )

    # ------------------------------------------------------------------ the supervisor's end

    def _watch_supervisor(self, engine: Engine) -> None:
        engine.watch(self.line.pidfd)
        if self.line.socket is not None:
            engine.watch(self.line.socket.fileno())
        self.supervised_since = time.monotonic()

    def _on_supervisor_gone(self, engine: Engine, control: Control) -> None:
        self._on_messages(engine, control)  # the last messages may contain the lock and the listener
        engine.unwatch(self.line.pidfd)
        if self.line.socket is not None:
            engine.unwatch(self.line.socket.fileno())
        if DEBUG:
            crashpoint("supervise.lost")
        reap(self.line.pidfd)
        now = time.monotonic()
        self.log.info(
            "the supervisor has ended; the sender starts another one", extra=fields(pid=self.line.supervisor_pid)
        )
        self.line.end()
        self.fork_at = now if now - self.supervised_since >= _SUPERVISOR_LIFE_S else now + _FORK_PAUSE_S

    def _fork_supervisor(self, engine: Engine, control: Control) -> tuple[Handover, PeerProcess] | None:
        try:
            peer_process = fork(self.signals)
        except OSError as error:
            self.log.error("cannot start a supervisor: %s; the sender tries again", error)
            self.fork_at = time.monotonic() + _FORK_PAUSE_S
            return None
        if peer_process.signals is not None:
            return self._become_supervisor(engine, control), peer_process
        if DEBUG:
            crashpoint("supervise.successor-forked")
        self.fork_at = None
        self.line.begin(peer_process.socket, peer_process.pid, peer_process.pidfd)
        self._watch_supervisor(engine)
        return None

    def _become_supervisor(self, engine: Engine, control: Control) -> Handover:
        """Return the handover, in the child. Keep its descriptors and drop everything else of the sender."""
        try:
            set_role("supervisor")
            handover = control.takeover.hand_over()
            handover.end_signals = self.end_signals
            handover.restarts_in_a_row = self.handover.restarts_in_a_row
            handover.deaths = self.handover.deaths
            handover.watchdog_s = self.handover.watchdog_s
            self.log.removeHandler(control.handler)
            engine.abandon()
            return handover
        except BaseException:
            self.log.exception("the supervisor could not start")
            os._exit(1)

    def _end(self, control: Control) -> None:
        """End the sender: remove its files first, so that no process finds it, and refuse waiting connections."""
        self.line.tell({"op": "draining", "why": "its predecessor was ending", "until": None})
        self.election.unlink_names()
        control.server.close()


def _predecessor_state(handover: Handover) -> PredecessorState | None:
    if not handover.regions:
        return None
    front_ends = [
        FormerFrontEnd(
            held.attach_id,
            held.fds[ARENA],
            held.fds[OUTCOMES],
            held.meta["slots"],
            held.meta["settings"],
            held.fds[WAKE],
            held.fds[SENDER_WAKE],
            held.ended,
        )
        for held in handover.held.values()
    ]
    return PredecessorState(handover.regions[0], handover.regions[1], front_ends)
