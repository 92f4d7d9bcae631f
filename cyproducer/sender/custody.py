"""What outlives a sender: the descriptors that its successor takes over, and how they reach the supervisor.

The sender hands every one of them over before anybody relies on it, on a SOCK_SEQPACKET pair, in the form of
shm/handshake.py; what lies in that queue when the sender dies counts as handed over.

    sender -> supervisor   {"op": "regions"}                     [STATE, SNAPSHOT]
                           {"op": "started"} | {"op": "failed", "message"}
                           {"op": "hold", "attach_id", "meta"}   [CONTROL, PIDFD, ARENA, OUTCOMES, WAKE, SENDER_WAKE]
                           {"op": "answered", "attach_id"}       the front-end has its answer
                           {"op": "ended", "attach_id"}          it has ended; its batches are to be delivered
                           {"op": "drop", "attach_id"}           nothing of it is left
                           {"op": "waiting"}                     [the connection of one who waits for the end]
                           {"op": "draining", "why", "until"}    CLOCK_MONOTONIC
                           {"op": "idle", "timeout_s"}           the largest that was asked for
                           {"op": "failures", "rows"}            for the ledger: [app, topic, cause, records, time]
                           {"op": "replace", "pid"}              [the connection of who wants to take over]
                           {"op": "finished"}
    supervisor -> sender   {"op": "signal", "name", "count"}
"""

import logging
import os
import socket
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cyproducer.observe.ledger import Ledger
from cyproducer.sender.election import Election
from cyproducer.shm import handshake
from cyproducer.shm.rendezvous import Rendezvous

__all__ = [
    "ARENA",
    "CONTROL",
    "OUTCOMES",
    "PIDFD",
    "SENDER_WAKE",
    "WAKE",
    "Custody",
    "Held",
    "Line",
    "Post",
    "close",
    "hang_up",
    "received",
]

_log = logging.getLogger("cyproducer.sender")

CONTROL, PIDFD, ARENA, OUTCOMES, WAKE, SENDER_WAKE = range(6)
HELD = 6


@dataclass(frozen=True)
class Post:
    """What a sender is, whichever process it is: its place, settings and rights, and what it listens on."""

    place: Rendezvous
    identity: dict[str, Any]
    settings: dict[str, Any]
    log: logging.Logger
    election: Election
    listener: socket.socket
    allow_uids: tuple[int, ...] = ()
    allow_gids: tuple[int, ...] = ()

    def descriptors(self) -> set[int]:
        """What every process of the sender holds."""
        return {self.election.lock_fd, self.listener.fileno()}


class Held:
    """A front-end's descriptors, owned. `meta`: app, pid, slots and settings, as its attach said."""

    def __init__(self, attach_id: int, meta: dict[str, Any], fds: list[int]) -> None:
        self.attach_id = attach_id
        self.meta = meta
        self.fds = fds
        self.answered = False
        self.ended = False

    def take(self, which: int) -> int:
        """The descriptor, which is the caller's from here on."""
        fd, self.fds[which] = self.fds[which], -1
        return fd

    def end(self) -> None:
        """The front-end has ended, or is given up: what it waits on hangs up."""
        self.ended = True
        hang_up(self.take(CONTROL))
        close(self.take(PIDFD))

    def give_up(self, why: str) -> None:
        """As end(), for one that lives: what a sender has of its batches may still go out, the front-end may not."""
        with socket.socket(fileno=os.dup(self.fds[CONTROL])) as sock:
            try:
                handshake.send(sock, {"op": "detached", "message": why})
            except (OSError, handshake.HandshakeError):
                pass  # it takes nothing, or has just ended
        self.end()

    def close(self) -> None:
        """Lets go of all. Again: nothing."""
        for which in range(HELD):
            close(self.take(which))


@dataclass
class Custody:
    """All that a sender's successor starts from; the supervisor's own copy is kept up to date by its sender."""

    idle_timeout_s: float | None
    started_at: float = field(default_factory=time.time)
    restarts: int = 0
    regions: list[int] = field(default_factory=list)
    held: dict[int, Held] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    quarantined: dict[int, Held] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    draining: str = ""
    drain_until: float | None = None
    deaths: dict[int, int] = field(default_factory=dict)  # of senders, by the attach id that they were at
    in_a_row: int = 0  # restarts without a life of some length between them
    heard: int = 0  # signals that tell the sender to end

    def descriptors(self) -> set[int]:
        """Every descriptor that is held."""
        of_front_ends = (held.fds for held in (*self.held.values(), *self.quarantined.values()))
        return {fd for fds in (self.regions, self.waiting, *of_front_ends) for fd in fds if fd >= 0}

    def close(self) -> None:
        """Everything is over: lets go of all; those who wait for the end come last, the hang-up tells them."""
        for held in self.held.values():
            if not held.ended:
                held.end()
        self.forget()

    def forget(self) -> None:
        """Lets go of all, which others hold as well."""
        for fd in (*self.descriptors().difference(self.waiting), *self.waiting):
            close(fd)
        self.held, self.quarantined, self.regions, self.waiting = {}, {}, [], []

    def note(self, message: dict[str, Any], fds: list[int]) -> None:
        """Does what a sender says. Owns the descriptors."""
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
        self._note_state(op, attach_id, message)

    def _note_state(self, op: object, attach_id: int, message: dict[str, Any]) -> None:
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
        elif op == "idle":
            self.idle_timeout_s = message["timeout_s"]
        elif op == "failures":
            for row in message["rows"]:
                self.ledger.add(*row)


class Line:
    """The sender's end of the queue to its supervisor. Nothing here waits, but the last word.

    Without a living supervisor everything succeeds: the next one is forked from the sender, and inherits.
    """

    def __init__(self, sock: socket.socket | None = None, pid: int | None = None, pidfd: int = -1) -> None:
        self._later: deque[dict[str, Any]] = deque()
        self.begin(sock, pid, pidfd)

    def begin(self, sock: socket.socket | None, pid: int | None, pidfd: int) -> None:
        """There is a supervisor; owns its pidfd and the queue."""
        self.socket = sock
        self.supervisor_pid = pid
        self.pidfd = pidfd
        self.deaf = sock is None

    def end(self) -> None:
        """The supervisor is no more. Again: nothing."""
        if self.socket is not None:
            self.socket.close()
        close(self.pidfd)
        self._later.clear()
        self.begin(None, None, -1)

    def give(self, message: dict[str, Any], fds: tuple[int, ...]) -> bool:
        """Hands descriptors over (the caller keeps its own), now; False if the queue does not take them."""
        self.flush()
        try:
            return not self._later and self._send(message, fds)
        except handshake.HandshakeError:
            return False

    def tell(self, message: dict[str, Any]) -> None:
        """Says something, in order; what the queue does not take goes with the next flush()."""
        self._later.append(message)
        self.flush()

    def tell_failures(self, rows: Iterable[tuple[str, str, str, int, float]]) -> None:
        """Says what is to be in the ledger."""
        for piece in handshake.pieces(rows):
            self.tell({"op": "failures", "rows": piece})

    def flush(self) -> None:
        """Sends what the queue takes now; what no queue would ever take is dropped."""
        while self._later:
            try:
                if not self._send(self._later[0], ()):
                    return
            except handshake.HandshakeError as error:
                _log.warning("the supervisor does not hear of %s: %s", self._later[0].get("op"), error)
            self._later.popleft()

    def say_last(self, message: dict[str, Any]) -> bool:
        """Waits until the supervisor's queue has taken everything; False if there is no supervisor."""
        if self.socket is not None:
            self.socket.setblocking(True)
        self.tell(message)
        return not self.deaf

    def _send(self, message: dict[str, Any], fds: tuple[int, ...]) -> bool:
        if self.socket is None or self.deaf:
            return True
        try:
            handshake.send(self.socket, message, fds)
        except ConnectionError:
            self.deaf = True  # its pidfd is about to tell
        except OSError:
            return False  # full, or too many descriptors in flight
        return True

    def messages(self) -> list[dict[str, Any]]:
        """What the supervisor said."""
        return [] if self.socket is None else [message for message, _ in received(self.socket)]


def received(sock: socket.socket) -> list[tuple[dict[str, Any], list[int]]]:
    """All that lies in the queue; the caller owns the descriptors. What is damaged is left out."""
    found: list[tuple[dict[str, Any], list[int]]] = []
    while True:
        try:
            message, fds = handshake.receive(sock)
        except handshake.HandshakeError:
            continue
        except OSError:
            return found
        if message is None:
            return found
        found.append((message, fds))


def hang_up(fd: int) -> None:
    """Ends a connection for all who hold it, and closes the descriptor."""
    if fd >= 0:
        with socket.socket(fileno=fd) as sock:
            handshake.drain(sock)


def close(fd: int) -> None:
    """Closes a descriptor unless it is -1."""
    if fd >= 0:
        os.close(fd)
