"""Starts the control plane from the handover of a predecessor, and prepares the handover to a forked supervisor."""

import logging
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from cyproducer.host import limits
from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import fields
from cyproducer.sender.control.draining import Drain
from cyproducer.sender.control.peers import Peer, read_only, refusal
from cyproducer.sender.handover import upgrade
from cyproducer.sender.handover.handover import ARENA, CONTROL, PIDFD, Handover, Held, Line, hang_up
from cyproducer.shm.arena_region import count_undelivered

__all__ = ["TakeoverMixin"]


class TakeoverMixin(ABC):
    """The part of Control that deals with predecessors and successors of its process."""

    engine: Any
    line: Line
    log: logging.Logger
    ledger: Ledger
    facts: Any
    settings: dict[str, Any]
    idle_timeout_s: float | None
    cluster_id: str | None
    _drain: Drain | None
    _peers: dict[int, Peer]
    _pidfds: dict[int, Peer]
    _front_ends: dict[int, Peer]
    _ended: dict[int, dict[str, Any]]

    @abstractmethod
    def drain(self, why: str, until: float | None = None) -> None:
        """End when everything is delivered; see Control."""

    @abstractmethod
    def _is_owner(self, peer: Peer) -> bool:
        """Return whether the peer belongs to this user or to root."""

    @abstractmethod
    def _end(self, peer: Peer, why: str) -> None:
        """End a connection."""

    @abstractmethod
    def _pass_on(self, peer: Peer, message: dict[str, Any]) -> bool:
        """Pass a connection on to the supervisor; False if it accepts no messages at the moment."""

    @abstractmethod
    def _add_peer(self, peer: Peer) -> None:
        """Start to read from a connection."""

    @abstractmethod
    def _remember_app(self, attach_id: int, app: str) -> None:
        """Keep the application of an attach id, for its row in the ledger of failures."""

    @abstractmethod
    def _answer_attach(self, peer: Peer, outcomes: int, wake: int) -> bool:
        """Send the answer to an attach; False if the front-end does not read it."""

    @abstractmethod
    def _count_failures(self, rows: list[tuple[str, str, str, int, float]]) -> None:
        """Add rows to the ledger."""

    def take_over(self, handover: Handover, refused: Collection[int]) -> None:
        """Take over the front-ends of a sender that has ended.

        The engine has taken them over already, except those with an attach id in `refused`.
        """
        self.ledger = handover.ledger
        for held in handover.held.values():
            self._remember_app(held.attach_id, held.meta["app"])
            if held.attach_id in refused:
                self.log.error("a front-end cannot be taken over and is detached", extra=fields(app=held.meta["app"]))
                hang_up(held.take(CONTROL))
                self.line.tell({"op": "drop", "attach_id": held.attach_id})
            elif held.ended:
                self._ended[held.attach_id] = held.meta
            else:
                self._take_over_front_end(held)
            held.close()
        for held in handover.quarantined.values():
            self._drop_quarantined(held)
        for fd in handover.waiting:
            peer = Peer(socket.socket(fileno=fd), None)
            peer.awaits_end = True
            self._add_peer(peer)
        for fd in handover.regions:
            os.close(fd)
        handover.regions, handover.held, handover.quarantined, handover.waiting = [], {}, {}, []
        if handover.draining:
            self.drain(handover.draining, handover.drain_until)
        elif self.engine.released_before():
            # A sender was replaced while it was ending. The front-ends that it has released wait for its end.
            self.drain("its predecessor was ending")

    def _take_over_front_end(self, held: Held) -> None:
        peer = Peer(socket.socket(fileno=held.take(CONTROL)), None)
        peer.socket.setblocking(False)
        peer.attach_id, peer.app, peer.meta = held.attach_id, held.meta["app"], held.meta
        peer.pid, peer.pidfd = held.meta["pid"], held.take(PIDFD)
        self._add_peer(peer)
        self._front_ends[peer.attach_id] = peer
        self._pidfds[peer.pidfd] = peer
        self.engine.watch(peer.pidfd)
        if not held.answered:
            # The predecessor may have sent the answer: then the front-end gets two and ignores the second.
            _, outcomes, _, wake = self.engine.descriptors(peer.attach_id)
            self._answer_attach(peer, read_only(outcomes), os.dup(wake))

    def _on_replace(self, peer: Peer, message: dict[str, Any]) -> None:
        """Pass the connection of a process that takes over to the supervisor, which ends this process; or refuse it."""
        reason = upgrade.refusal_reason(message, self.settings)
        if not self._is_owner(peer):
            reason = "REFUSED", f"uid {peer.uid} may not replace this sender"
        elif reason is None and message.get("limits") is not None:
            reason = self._limits_refusal_reason(message["limits"])
        if reason is None and (self._drain is not None or self.line.supervisor_pid is None):
            reason = "DRAINING", "the sender is ending or has no supervisor at the moment; try again"
        elif reason is None and not self._pass_on(peer, {"op": "replace", "pid": peer.pid}):
            reason = "DRAINING", "the sender's supervisor accepts no messages at the moment; try again"
        if reason is None:
            peer.passed_on = True
        else:
            peer.send(refusal(*reason))
        self._end(peer, "it requested a takeover")

    def _limits_refusal_reason(self, theirs: Any) -> tuple[str, str] | None:
        """Return why a process with these limits may not replace this sender: (error name, text); or None."""
        if not self.facts.replaceable:
            return "LIMITS", "it was started with `cyproducer sender`"
        if not limits.are_higher(theirs, limits.current()):
            return "LIMITS", "its limits are not lower"
        return None

    def _drop_quarantined(self, held: Held) -> None:
        """Drop a front-end at whose memory several senders crashed, and count its lost records in the ledger."""
        records = count_undelivered(held.fds[ARENA], held.meta["slots"])
        if records:
            self._count_failures([(held.meta["app"], "(all)", "QUARANTINED", records, time.time())])
        self.line.tell({"op": "drop", "attach_id": held.attach_id})
        held.close()

    def handover(self) -> Handover:
        """Return what the supervisor has to hold and owns from here on.

        Only a forked child that becomes the supervisor calls this.

        Detach the Python objects from their descriptors. The caller closes the descriptors that only the sender
        needs, by number.
        """
        handover = Handover(self.idle_timeout_s, self.facts.started_at, self.facts.restarts, self.cluster_id)
        handover.ledger = self.ledger
        handover.regions = list(self.engine.regions())
        for attach_id, peer in self._front_ends.items():
            fds = [peer.fd, peer.pidfd, *self.engine.descriptors(attach_id)]
            held = handover.held[attach_id] = Held(attach_id, peer.meta, fds)
            held.answered = True
        for attach_id, meta in self._ended.items():
            held = Held(attach_id, meta, [-1, -1, *self.engine.descriptors(attach_id)])
            held.answered = held.ended = True
            handover.held[attach_id] = held
        handover.waiting = [peer.fd for peer in self._peers.values() if peer.awaits_end]
        if self._drain is not None:
            handover.draining, handover.drain_until = "its predecessor was draining", self._drain.deadline
        for peer in self._peers.values():
            peer.socket.detach()
            peer.pidfd = -1
        return handover
