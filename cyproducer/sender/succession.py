"""The control plane's beginning from what a predecessor left, and what a forked supervisor takes from it."""

import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import fields
from cyproducer.sender.attached import Peer, read_only
from cyproducer.sender.custody import ARENA, CONTROL, PIDFD, Custody, Held, Line, hang_up
from cyproducer.shm.arena import count_undelivered

__all__ = ["Succession"]


class Succession(ABC):
    """The part of Control that its process' successor and predecessor have to do with."""

    engine: Any
    line: Line
    log: logging.Logger
    ledger: Ledger
    facts: Any
    idle_timeout_s: float | None
    draining: bool
    _drain_deadline: float
    _peers: dict[int, Peer]
    _pidfds: dict[int, Peer]
    _front_ends: dict[int, Peer]
    _ended: dict[int, dict[str, Any]]

    @abstractmethod
    def drain(self, why: str, until: float | None = None) -> None:
        """See Control."""

    @abstractmethod
    def _add_peer(self, peer: Peer) -> None:
        """A connection that is listened to."""

    @abstractmethod
    def _remember_app(self, attach_id: int, app: str) -> None:
        """Whose failures those of an attach id are."""

    @abstractmethod
    def _answer_attach(self, peer: Peer, outcomes: int, wake: int) -> bool:
        """Sends what an attach is answered with; False: it is not taken."""

    @abstractmethod
    def _count_failures(self, rows: list[tuple[str, str, str, int, float]]) -> None:
        """Into the ledger."""

    def adopt(self, custody: Custody, refused: Collection[int]) -> None:
        """Takes over the front-ends of a sender that has ended; the engine has them already, but `refused`."""
        self.ledger = custody.ledger
        for held in custody.held.values():
            self._remember_app(held.attach_id, held.meta["app"])
            if held.attach_id in refused:
                self.log.error("a front-end cannot be taken over", extra=fields(app=held.meta["app"]))
                hang_up(held.take(CONTROL))
                self.line.tell({"op": "drop", "attach_id": held.attach_id})
            elif held.ended:
                self._ended[held.attach_id] = held.meta
            else:
                self._adopt_front_end(held)
            held.close()
        for held in custody.quarantined.values():
            self._bury(held)
        for fd in custody.waiting:
            peer = Peer(socket.socket(fileno=fd), None)
            peer.awaits_end = True
            self._add_peer(peer)
        for fd in custody.regions:
            os.close(fd)
        custody.regions, custody.held, custody.quarantined, custody.waiting = [], {}, {}, []
        if custody.draining:
            self.drain(custody.draining, custody.drain_until)

    def _adopt_front_end(self, held: Held) -> None:
        peer = Peer(socket.socket(fileno=held.take(CONTROL)), None)
        peer.socket.setblocking(False)
        peer.attach_id, peer.app, peer.meta = held.attach_id, held.meta["app"], held.meta
        peer.pid, peer.pidfd = held.meta["pid"], held.take(PIDFD)
        self._add_peer(peer)
        self._front_ends[peer.attach_id] = peer
        self._pidfds[peer.pidfd] = peer
        self.engine.watch(peer.pidfd)
        if not held.answered:
            # Perhaps it is: then the front-end has two answers, and passes over the second one.
            _, outcomes, _, wake = self.engine.descriptors(peer.attach_id)
            self._answer_attach(peer, read_only(outcomes), os.dup(wake))

    def _bury(self, held: Held) -> None:
        """Counts what a front-end has lost at whose memory sender after sender has crashed."""
        records = count_undelivered(held.fds[ARENA], held.meta["slots"])
        if records:
            self._count_failures([(held.meta["app"], "(all)", "QUARANTINED", records, time.time())])
        self.line.tell({"op": "drop", "attach_id": held.attach_id})
        held.close()

    def custody(self) -> Custody:
        """In a forked child that is to be the supervisor: all that it has to hold, which is its own from here on.

        Descriptors that only the sender needs are forgotten, to be closed by their numbers.
        """
        custody = Custody(self.idle_timeout_s, self.facts.started_at, self.facts.restarts)
        custody.ledger = self.ledger
        custody.regions = list(self.engine.regions())
        for attach_id, peer in self._front_ends.items():
            fds = [peer.fd, peer.pidfd, *self.engine.descriptors(attach_id)]
            held = custody.held[attach_id] = Held(attach_id, peer.meta, fds)
            held.answered = True
        for attach_id, meta in self._ended.items():
            held = Held(attach_id, meta, [-1, -1, *self.engine.descriptors(attach_id)])
            held.answered = held.ended = True
            custody.held[attach_id] = held
        custody.waiting = [peer.fd for peer in self._peers.values() if peer.awaits_end]
        if self.draining:
            custody.draining, custody.drain_until = "its predecessor drained", self._drain_deadline
        for peer in self._peers.values():
            peer.socket.detach()
            peer.pidfd = -1
        return custody
