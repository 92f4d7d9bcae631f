"""Keeps in the supervisor what a sender's successor takes over: descriptors and state that the sender sends there.

The sender sends each descriptor before any process relies on it. The queue is a SOCK_SEQPACKET pair, the messages have
the form of host/control_messages.py. Messages that are still in the queue when the sender dies count as handed over.

    sender -> supervisor   {"op": "regions"}                     [STATE, SNAPSHOT]
                           {"op": "started"} | {"op": "failed", "message"}
                           {"op": "hold", "attach_id", "meta"}   [CONTROL, PIDFD, ARENA, OUTCOMES, WAKE, SENDER_WAKE]
                           {"op": "answered", "attach_id"}       the front-end was sent its answer
                           {"op": "ended", "attach_id"}          it has ended; its batches are still to be delivered
                           {"op": "drop", "attach_id"}           nothing of it is left
                           {"op": "waiting"}                     [connection of a process that waits for the end]
                           {"op": "draining", "why", "until"}    `until`: time of CLOCK_MONOTONIC, or null
                           {"op": "idle", "timeout_s"}           the largest that a front-end has requested
                           {"op": "cluster", "id"}               cluster id from a broker
                           {"op": "failures", "rows"}            for the ledger: [app, topic, cause, records, time]
                           {"op": "replace", "pid"}              [connection of the process that takes over]
                           {"op": "finished"}
                           {"op": "token", "token"}              the OAuth token of the connections; it stays in memory
    supervisor -> sender   {"op": "signal", "name", "count"}
                           {"op": "names"}                       [LOCK, LISTENER] replace those whose files were removed
"""

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cyproducer.host import control_messages
from cyproducer.host.messages import CONTROL, HELD, PIDFD
from cyproducer.host.rendezvous import Rendezvous
from cyproducer.observe.ledger import Ledger
from cyproducer.sender.handover.election import Election
from cyproducer.sender.system import dropped
from cyproducer.sender.system.log_relay import LogRelay
from cyproducer.sender.system.service_manager import ServiceManager

__all__ = [
    "Handover",
    "Held",
    "Line",
    "Post",
    "close",
    "hang_up",
    "received",
]

_log = logging.getLogger("cyproducer.sender")


@dataclass
class Post:
    """What supervisor and sender share: place, settings, permissions, log, lock, listening socket, service manager."""

    place: Rendezvous
    identity: dict[str, Any]
    settings: dict[str, Any]
    log: logging.Logger
    relay: LogRelay
    election: Election
    listener: socket.socket
    service_manager: ServiceManager
    allow_uids: tuple[int, ...] = ()
    allow_gids: tuple[int, ...] = ()
    mode: int = 0o600  # of the socket
    foreground: bool = False  # started with `cyproducer sender`, not by a front-end

    def descriptors(self) -> set[int]:
        """Return the descriptors that supervisor and sender both hold."""
        return {self.election.lock_fd, self.listener.fileno(), *self.relay.descriptors()}

    def listen_on(self, listener: socket.socket) -> None:
        """Replace the listening socket, and own the new one."""
        self.listener.close()
        self.listener = listener


class Held:
    """Owns the descriptors of one front-end. `meta`: app, pid, slots and settings from its attach request."""

    def __init__(self, attach_id: int, meta: dict[str, Any], fds: list[int]) -> None:
        self.attach_id = attach_id
        self.meta = meta
        self.fds = fds
        self.answered = False
        self.ended = False

    def release(self, which: int) -> int:
        """Return a descriptor, which the caller owns from here on."""
        fd, self.fds[which] = self.fds[which], -1
        return fd

    def end(self) -> None:
        """Mark the front-end as ended and hang up its connection, on which it may wait."""
        self.ended = True
        hang_up(self.release(CONTROL))
        close(self.release(PIDFD))

    def detach(self, why: str) -> None:
        """Detach a living front-end and mark it as ended; `why` is the text for it.

        The sender may have sent or may still send its batches, so the front-end must not send them again.
        """
        with socket.socket(fileno=os.dup(self.fds[CONTROL])) as sock:
            try:
                control_messages.send(sock, {"op": "detached", "message": why})
            except (OSError, control_messages.HandshakeError):
                pass  # its queue is full, or it has just ended
        self.end()

    def close(self) -> None:
        """Close all descriptors. A second call does nothing."""
        for which in range(HELD):
            close(self.release(which))


@dataclass
class Handover:
    """All state that a successor starts from. The sender keeps the supervisor's copy up to date."""

    idle_timeout_s: float | None
    started_at: float = field(default_factory=time.time)
    restarts: int = 0
    cluster_id: str | None = None  # the latest from a broker
    regions: list[int] = field(default_factory=list)
    held: dict[int, Held] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    quarantined: dict[int, Held] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    draining: str = ""
    drain_until: float | None = None
    deaths: dict[int, int] = field(default_factory=dict)  # attach id -> senders that crashed at its memory
    restarts_in_a_row: int = 0  # set to 0 after a sender that lived long enough
    watchdog_s: float = 0.0  # the service manager ends the service after this time without a sign of life; 0: never
    end_signals: int = 0  # received signals that tell the sender to end
    token: dict[str, Any] | None = field(default=None, repr=False)  # the OAuth token that front-ends have supplied

    def descriptors(self) -> set[int]:
        """Return every descriptor of the handover."""
        of_front_ends = (held.fds for held in (*self.held.values(), *self.quarantined.values()))
        return {fd for fds in (self.regions, self.waiting, *of_front_ends) for fd in fds if fd >= 0}

    def close(self) -> None:
        """Close everything at the end of the sender.

        Close the connections of processes that wait for this end last: the hang-up notifies them.
        """
        for held in self.held.values():
            if not held.ended:
                held.end()
        self.forget()

    def forget(self) -> None:
        """Close all descriptors without ending connections, which other processes hold as well."""
        for fd in (*self.descriptors().difference(self.waiting), *self.waiting):
            close(fd)
        self.held, self.quarantined, self.regions, self.waiting = {}, {}, [], []

    def apply(self, message: dict[str, Any], fds: list[int]) -> None:
        """Apply a message of the sender, and take ownership of the descriptors."""
        op, attach_id = message.get("op"), message.get("attach_id", 0)
        if op == "regions":
            self.regions = fds
            return
        if op == "hold" and len(fds) == HELD:
            self.held[attach_id] = Held(attach_id, message["meta"], fds)
            return
        if op == "waiting":
            self.waiting += fds
            return
        for fd in fds:
            close(fd)
        self._apply_state(op, attach_id, message)

    def _apply_state(self, op: object, attach_id: int, message: dict[str, Any]) -> None:
        held = self.held.get(attach_id)
        if op == "answered" and held is not None:
            held.answered = True
        elif op == "ended" and held is not None:
            held.end()
        elif op == "drop":
            for holders in (self.held, self.quarantined):
                if attach_id in holders:
                    holders.pop(attach_id).close()
        elif op == "draining":
            self.draining, self.drain_until = message["why"], message["until"]
        elif op == "cluster":
            self.cluster_id = message["id"]
        elif op == "token":
            self.token = message["token"]
        elif op == "idle":
            self.idle_timeout_s = message["timeout_s"]
        elif op == "failures":
            for row in message["rows"]:
                self.ledger.add(*row)


class Line:
    """The sender's end of the queue to its supervisor. No method waits, except send_last().

    Without a living supervisor every call succeeds: the next supervisor is forked from the sender and inherits the
    state.
    """

    def __init__(self, sock: socket.socket | None = None, pid: int | None = None, pidfd: int = -1) -> None:
        self._later: deque[dict[str, Any]] = deque()
        #: The error of the socket if it refused the message of the last give(); else None.
        self.refusal: OSError | None = None
        self.begin(sock, pid, pidfd)

    def begin(self, sock: socket.socket | None, pid: int | None, pidfd: int) -> None:
        """Start to use a supervisor's queue, and take ownership of its socket and pidfd."""
        self.socket = sock
        self.supervisor_pid = pid
        self.pidfd = pidfd
        self.disconnected = sock is None

    def end(self) -> None:
        """Close the queue of a supervisor that has ended. A second call does nothing."""
        if self.socket is not None:
            self.socket.close()
        close(self.pidfd)
        self._later.clear()
        self.begin(None, None, -1)

    def give(self, message: dict[str, Any], fds: tuple[int, ...]) -> bool:
        """Send a message with descriptors at once; False if the queue is full. The caller keeps its descriptors."""
        self.refusal = None
        self.flush()
        try:
            return not self._later and self._send(message, fds)
        except control_messages.HandshakeError:
            return False

    def tell(self, message: dict[str, Any]) -> None:
        """Queue a message, in order. What the socket does not accept now is sent by a later flush()."""
        self._later.append(message)
        self.flush()

    def tell_failures(self, rows: Iterable[tuple[str, str, str, int, float]]) -> None:
        """Queue rows for the ledger of failures."""
        for piece in control_messages.pieces(rows):
            self.tell({"op": "failures", "rows": piece})

    def flush(self) -> None:
        """Send what the socket accepts now; drop a message that is too large to be sent at all."""
        while self._later:
            try:
                if not self._send(self._later[0], ()):
                    return
            except control_messages.HandshakeError as error:
                op = self._later[0].get("op")
                _log.warning("dropped the message %s for the supervisor, which cannot be sent: %s", op, error)
            self._later.popleft()

    @property
    def is_flushed(self) -> bool:
        """Whether no message waits to be sent; True also if there is no supervisor that needs one."""
        return not self._later

    def send_last(self, message: dict[str, Any]) -> bool:
        """Send everything and then `message`, and wait until it is sent; False if there is no supervisor."""
        if self.socket is not None:
            self.socket.setblocking(True)
        self.tell(message)
        return not self.disconnected

    def _send(self, message: dict[str, Any], fds: tuple[int, ...]) -> bool:
        if self.socket is None or self.disconnected:
            return True
        try:
            control_messages.send(self.socket, message, fds)
        except ConnectionError:
            self.disconnected = True  # its pidfd is about to become readable
        except OSError as error:  # full, or too many descriptors in flight
            self.refusal = error.with_traceback(None)
            return False
        return True

    def messages(self) -> list[tuple[dict[str, Any], list[int]]]:
        """Return the messages of the supervisor; the caller owns the descriptors."""
        return [] if self.socket is None else received(self.socket)


def received(sock: socket.socket) -> list[tuple[dict[str, Any], list[int]]]:
    """Return all messages in the queue, without damaged ones; the caller owns the descriptors."""
    found: list[tuple[dict[str, Any], list[int]]] = []
    while True:
        try:
            message, fds = control_messages.receive(sock)
        except control_messages.HandshakeError:
            continue
        except OSError:
            return found
        if message is None:
            return found
        found.append((message, fds))


def hang_up(fd: int) -> None:
    """End a connection for all processes that hold it, and close the descriptor."""
    if fd >= 0:
        dropped.drop(socket.socket(fileno=fd))


def close(fd: int) -> None:
    """Close a descriptor unless it is -1."""
    if fd >= 0:
        os.close(fd)
