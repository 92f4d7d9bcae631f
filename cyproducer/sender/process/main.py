"""Runs supervisor and sender, started through an order on standard input or from the command line, until their end.

The interpreter does not process site-packages: only the standard library, cyproducer, and what is installed beside
cyproducer or its libraries can be imported.
"""

import faulthandler
import gc
import json
import logging
import os
import socket
import sys
from typing import Any

from cyproducer.host.rendezvous import Rendezvous, secret_settings, set_socket_mode
from cyproducer.observe.logfmt import fields, level_of
from cyproducer.sender.handover.election import Election
from cyproducer.sender.handover.handover import Handover, Post
from cyproducer.sender.process.supervisor import Child, Report, Supervisor
from cyproducer.sender.system.daemonise import (
    Signals,
    close_others,
    forbid_core_dumps,
    leave_environment,
    low_limits,
    name_process,
    to_null,
)
from cyproducer.sender.system.log_relay import LogRelay
from cyproducer.sender.system.service_manager import ServiceManager, read_watchdog_s
from cyproducer.shm.native import DEBUG, crashpoint, hide_memory, set_command_line, set_role

__all__ = ["main", "serve"]

# Seconds. A sender that is about to end holds its lock for a moment longer than its socket.
_ELECTION_WAIT_S = 2.0


def main() -> None:
    """Run the process that a front-end has started: read its order, detach, and become supervisor if elected.

    Standard input holds the order, standard output receives one report ({"ready"}, {"lost"} or {"error"}), standard
    error is the log. An exception before the log exists is reported and raised.
    """
    try:
        with open(0, "rb", closefd=False) as file:
            order = json.loads(file.read())
        leave_environment()
        name_process("cyp-supervisor")
        set_command_line(tuple(map(os.fsencode, sys.argv[1:])))  # without the source code of -c
    except Exception as error:
        _report({"error": f"{type(error).__name__}: {error}"})
        raise
    place = Rendezvous(order["stem"], order["socket"], order["description_path"])
    relay = LogRelay(place.log)
    relay.start()
    try:
        idle_timeout_s = order["sender_idle_timeout_ms"] / 1000
        replace = order.get("replace", False)
        serve(place, order["identity"], order["settings"], relay, idle_timeout_s, report=_report, replace=replace)
    except Exception as error:
        _logger(relay).exception("the sender failed")
        relay.flush()  # the reader of the report may show the end of the log
        _report({"error": f"{type(error).__name__}: {error}"})
    finally:
        relay.close()


def _report(message: dict[str, Any]) -> None:
    """Send the report to the front-end, if it still waits, and close the pipe to it."""
    try:
        os.write(1, json.dumps(message).encode())
    except OSError:
        pass
    to_null(1)


def _logger(relay: LogRelay) -> logging.Logger:
    """Return the sender's logger, which writes to `relay`."""
    log = logging.getLogger("cyproducer.sender")
    log.setLevel(level_of(os.environ.get("CYPRODUCER_LOG")))
    log.propagate = False
    log.handlers[:] = [relay]
    logging.raiseExceptions = False
    return log


def serve(
    place: Rendezvous,
    identity: dict[str, Any],
    settings: dict[str, Any],
    relay: LogRelay,
    idle_timeout_s: float | None,
    *,
    report: Report,
    allow_uids: tuple[int, ...] = (),
    allow_gids: tuple[int, ...] = (),
    foreground: bool = False,
    replace: bool = False,
) -> bool:
    """Run the supervisor of the sender at `place`, until the sender gets an end signal or is idle for too long.

    Return False if another process is the supervisor there. With `replace`, take over from that one: from any if
    `foreground`, else from one with lower resource limits. Call `report` once, with {"ready": pid} or {"lost": pid}.
    Raise OSError if the socket, its lock, the shared memory or a process cannot be created, and the errors of
    take_over().
    """
    set_role("supervisor")
    log = _logger(relay)
    if _will_hold_secrets(settings):
        forbid_core_dumps()
        hide_memory()
    # The mode lets other users connect only if some are allowed. In both cases SO_PEERCRED decides.
    mode = 0o666 if allow_uids or allow_gids else 0o600
    taken = _take_over(place, settings, log, idle_timeout_s, mode, report, foreground) if replace else None
    if taken is None:
        elected = Election.win(place, _ELECTION_WAIT_S)
        if elected is None:
            report({"lost": os.getpid()})
            return False
        if DEBUG:
            crashpoint("attach.elected")
        handover, election = Handover(idle_timeout_s), elected
        try:
            listener = election.listen(mode)
        except OSError:
            election.release()
            raise
    else:
        handover, election, listener = taken
    _warn_of_limits(log, foreground)
    # A crash report goes to the pipe, which the next supervisor reads: writing it must not wait for a terminal.
    faulthandler.enable(relay.writer)
    manager = ServiceManager("", 0.0, log)
    if foreground:  # a process that a front-end has started has the variables of the front-end's service
        # The command of an upgrade, ExecReload=, does not get the time limit of the watchdog.
        handover.watchdog_s = read_watchdog_s(os.environ) or handover.watchdog_s
        manager = ServiceManager(os.environ.get("NOTIFY_SOCKET", ""), handover.watchdog_s, log)
    shared = place, identity, settings, log, relay, election, listener, manager
    post = Post(*shared, allow_uids, allow_gids, mode, foreground)
    try:
        _alternate_roles(post, handover, Signals(from_terminal=foreground), report)
    finally:
        faulthandler.enable(2)
    return True


def _will_hold_secrets(settings: dict[str, Any]) -> bool:
    """Return whether a sender with these settings has secrets in its memory, also those that it reads from files."""
    # The mechanism has a default, GSSAPI, also without SASL.
    uses_sasl = settings.get("security_protocol", "").startswith("SASL")
    from_files = uses_sasl and settings.get("sasl_mechanism") in ("OAUTHBEARER", "GSSAPI")
    own_key = any(settings.get(name) for name in ("ssl_certfile", "ssl_keyfile", "ssl_keystore_location"))
    return bool(secret_settings(settings)) or from_files or own_key


def _take_over(
    place: Rendezvous,
    settings: dict[str, Any],
    log: logging.Logger,
    idle_timeout_s: float | None,
    mode: int,
    report: Report,
    foreground: bool,
) -> tuple[Handover, Election, socket.socket] | None:
    """Take over from the sender of `place` and set its socket's mode; None if there is no sender to replace.

    Raise the errors of upgrade.take_over().
    """
    # Imported here: only an upgrade needs it, and it must be loaded before files are removed.
    from cyproducer.sender.handover.upgrade import NotLowerError, take_over

    try:
        predecessor = take_over(place.socket, settings, idle_timeout_s, by_limits=not foreground)
    except NotLowerError as error:
        log.info("the other sender is not replaced: %s", error)  # and this process loses the election
        return None
    if predecessor is None:
        return None
    assert predecessor.listener is not None
    _set_mode(place.socket, mode, log)
    text = "has taken over from the former sender" if foreground else "has taken over from a sender with lower limits"
    log.info(text, extra=fields(front_ends=len(predecessor.handover.held)))
    report({"ready": os.getpid()})  # from here on attaching processes wait in the listener's queue
    return predecessor.handover, Election(place, predecessor.lock_fd), predecessor.listener


def _set_mode(path: str, mode: int, log: logging.Logger) -> None:
    """Set the mode of the socket. This process is the only holder of the front-ends, so no error may end it."""
    try:
        set_socket_mode(path, mode)
    except FileNotFoundError:
        pass  # removed at this moment: the supervisor creates it again
    except OSError as error:
        log.error(
            "the mode of the socket cannot be changed: %s; other users may not reach this sender: remove the socket, "
            "and the sender creates it again with this mode",
            error,
            extra=fields(socket=path, mode=f"{mode:o}"),
        )


def _warn_of_limits(log: logging.Logger, foreground: bool) -> None:
    limits = low_limits()
    if limits:
        log.warning(
            "the process that started this sender has low hard limits, which also apply to the sender; "
            + (
                "if processes are refused for lack of resources, start the sender again under higher limits"
                if foreground
                else "a process that is refused for them and has higher limits starts a sender that takes over"
            ),
            extra=fields(limits=limits),
        )


def _alternate_roles(post: Post, handover: Handover, signals: Signals, report: Report) -> None:
    """Run the supervisor; in each forked child the sender; in a child of the sender the supervisor; and so on.

    Return only in the first process; the others end here.
    """
    # Imported before the first fork, not in a child: a successor must not depend on files that may be removed by then.
    from cyproducer.sender.cluster.engine import Engine
    from cyproducer.sender.process.sender_process import Serving

    Engine.prepare(post.settings)

    first_pid = os.getpid()
    child: Child | None = None
    status = 1
    try:
        while True:
            peer_process = Supervisor(post, handover, signals, child, report).run()
            if peer_process is None:
                break
            forked = Serving(post, handover, peer_process).run()
            if forked is None:
                break
            handover, peer_process = forked
            assert peer_process.signals is not None
            signals, child = peer_process.signals, Child(peer_process, started=True)
            os.setsid()
            gc.collect()  # the sender's destructors close descriptors by number, so they run before numbers are reused
            kept = handover.descriptors() | post.descriptors() | signals.descriptors()
            close_others(kept | {child.pidfd, child.socket.fileno()})
            name_process("cyp-supervisor")
            if DEBUG:
                crashpoint("supervise.successor-begun")
            report = _ignore_report
        status = 0
    except BaseException:
        if os.getpid() == first_pid:
            raise
        post.log.exception("the supervisor or sender failed")
    finally:
        if os.getpid() != first_pid:
            post.relay.flush()
            os._exit(status)


def _ignore_report(_message: dict[str, Any]) -> None:
    pass


if __name__ == "__main__":
    sys.exit("this module is not a command; start a sender with: cyproducer sender")
