"""The sender's time in its process: engine and control plane, from what a predecessor left, to its end.

It is forked from its supervisor. Should that one die, the sender forks the next from itself.
"""

import contextlib
import logging
import os
import signal
import time

from cyproducer.observe.logfmt import fields
from cyproducer.sender import neighbours
from cyproducer.sender.control import Control, Facts
from cyproducer.sender.custody import ARENA, OUTCOMES, SENDER_WAKE, WAKE, Custody, Line, Post
from cyproducer.sender.engine import Engine, Legacy, LegacyFrontEnd
from cyproducer.sender.relay import FrontEndHandler
from cyproducer.sender.signals import Kin, Signals, fork
from cyproducer.sender.surroundings import name_process, reap, to_null
from cyproducer.shm.crash import DEBUG, crashpoint, set_role

__all__ = ["Serving"]

_RESTARTS_WORTH_A_WARNING = 3
_SUPERVISOR_LIFE_S = 1.0
_FORK_PAUSE_S = 0.2
_LOOKUP_PAUSE_S = 0.02

# Loaded by the first look-up of a name, and by then the files may be gone.
"host".encode("idna")


class Serving:
    """One sender. `custody` is what it starts from; `kin` its supervisor."""

    def __init__(self, post: Post, custody: Custody, kin: Kin) -> None:
        assert kin.signals is not None
        self.post = post
        self.custody = custody
        self.signals: Signals = kin.signals
        self.line = Line(kin.socket, kin.pid, kin.pidfd)
        self.log = post.log
        self.heard = self.direct = self.passed_on = 0
        self.supervised_since = 0.0
        self.fork_at: float | None = None

    def run(self) -> tuple[Custody, Kin] | None:
        """None at the end; in a forked child, which is to be the supervisor, what it holds and the sender."""
        os.setsid()  # a signal to the supervisor's group, a terminal's above all, is the supervisor's to pass on
        to_null(0, 1)
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
                became = self._serve(engine, control)
                if became is not None:
                    at_end.pop_all()  # all of it is the parent's
                    return became
                self._end(control)
            except Exception:
                # As if it were killed: an end in order would take from the successor what it goes on with.
                self.log.exception("the sender failed")
                os._exit(1)
        if not self.line.say_last({"op": "finished"}):
            self.post.election.release()
            self.log.info("ended")
        return None

    # ------------------------------------------------------------------ beginning

    def _begin(self, at_end: contextlib.ExitStack) -> tuple[Engine, Control]:
        post, custody = self.post, self.custody
        at_end.callback(self.signals.close)
        engine = Engine(post.settings, self.log, _legacy(custody))
        at_end.callback(engine.close)
        if not custody.regions and not self.line.give({"op": "regions"}, engine.regions()):
            raise OSError("the supervisor does not take the state")
        facts = Facts(
            post.place.socket,
            post.settings,
            custody.idle_timeout_s,
            post.allow_uids,
            post.allow_gids,
            started_at=custody.started_at,
            restarts=custody.restarts,
        )
        control = Control(engine, post.listener, facts, self.log, line=self.line)
        handler = FrontEndHandler(control)
        self.log.addHandler(handler)
        at_end.callback(self.log.removeHandler, handler)
        control.adopt(custody, engine.refused)
        self._report(control)
        engine.watch(self.signals.reader.fileno())
        self._watch_supervisor(engine)
        if DEBUG:
            crashpoint("attach.listening")
        self.line.tell({"op": "started"})
        return engine, control

    def _report(self, control: Control) -> None:
        post, custody = self.post, self.custody
        place = post.place
        mine = neighbours.describe(place.socket, post.identity)
        crowd = neighbours.too_many(os.path.dirname(place.description), mine)
        if crowd:
            control.standing_warnings.append(crowd)
        if not custody.restarts:
            if crowd:
                self.log.warning("%s", crowd)
            servers = post.settings.get("bootstrap_servers")
            self.log.info("listening", extra=fields(socket=place.socket, servers=servers))
            return
        often = custody.in_a_row >= _RESTARTS_WORTH_A_WARNING
        self.log.log(
            logging.WARNING if often else logging.INFO,
            "a sender has ended again and again; the next goes on"
            if often
            else "goes on where a sender has ended",
            extra=fields(restarts=custody.restarts, undelivered=control.engine.undelivered()),
        )

    # ------------------------------------------------------------------ serving

    def _serve(self, engine: Engine, control: Control) -> tuple[Custody, Kin] | None:
        while not control.finished:
            ready = engine.run(self._timeout_ms(control))
            self._on_signals(control)
            if self.line.socket is not None and self.line.socket.fileno() in ready:
                self._on_messages(control)
            if self.line.pidfd in ready:
                self._on_supervisor_gone(engine)
            control.turn(ready)
            if self.heard > 1 and not control.finished:
                undelivered = engine.undelivered()
                self.log.warning("a second signal: ending at once", extra=fields(undelivered=undelivered))
                break
            if self.fork_at is not None and time.monotonic() >= self.fork_at:
                became = self._fork_supervisor(engine, control)
                if became is not None:
                    return became
        return None

    def _timeout_ms(self, control: Control) -> int:
        timeout_ms = control.timeout_ms()
        if self.fork_at is None:
            return timeout_ms
        mine = max(0, int((self.fork_at - time.monotonic()) * 1000) + 1)
        return mine if timeout_ms < 0 else min(timeout_ms, mine)

    def _on_signals(self, control: Control) -> None:
        for number in self.signals.take():
            self.direct += 1
            self._on_signal(control, signal.Signals(number).name)

    def _on_messages(self, control: Control) -> None:
        for message in self.line.messages():
            if message.get("op") == "signal":
                self.passed_on = int(message["count"])
                self._on_signal(control, str(message.get("name")))

    def _on_signal(self, control: Control, name: str) -> None:
        # Not their sum: a service manager signals both processes, and means one signal.
        self.heard = max(self.direct, self.passed_on)
        control.drain(name)

    # ------------------------------------------------------------------ the supervisor's end

    def _watch_supervisor(self, engine: Engine) -> None:
        engine.watch(self.line.pidfd)
        if self.line.socket is not None:
            engine.watch(self.line.socket.fileno())
        self.supervised_since = time.monotonic()

    def _on_supervisor_gone(self, engine: Engine) -> None:
        engine.unwatch(self.line.pidfd)
        if self.line.socket is not None:
            engine.unwatch(self.line.socket.fileno())
        if DEBUG:
            crashpoint("supervise.lost")
        reap(self.line.pidfd)
        now = time.monotonic()
        self.log.info(
            "the supervisor has ended; another one follows", extra=fields(pid=self.line.supervisor_pid)
        )
        self.line.end()
        self.fork_at = now if now - self.supervised_since >= _SUPERVISOR_LIFE_S else now + _FORK_PAUSE_S

    def _fork_supervisor(self, engine: Engine, control: Control) -> tuple[Custody, Kin] | None:
        engine.hold_lookups()
        if not engine.may_fork():
            self.fork_at = time.monotonic() + _LOOKUP_PAUSE_S
            return None
        try:
            kin = fork(self.signals)
        except OSError as error:
            self.log.error("no supervisor can be started: %s", error)
            self.fork_at = time.monotonic() + _FORK_PAUSE_S
            return None
        finally:
            engine.resume_lookups()
        if kin.signals is not None:
            return self._leave_to_the_sender(engine, control), kin
        if DEBUG:
            crashpoint("supervise.heir-forked")
        self.fork_at = None
        self.line.begin(kin.socket, kin.pid, kin.pidfd)
        self._watch_supervisor(engine)
        return None

    def _leave_to_the_sender(self, engine: Engine, control: Control) -> Custody:
        """In the child: keeps the descriptors, and nothing else of what is the sender's."""
        try:
            set_role("supervisor")
            custody = control.custody()
            custody.heard = self.heard
            custody.in_a_row = self.custody.in_a_row
            custody.deaths = self.custody.deaths
            for handler in [known for known in self.log.handlers if isinstance(known, FrontEndHandler)]:
                self.log.removeHandler(handler)
            engine.abandon()
            return custody
        except BaseException:
            self.log.exception("the supervisor could not start")
            os._exit(1)

    def _end(self, control: Control) -> None:
        """Nobody finds this sender any more, and who has just come is told to try again."""
        self.line.tell({"op": "draining", "why": "its predecessor was ending", "until": None})
        self.post.election.give_up_names()
        control.close()


def _legacy(custody: Custody) -> Legacy | None:
    if not custody.regions:
        return None
    front_ends = [
        LegacyFrontEnd(
            held.attach_id,
            held.fds[ARENA],
            held.fds[OUTCOMES],
            held.meta["slots"],
            held.meta["settings"],
            held.fds[WAKE],
            held.fds[SENDER_WAKE],
            held.ended,
        )
        for held in custody.held.values()
    ]
    return Legacy(custody.regions[0], custody.regions[1], front_ends)
