"""The sender's process: from an order on standard input, or from the command line, to its end.

Imported by an interpreter without site-packages: the standard library and cyproducer are all there is.
"""

import contextlib
import faulthandler
import json
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

from cyproducer.shm.crash import DEBUG, crashpoint, set_role
from cyproducer.shm.rendezvous import Rendezvous

__all__ = ["main", "serve"]

# A sender that is about to end holds its lock for a moment longer than its socket.
_ELECTION_WAIT_S = 2.0
_AFFINITY_CPUS_MAX = 4096

Report = Callable[[dict[str, Any]], None]


def main() -> None:
    """What a front-end has started: reads its order, leaves its surroundings, and is the sender if elected.

    Standard input holds the order, standard output takes one report ({"ready"}, {"lost"} or {"error"}),
    standard error is the log. Nothing is raised; the exit status is the caller's (always 0).
    """
    try:
        with open(0, "rb", closefd=False) as file:
            order = json.loads(file.read())
        _leave_surroundings()
    except Exception as error:
        _report({"error": f"{type(error).__name__}: {error}"})
        raise
    place = Rendezvous(order["stem"], order["socket"], order["description_path"])
    log = make_log(place.log)
    try:
        idle_timeout_s = order["sender_idle_timeout_ms"] / 1000
        serve(place, order["identity"], order["settings"], log, idle_timeout_s, report=_report)
    except Exception as error:
        log.exception("the sender failed")
        _report({"error": f"{type(error).__name__}: {error}"})


def _report(message: dict[str, Any]) -> None:
    """Tells the front-end that waits, if it still does, and lets go of it."""
    try:
        os.write(1, json.dumps(message).encode())
    except OSError:
        pass
    _to_null(1)


def _to_null(*fds: int) -> None:
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def _leave_surroundings() -> None:
    """Nothing of the process that started it stays: session, descriptors, directory, limits, priority."""
    _to_null(0)
    os.closerange(3, _highest_descriptor() + 1)
    os.setsid()  # the spawned half led a session; this one was forked from it
    os.chdir("/")
    os.umask(0o077)
    attempts: tuple[Callable[[], None], ...] = (
        lambda: os.setpriority(os.PRIO_PROCESS, 0, 0),
        lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
        lambda: os.sched_setaffinity(0, range(_AFFINITY_CPUS_MAX)),
        lambda: _name_process("cyproducer"),
    )
    for attempt in attempts:
        try:
            attempt()
        except (OSError, ValueError):
            pass  # not permitted: what was inherited stays
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_DATA):
        raise_limit(limit)


def raise_limit(limit: int) -> None:
    """Raises the soft limit to the hard one: the application's own choice is not the sender's."""
    try:
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (hard, hard))
    except (OSError, ValueError):
        pass


def _name_process(name: str) -> None:
    with open("/proc/self/comm", "w") as file:
        file.write(name)


def _highest_descriptor() -> int:
    return max(int(name) for name in os.listdir("/proc/self/fd"))


def make_log(path: str | None) -> logging.Logger:
    """The sender's logger on standard error, which is the file at `path` if one is given."""
    from cyproducer.observe.logfmt import RotatingStandardError, level_of

    log = logging.getLogger("cyproducer.sender")
    log.setLevel(level_of(os.environ.get("CYPRODUCER_LOG")))
    log.propagate = False
    log.handlers[:] = [RotatingStandardError(path)]
    logging.raiseExceptions = False
    return log


class _Signals:
    """SIGTERM, and a terminal's signals, as a descriptor: the engine waits without the interpreter."""

    def __init__(self, of_a_terminal: bool) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        self.received: list[int] = []
        self._former: dict[int, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            heeded = number == signal.SIGTERM or of_a_terminal
            handler = self._on_signal if heeded else signal.SIG_IGN
            self._former[number] = signal.signal(number, handler)
        self._former_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.received.append(number)

    def take(self) -> list[int]:
        """What came since the last call."""
        try:
            self.reader.recv(4096)
        except BlockingIOError:
            pass
        received, self.received = self.received, []
        return received

    def close(self) -> None:
        """Puts back what was there."""
        signal.set_wakeup_fd(self._former_fd)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self.reader.close()
        self._writer.close()


def serve(
    place: Rendezvous,
    identity: dict[str, Any],
    settings: dict[str, Any],
    log: logging.Logger,
    idle_timeout_s: float | None,
    *,
    report: Report,
    allow_uids: tuple[int, ...] = (),
    allow_gids: tuple[int, ...] = (),
    foreground: bool = False,
) -> bool:
    """Is the sender of `place` until it is told to end or nobody needs it. False: another process is.

    `report` is called once, with {"ready": pid} or {"lost": pid}. Raises OSError if the socket, its lock or
    the shared memory cannot be made.
    """
    from cyproducer.observe.logfmt import fields
    from cyproducer.sender import neighbours
    from cyproducer.sender.control import Control, Facts, FrontEndHandler
    from cyproducer.sender.election import Election
    from cyproducer.sender.engine import Engine

    set_role("sender")
    election = Election.win(place, _ELECTION_WAIT_S)
    if election is None:
        report({"lost": os.getpid()})
        return False
    if DEBUG:
        crashpoint("attach.elected")
    waiting: list[Any] = []
    with contextlib.ExitStack() as at_end:
        # Last of all, since the hang-up tells them that everything else is done.
        at_end.callback(lambda: [peer.close() for peer in waiting])
        at_end.callback(election.release)
        faulthandler.enable(2)
        signals = _Signals(of_a_terminal=foreground)
        at_end.callback(signals.close)
        engine = Engine(settings, log)
        at_end.callback(engine.close)
        # Others reach the socket only where they are meant to; SO_PEERCRED decides either way.
        listener = election.listen(0o666 if allow_uids or allow_gids else 0o600)
        at_end.callback(listener.close)
        facts = Facts(place.socket, settings, idle_timeout_s, allow_uids, allow_gids)
        control = Control(engine, listener, facts, log)
        handler = FrontEndHandler(control)
        log.addHandler(handler)
        at_end.callback(log.removeHandler, handler)
        mine = neighbours.describe(place.socket, identity)
        crowd = neighbours.too_many(os.path.dirname(place.description), mine)
        if crowd:
            control.standing_warnings.append(crowd)
            log.warning("%s", crowd)
        neighbours.write_description(place.description, mine)
        log.info("listening", extra=fields(socket=place.socket, servers=settings.get("bootstrap_servers")))
        if DEBUG:
            crashpoint("attach.listening")
        report({"ready": os.getpid()})
        _run(engine, control, signals, log)
        election.give_up_names()
        waiting += control.close()
    log.info("ended")
    return True


def _run(engine: Any, control: Any, signals: _Signals, log: logging.Logger) -> None:
    from cyproducer.observe.logfmt import fields

    engine.watch(signals.reader.fileno())
    heard = 0
    while not control.finished:
        ready = engine.run(control.timeout_ms())
        for number in signals.take():
            heard += 1
            control.drain(signal.Signals(number).name)
        control.turn(ready)
        if heard > 1 and not control.finished:
            log.warning("a second signal: ending at once", extra=fields(undelivered=engine.undelivered()))
            break
    engine.unwatch(signals.reader.fileno())


if __name__ == "__main__":
    sys.exit("start it with: cyproducer sender")
