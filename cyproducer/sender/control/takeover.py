"""Takes front-ends over from a predecessor, answers a process that wants to take over, and prepares a handover."""

import errno
import logging
import os
import socket
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from cyproducer.host import limits
from cyproducer.host.credential_files import CredentialFileError, credential_files, unproven_file
from cyproducer.host.credentials import is_proof, replacing
from cyproducer.host.messages import ARENA, CONTROL, PIDFD
from cyproducer.observe.logfmt import fields
from cyproducer.sender.control.attaching import Attaching
from cyproducer.sender.control.ending import Ending
from cyproducer.sender.control.facts import Facts
from cyproducer.sender.control.failures import Failures
from cyproducer.sender.control.listening import Listening
from cyproducer.sender.control.peer_table import PeerTable
from cyproducer.sender.control.peers import Peer, read_only, refusal
from cyproducer.sender.engine.native import FrontEnds
from cyproducer.sender.handover import upgrade
from cyproducer.sender.handover.handover import Handover, Held, Line, hang_up
from cyproducer.sender.system import dropped
from cyproducer.shm.native import count_undelivered

if TYPE_CHECKING:
    from cyproducer.sender.cluster.supplied_tokens import SuppliedTokens  # only with OAUTHBEARER it is imported

__all__ = ["Takeover"]


class Takeover:
    """The part of the control server that deals with predecessors and successors of its process.

    regions  the descriptors of the state and the snapshot, which the engine owns
    tokens   None if the connections need no OAuth tokens of front-ends
    """

    def __init__(
        self,
        front_ends: FrontEnds,
        regions: tuple[int, int],
        tokens: "SuppliedTokens | None",
        table: PeerTable,
        listening: Listening,
        ending: Ending,
        attaching: Attaching,
        failures: Failures,
        line: Line,
        facts: Facts,
        log: logging.Logger,
    ) -> None:
        self._front_ends = front_ends
        self._regions = regions
        self._tokens = tokens
        self._table = table
        self._listening = listening
        self._ending = ending
        self._attaching = attaching
        self._failures = failures
        self._line = line
        self._facts = facts
        self._log = log

    # ------------------------------------------------------------------ from a predecessor

    def restore(self, handover: Handover, refused: Collection[int]) -> None:
        """Take over the front-ends, waiting connections and drain of a sender that has ended, and empty `handover`.

        The engine has taken the front-ends over already, except those with an attach id in `refused`.
        """
        if self._tokens is not None and handover.token is not None:
            self._tokens.restore(handover.token)
        handover.token = None
        for held in handover.held.values():
            self._table.remember_app(held.attach_id, held.meta["app"])
            if held.attach_id in refused:
                app = held.meta["app"]
                self._log.error("a front-end cannot be taken over and is detached", extra=fields(app=app))
                hang_up(held.release(CONTROL))
                self._line.tell({"op": "drop", "attach_id": held.attach_id})
            elif held.ended:
                self._table.ended[held.attach_id] = held.meta
            else:
                self._restore_front_end(held)
            held.close()
        for held in handover.quarantined.values():
            self._drop_quarantined(held)
        for fd in handover.waiting:
            peer = Peer(socket.socket(fileno=fd), None)
            peer.awaits_end = True
            self._table.add(peer)
        for fd in handover.regions:
            os.close(fd)
        handover.regions, handover.held, handover.quarantined, handover.waiting = [], {}, {}, []
        if handover.draining:
            self._ending.drain(handover.draining, handover.drain_until)
        elif self._front_ends.released_before():
            # A sender was replaced while it was ending. The front-ends that it has released wait for its end.
            self._ending.drain("its predecessor was ending")

    def _restore_front_end(self, held: Held) -> None:
        peer = Peer(socket.socket(fileno=held.release(CONTROL)), None)
        peer.socket.setblocking(False)
        peer.become_front_end(held.attach_id, held.meta)
        peer.pidfd = held.release(PIDFD)
        self._table.add(peer)
        self._table.add_front_end(peer)
        self._table.watch_process(peer)
        if not held.answered:
            # The predecessor may have sent the answer: then the front-end gets two and ignores the second.
            _, outcomes, _, wake = self._front_ends.descriptors(peer.attach_id)
            self._attaching.answer(peer, read_only(outcomes), os.dup(wake))

    def _drop_quarantined(self, held: Held) -> None:
        """Drop a front-end at whose memory several senders crashed, and count its lost records in the ledger."""
        records = count_undelivered(held.fds[ARENA], held.meta["slots"])
        if records:
            self._failures.count_lost(held.meta["app"], records)
        self._line.tell({"op": "drop", "attach_id": held.attach_id})
        held.close()

    # ------------------------------------------------------------------ to a successor

    def answer(self, peer: Peer, message: dict[str, Any]) -> None:
        """Pass the connection of a process that takes over to the supervisor, which ends this process; or refuse."""
        reason = upgrade.refusal_reason(message, self._facts.public_settings)
        if not peer.is_owner:
            reason = "REFUSED", f"uid {peer.uid} may not replace this sender"
        elif "challenge" in message and (reason is None or reason[0] == "SETTINGS"):
            peer.send_challenge()
            return
        elif reason is None or reason[0] == "SETTINGS":
            reason = self._credentials_refusal_reason(peer, message) or reason
        if reason is None and message.get("limits") is not None:
            reason = self._limits_refusal_reason(message["limits"])
        if reason is None and (self._ending.is_draining or self._line.supervisor_pid is None):
            reason = "DRAINING", "the sender is ending or has no supervisor at the moment; try again"
        elif reason is None and not self._pass_on(peer, {"op": "replace", "pid": peer.pid}):
            reason = "DRAINING", "the sender's supervisor accepts no messages at the moment; try again"
        if reason is None:
            peer.passed_on = True
        else:
            peer.send(refusal(*reason))
        self._table.end(peer, "it requested a takeover")

    def _credentials_refusal_reason(self, peer: Peer, message: dict[str, Any]) -> tuple[str, str] | None:
        """Return why the peer may not have what this sender has; or None. A named sender can get other secrets so."""
        facts, challenge = self._facts, peer.take_challenge()
        if not facts.private:
            return None
        subject = replacing(challenge, peer.pid)
        knows_secrets = not facts.secrets or (challenge and is_proof(message.get("proof"), facts.secrets, subject))
        if not knows_secrets or self._tokens is not None:  # of tokens there is nothing to know
            return "SETTINGS", "the secrets in the settings (passwords, keys) are not those of the running sender"
        try:
            name = unproven_file(credential_files(facts.settings), message.get("files") if challenge else None, subject)
        except CredentialFileError as error:
            return "SETTINGS", f"the running sender cannot use its credentials: {error}"
        return ("FILES", f"the file of {name} had another content for the running sender") if name else None

    def _limits_refusal_reason(self, theirs: Any) -> tuple[str, str] | None:
        """Return why a process with these limits may not replace this sender: (error name, text); or None."""
        if not self._facts.replaceable:
            return "LIMITS", "it was started with `cyproducer sender`"
        if not limits.are_higher(theirs, limits.current()):
            return "LIMITS", "its limits are not lower"
        return None

    def _pass_on(self, peer: Peer, message: dict[str, Any]) -> bool:
        """Pass a connection on to the supervisor; False if the supervisor accepts no messages at the moment.

        The kernel limits the descriptors in unread messages for each user, to RLIMIT_NOFILE of this process. Most of
        them are in requests of processes that have connected. This method hangs up on these processes if the limit is
        reached, and they try again.
        """
        if self._line.give(message, (peer.fd,)):
            return True
        if self._line.refusal is None or self._line.refusal.errno != errno.ETOOMANYREFS:
            return False
        for other in list(self._table.unfinished.values()):
            if other is not peer:
                self._table.end(other, "a takeover needs its descriptors")
        self._listening.hang_up_all()
        dropped.wait_until_closed()
        return self._line.give(message, (peer.fd,))

    def hand_over(self) -> Handover:
        """Return what the supervisor has to hold, which owns the descriptors from here on.

        Called in a forked child that becomes the supervisor. The caller closes the descriptors that only the sender
        needs, by number.
        """
        facts, ending = self._facts, self._ending
        handover = Handover(ending.idle_timeout_s, facts.started_at, facts.restarts, facts.cluster_id)
        handover.ledger = self._failures.ledger
        handover.token = None if self._tokens is None else self._tokens.for_successor()
        if ending.drain_until is not None:
            handover.draining, handover.drain_until = "its predecessor was draining", ending.drain_until
        handover.regions = list(self._regions)
        for attach_id, peer in self._table.front_ends.items():
            fds = [peer.fd, peer.pidfd, *self._front_ends.descriptors(attach_id)]
            held = handover.held[attach_id] = Held(attach_id, peer.meta, fds)
            held.answered = True
        for attach_id, meta in self._table.ended.items():
            held = Held(attach_id, meta, [-1, -1, *self._front_ends.descriptors(attach_id)])
            held.answered = held.ended = True
            handover.held[attach_id] = held
        handover.waiting = [peer.fd for peer in self._table.peers.values() if peer.awaits_end]
        for peer in self._table.peers.values():
            peer.let_go()
        return handover
