"""The sender's processes: from an order on standard input, or from the command line, to their end.

Imported by an interpreter without site-packages: the standard library and cyproducer are all there is.
"""

import faulthandler
import gc
import json
import logging
import os
import sys
from typing import Any

from cyproducer.observe.logfmt import RotatingStandardError, fields, level_of
from cyproducer.sender.custody import Custody, Post
from cyproducer.sender.election import Election
from cyproducer.sender.signals import Signals
from cyproducer.sender.supervisor import Child, Report, Supervisor
from cyproducer.sender.surroundings import close_others, leave_surroundings, name_process, to_null
from cyproducer.shm.crash import DEBUG, crashpoint, set_role
from cyproducer.shm.rendezvous import Rendezvous

__all__ = ["main", "make_log", "serve"]

# A sender that is about to end holds its lock for a moment longer than its socket.
_ELECTION_WAIT_S = 2.0


def main() -> None:
    """What a front-end has started: reads its order, leaves its surroundings, and is the supervisor if elected.

    Standard input holds the order, standard output takes one report ({"ready"}, {"lost"} or {"error"}),
    standard error is the log. Nothing is raised; the exit status is the caller's (always 0).
    """
    try:
        with open(0, "rb", closefd=False) as file:
            order = json.loads(file.read())
        leave_surroundings()
        name_process("cyp-supervisor")
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
    to_null(1)


def make_log(path: str | None) -> logging.Logger:
    """The sender's logger on standard error, which is the file at `path` if one is given."""
    log = logging.getLogger("cyproducer.sender")
    log.setLevel(level_of(os.environ.get("CYPRODUCER_LOG")))
    log.propagate = False
    log.handlers[:] = [RotatingStandardError(path)]
    logging.raiseExceptions = False
    return log


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
    replace: bool = False,
) -> bool:
    """Is the sender of `place`, as its supervisor, until it is told to end or nobody needs it.

    False: another process is. With `replace` it takes over from that one. `report` is called once, with
    {"ready": pid} or {"lost": pid}. Raises OSError if the socket, its lock, the shared memory or a process
    cannot be made, and the errors of `take_over`.
    """
    from cyproducer.sender.replace import take_over

    set_role("supervisor")
    # Others reach the socket only where they are meant to; SO_PEERCRED decides either way.
    mode = 0o666 if allow_uids or allow_gids else 0o600
    estate = take_over(place.socket, settings, idle_timeout_s) if replace else None
    if estate is not None:
        custody, election, listener = estate.custody, Election(place, estate.lock_fd), estate.listener
        os.chmod(place.socket, mode)
        log.info("has taken over from another build", extra=fields(front_ends=len(custody.held)))
    else:
        elected = Election.win(place, _ELECTION_WAIT_S)
        if elected is None:
            report({"lost": os.getpid()})
            return False
        if DEBUG:
            crashpoint("attach.elected")
        custody, election = Custody(idle_timeout_s), elected
        try:
            listener = election.listen(mode)
        except OSError:
            election.release()
            raise
    assert listener is not None
    faulthandler.enable(2)
    post = Post(place, identity, settings, log, election, listener, allow_uids, allow_gids)
    _alternate(post, custody, Signals(of_a_terminal=foreground), report)
    return True


def _alternate(post: Post, custody: Custody, signals: Signals, report: Report) -> None:
    """Is supervisor, and in each forked child the sender, and in a child of that the supervisor, and so on.

    Only the process that began comes back; the others end here.
    """
    # Before the first fork, and not in a child: a successor must not depend on files that may be gone.
    from cyproducer.sender.serving import Serving

    founder = os.getpid()
    child: Child | None = None
    status = 1
    try:
        while True:
            kin = Supervisor(post, custody, signals, child, report).run()
            if kin is None:
                break
            became = Serving(post, custody, kin).run()
            if became is None:
                break
            custody, kin = became
            assert kin.signals is not None
            signals, child = kin.signals, Child(kin, started=True)
            os.setsid()
            gc.collect()  # what the sender was: its destructors close descriptors by their numbers
            kept = custody.descriptors() | post.descriptors() | signals.descriptors()
            close_others(kept | {child.pidfd, child.socket.fileno()})
            name_process("cyp-supervisor")
            if DEBUG:
                crashpoint("supervise.heir-begun")
            report = _nobody_asks
        status = 0
    except BaseException:
        if os.getpid() == founder:
            raise
        post.log.exception("the process failed")
    finally:
        if os.getpid() != founder:
            os._exit(status)


def _nobody_asks(_message: dict[str, Any]) -> None:
    pass


if __name__ == "__main__":
    sys.exit("start it with: cyproducer sender")
