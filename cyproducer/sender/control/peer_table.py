"""Keeps the open connections of a sender and the front-ends among them, and does what follows when one ends."""

import json
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from cyproducer.sender.cluster.client_id import ClientId
from cyproducer.sender.cluster.metadata import Metadata
from cyproducer.sender.cluster.violations import Violations
from cyproducer.sender.control.listening import Listening
from cyproducer.sender.control.peers import Peer, has_ended
from cyproducer.sender.control.quotas import UserLimits
from cyproducer.sender.control.reserve import Reserve
from cyproducer.sender.engine.native import FrontEnds, Loop
from cyproducer.sender.handover.handover import Line
from cyproducer.shm.native import DEBUG, crashpoint

__all__ = ["HUNG_UP", "PeerTable"]

#: Why a connection has ended as it should, which is not logged.
HUNG_UP = "it hung up"
_APPS_REMEMBERED = 4096


class PeerTable:
    """All peers by descriptor. A front-end is also found by its attach id and by the pidfd of its process.

    peers        by the descriptor of the connection
    unfinished   the peers in their handshake, the oldest first
    front_ends   the attached ones, by attach id
    ended        meta of ended front-ends whose batches are still delivered, by attach id
    commanding   by attach id: the newest connection with commands of this transactional front-end
    """

    def __init__(
        self,
        front_ends: FrontEnds,
        loop: Loop,
        client_id: ClientId,
        metadata: Metadata,
        violations: Violations,
        line: Line,
        reserve: Reserve,
        listening: Listening,
        limits: UserLimits,
    ) -> None:
        self.peers: dict[int, Peer] = {}
        self.unfinished: dict[int, Peer] = {}
        self.front_ends: dict[int, Peer] = {}
        self.ended: dict[int, dict[str, Any]] = {}
        self.commanding: dict[int, Peer] = {}
        self._by_pidfd: dict[int, Peer] = {}
        self._apps: OrderedDict[int, str] = OrderedDict()
        self._front_ends = front_ends
        self._loop = loop
        self._client_id = client_id
        self._metadata = metadata
        self._violations = violations
        self._line = line
        self._reserve = reserve
        self._listening = listening
        self._quotas = limits.quotas
        self._budget = limits.budget
        self._unread = limits.unread
        self._refusals = limits.refusals

    def add(self, peer: Peer) -> Peer | None:
        """Start to read from a connection. Return the connection that is too many for its user, or None."""
        self.peers[peer.fd] = peer
        if peer.deadline is not None:
            self.unfinished[peer.fd] = peer
        self._loop.watch(peer.fd)
        if peer.attach_id:
            return None  # of a predecessor: add_front_end() counts it
        return self._quotas.connect(peer)

    def has(self, peer: Peer) -> bool:
        """Return whether the connection of the peer has not ended."""
        return self.peers.get(peer.fd) is peer

    def finish(self, peer: Peer) -> None:
        """End the time limit of a peer whose handshake is over."""
        peer.deadline = None
        self.unfinished.pop(peer.fd, None)

    def add_command(self, peer: Peer, attach_id: int) -> None:
        """Note a command of a front-end. Its former connection ends, unless it waits for an answer."""
        former = self.commanding.get(attach_id)
        peer.begin_command(attach_id)
        self.commanding[attach_id] = peer
        if former is peer:
            return
        self._quotas.begin_commands(peer)
        if former is not None and former.commands:
            self._quotas.end_commands(former)
        elif former is not None:
            self.end(former, HUNG_UP)

    def end_command(self, peer: Peer) -> None:
        """Note that a command is answered. Its connection ends if it is not the newest one of its front-end."""
        peer.end_command()
        if not peer.commands and self.commanding.get(peer.commands_of) is not peer:
            self.end(peer, HUNG_UP)

    def add_front_end(self, peer: Peer) -> None:
        """Add a peer that has got an attach id."""
        self.front_ends[peer.attach_id] = peer
        self._quotas.attach(peer)
        self._client_id.add(peer.client_id)
        self.remember_app(peer.attach_id, peer.app)

    def watch_process(self, peer: Peer) -> None:
        """Notice the end of the front-end's process."""
        self._by_pidfd[peer.pidfd] = peer
        self._loop.watch(peer.pidfd)

    def end_if_process_ended(self, pidfd: int) -> bool:
        """End the front-end whose process has ended; False if the descriptor is no front-end's pidfd."""
        if pidfd not in self._by_pidfd:
            return False
        # Checked again: in this loop iteration the number may have become that of another front-end's pidfd.
        if has_ended(pidfd):
            self.end(self._by_pidfd[pidfd], "its process ended")
        return True

    def end(self, peer: Peer, why: str) -> None:
        """End a connection, and with it the front-end. Do nothing if it was ended before."""
        if self.peers.pop(peer.fd, None) is None:
            return
        self.finish(peer)
        self._budget.drop(peer.fd)
        self._quotas.end(peer)
        self._loop.unwatch(peer.fd)
        if self._by_pidfd.pop(peer.pidfd, None) is not None:
            self._loop.unwatch(peer.pidfd)
        if self.commanding.get(peer.commands_of) is peer:
            del self.commanding[peer.commands_of]
        if peer.attach_id:
            if DEBUG:
                crashpoint("reclaim.noticed")
            del self.front_ends[peer.attach_id]
            self.ended[peer.attach_id] = peer.meta
            self._client_id.remove(peer.client_id)
            self._line.tell({"op": "ended", "attach_id": peer.attach_id})
            self.detach(peer.attach_id)
            peer.hang_up()
            if DEBUG:
                crashpoint("reclaim.detached")
            if peer.attach_id in self.commanding:
                self.end(self.commanding[peer.attach_id], HUNG_UP)
            self._refusals.log(peer, logging.INFO, "detached", attach_id=peer.attach_id, app=peer.app, why=why)
        elif why != HUNG_UP and not peer.awaits_retry:
            self._refusals.log(peer, logging.INFO, "a connection was closed", why=why)
        self._unread.end(peer)
        peer.close()
        self._listening.on_closed_connection()

    def detach(self, attach_id: int) -> None:
        """Detach a front-end from the engine, which still delivers its batches. A second call does nothing."""
        self._metadata.drop(attach_id)
        self._front_ends.detach(attach_id)

    def await_end(self, peer: Peer) -> None:
        """Keep the connection of a process that waits for the sender's end. The supervisor keeps it as well."""
        peer.awaits_end = True
        self.finish(peer)
        self._line.give({"op": "waiting"}, (peer.fd,))

    def pop_waiting(self) -> list[Peer]:
        """Return the connections of processes that wait for the sender's end, and do not read from them any more."""
        waiting = [peer for peer in self.peers.values() if peer.awaits_end]
        for peer in waiting:
            del self.peers[peer.fd]
            self._loop.unwatch(peer.fd)
        return waiting

    def update(self) -> None:
        """Do what follows from events in the engine, and send what the supervisor has to know."""
        self._detach_violators()
        self._drop_finished()
        self._drop_topics()
        self._line.flush()

    def _detach_violators(self) -> None:
        for attach_id, why in self._violations.take():
            peer = self.front_ends.get(attach_id)
            if peer is not None:
                text = "a front-end broke the protocol and is detached"
                self._refusals.log(peer, logging.WARNING, text, attach_id=attach_id, app=peer.app, why=why)
                text = "the sender detached this process, whose shared memory was overwritten; see the sender's log"
                peer.send({"op": "detached", "message": text})
                self.end(peer, "its shared memory violates the protocol")

    def _drop_finished(self) -> None:
        """Forget the ended front-ends whose batches are all delivered, and tell the supervisor."""
        for attach_id in self._front_ends.take_gone():
            self.ended.pop(attach_id, None)
            self._line.tell({"op": "drop", "attach_id": attach_id})

    def _drop_topics(self) -> None:
        """Forget that front-ends have requested topics which have given their numbers back."""
        names = self._metadata.take_given_back()
        for peer in self.front_ends.values() if names else ():
            peer.wanted.difference_update(names)

    def remember_app(self, attach_id: int, app: str) -> None:
        """Keep the application's name longer than the front-end lives, since its records may fail after its end."""
        self._apps[attach_id] = app
        while len(self._apps) > max(_APPS_REMEMBERED, 2 * len(self.front_ends)):
            oldest = next((known for known in self._apps if known not in self.front_ends), None)
            if oldest is None:
                return
            del self._apps[oldest]

    def app_of(self, attach_id: int) -> str:
        """Return the application of an attach id; "?" if it is not known any more."""
        return self._apps.get(attach_id, "?")

    def tell(self, text: str, app: str | None = None) -> None:
        """Send a warning to the attached front-ends of the application, or to all if it has none."""
        peers = [peer for peer in self.front_ends.values() if app is not None and peer.app == app]
        for peer in peers or list(self.front_ends.values()):
            peer.send({"op": "warning", "message": text[:4000]})

    def send_document(self, peer: Peer, name: str, make: Callable[[], dict[str, Any]]) -> None:
        """Send an answer that may be too large for a message, in a memfd. Raise OSError."""
        with self._reserve.released():
            peer.send_file(f"cyproducer-{name}", json.dumps(make()).encode())
            self._unread.add(peer)
