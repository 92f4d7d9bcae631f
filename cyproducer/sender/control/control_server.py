"""Runs the sender's control plane: attaches and detaches front-ends, answers messages, and decides when to end.

It runs between two native loop iterations of the engine and never waits: every socket is non-blocking. A message that a
peer does not read is dropped. An error of a peer ends only the connection of that peer.
"""

import json
import logging
import math
import os
import socket
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from cyproducer.errors import name_for_code
from cyproducer.host import control_messages
from cyproducer.host.rendezvous import public_settings
from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import fields
from cyproducer.sender.control.attaching import Attaching
from cyproducer.sender.control.draining import Drain
from cyproducer.sender.control.listening import Listening
from cyproducer.sender.control.peer_table import HUNG_UP, PeerTable
from cyproducer.sender.control.peers import (
    STRANGERS,
    Peer,
    refusal,
    resource_refusal,
    topic_name,
    wanted_partition,
)
from cyproducer.sender.control.reserve import Reserve
from cyproducer.sender.control.sender_info import DRAIN_S, Facts, describe_front_end, describe_transaction
from cyproducer.sender.control.takeover import Takeover
from cyproducer.sender.control.token_suppliers import TokenSuppliers
from cyproducer.sender.control.transaction_commands import TransactionCommands
from cyproducer.sender.control.unread import POLL_S
from cyproducer.sender.handover.handover import Handover, Line
from cyproducer.sender.system import dropped
from cyproducer.version import VERSION

__all__ = ["DRAIN_S", "Control", "Facts"]

HANDSHAKE_S = 5.0
DELIVERY_POLL_S = 0.05
#: Pause between looks at the last push of metrics, whose response also wakes the engine.
LAST_PUSH_POLL_S = 0.02
#: The shortest time that a sender waits for its first front-end. With an idle timeout of 0 it would end at once.
FIRST_IDLE_S = 1.0
_ACCEPTS_PER_TURN = 64
_MESSAGES_PER_TURN = 32


class Control:
    """Handles everything about front-ends except their records.

    finished   the process may end
    ledger     the failures of the front-ends' records
    """

    def __init__(
        self,
        engine: Any,
        listener: socket.socket,
        facts: Facts,
        log: logging.Logger,
        clock: Callable[[], float] = time.monotonic,
        line: Line | None = None,
    ) -> None:
        self.engine = engine
        self.line = line if line is not None else Line()
        self.facts = facts
        self.log = log
        self.clock = clock
        self.ledger = Ledger()
        self.settings = public_settings(facts.settings)
        self.idle_timeout_s = facts.idle_timeout_s
        self.finished = False
        self.cluster_id = facts.cluster_id
        self._began_at = time.time()
        self._drain: Drain | None = None
        self._idle_since: float | None = clock()
        self._pushes_last = False  # the sender is idle for long enough, and pushes its metrics for the last time
        self._reserve = Reserve()
        self.listening = Listening(engine, listener, self._reserve, log, clock)
        self.table = PeerTable(engine, self.line, log, clock, self.listening.note_closed_connection)
        self.tokens = TokenSuppliers(engine, self.line, self.table, log, clock)
        self.attaching = Attaching(engine, self.line, self.table, facts, self.settings, self._extend_idle_timeout)
        self.attaching.needs_token = self.tokens.needed and facts.private
        engine.note_violation = self._note_violation
        self._transaction_commands = TransactionCommands(engine, self.table)
        self.takeover = Takeover(
            engine, self.line, self.table, self.attaching, self.listening, facts, log, self._count_lost
        )

    # ------------------------------------------------------------------ loop iterations

    def turn(self, ready: Iterable[int]) -> None:
        """Handle the readable descriptors `ready` and the expired timers; called once in each loop iteration."""
        for fd in ready:
            if fd == self.listening.socket.fileno():
                self._accept()
            elif not self.table.end_if_process_ended(fd) and fd in self.table.peers:
                self._handle(self.table.peers[fd])
        self._note_cluster()
        self._collect_failures()
        self._detach_violators()
        self.table.drop_finished()
        self.table.drop_topics()
        self.line.flush()
        self._run_timers()

    def timeout_ms(self) -> int:
        """Return for how many milliseconds the engine may run before turn() must be called; -1: no limit."""
        now = self.clock()
        times = [peer.deadline for peer in self.table.unfinished.values() if peer.deadline is not None]
        times += self.table.budget.until.values()
        if self.table.unread.keeps_any:
            times.append(now + POLL_S)
        if self.tokens.next_time() < math.inf:
            times.append(self.tokens.next_time())
        again = self.listening.paused_until()
        if again is not None:
            times.append(again)
        if self._drain is not None:
            times.append(self._drain.next_look(now))
        elif not self.table.front_ends:
            if self._is_ending_anything():
                times.append(now + DELIVERY_POLL_S)
            elif self._pushes_last:
                times.append(now + LAST_PUSH_POLL_S)
            elif self._idle_since is not None and self.idle_timeout_s is not None:
                times.append(self._idle_since + self._idle_limit_s(self.idle_timeout_s))
        notice = self.ledger.next_warning_in(now)
        if notice is not None:
            times.append(now + notice)
        if not times:
            return -1
        # Rounded up: a call a moment too early would do nothing and need another call.
        return max(0, int((min(times) - now) * 1000) + 1)

    def _run_timers(self) -> None:
        self.table.budget.wake()
        self.table.unread.look()
        self._reserve.fill()
        now = self.clock()
        for peer in [p for p in self.table.unfinished.values() if p.deadline is not None and p.deadline <= now]:
            self.table.end(peer, f"it did not finish its handshake within {HANDSHAKE_S:g} s")
        self.tokens.run()
        self.listening.resume(now)
        for notice in self.ledger.warnings(now):
            more = fields(see="cyproducer status", file=self.facts.failures)
            self.log.warning(notice.text, extra={"app": notice.app, **more})
        self._maybe_finish(now)

    def _maybe_finish(self, now: float) -> None:
        if self._drain is not None:
            # The last push comes first, since released front-ends wait for the end of this sender.
            if self.engine.end_metrics_push() or now >= self._drain.deadline:
                self.finished = self._drain.is_over(now, list(self.table.front_ends))
            return
        if self.table.front_ends or self._is_ending_anything():
            if self._idle_since is not None:
                self._idle_since = None
                self._pushes_last = False
                self.engine.resume_metrics_push()
            return
        if self._idle_since is None:
            self._idle_since = now
        if self.idle_timeout_s is not None and now >= self._idle_since + self._idle_limit_s(self.idle_timeout_s):
            self._pushes_last = not self.engine.end_metrics_push()
            self._accept()  # a process that has connected at this moment is not refused
            self.finished = not self.table.unfinished and not self._pushes_last

    def _is_ending_anything(self) -> bool:
        """Return whether front-ends that have ended have undelivered batches or a transaction that is not ended."""
        return bool(self.engine.undelivered() or any(self.engine.transactional_front_ends().values()))

    def _idle_limit_s(self, timeout_s: float) -> float:
        return timeout_s if self.attaching.attached_any else max(timeout_s, FIRST_IDLE_S)

    @property
    def draining(self) -> bool:
        """Whether a drain has begun."""
        return self._drain is not None

    def drain(self, why: str, until: float | None = None) -> None:
        """Refuse new attaches from here on, and end when everything is delivered, or at the deadline.

        Attached front-ends then find another sender. What they send in the meantime is delivered, or stays with them.
        """
        if self._drain is None:
            now = self.clock()
            deadline = now + self.facts.drain_s if until is None else until
            self._drain = Drain(self.engine, self.line, self.log, now, deadline)
            self.line.tell({"op": "draining", "why": why, "until": deadline})
            self.log.info(
                "draining",
                extra=fields(why=why, front_ends=len(self.table.front_ends), undelivered=self.engine.undelivered()),
            )

    def close(self) -> list[Peer]:
        """Hang up on every peer. A process that is still in the listener's queue gets the answer to try again.

        Return the open connections of processes that wait for the sender's end: the hang-up notifies them.
        """
        while (accepted := self._accept_one()) is not None:
            accepted.send({"ok": False, "error": "DRAINING", "message": "the sender is ending"})
            accepted.close()
        self.listening.close()
        self._reserve.close()
        waiting = [peer for peer in self.table.peers.values() if peer.awaits_end]
        for peer in waiting:
            del self.table.peers[peer.fd]
            self.engine.unwatch(peer.fd)
        for peer in list(self.table.peers.values()):
            if peer.attach_id:
                # The sender sends no more batches: the front-end may pass its unsent batches to the next sender.
                peer.send({"op": "ended"})
            self.table.end(peer, "the sender is ending")
        self.table.unread.close()
        dropped.settle()  # an answer is lost if its connection ends with an unread message
        return waiting

    # ------------------------------------------------------------------ connections

    def _accept_one(self) -> Peer | None:
        connection = self.listening.accept()
        if connection is None:
            return None
        peer = Peer(connection, self.clock() + HANDSHAKE_S)
        if not self._may_connect(peer):
            peer.account = STRANGERS
        return peer

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            peer = self._accept_one()
            if peer is None:
                return
            surplus = self.table.add(peer)
            if surplus is not None:
                self._handle(surplus)  # its request may have arrived: if its user's budget allows, it gets the answer
                if self.table.quotas.counts(surplus):
                    self.table.end(surplus, "its user has too many connections")

    def listen_on(self, listener: socket.socket) -> None:
        """Replace the listening socket, and own the new one. Accept what waits in the queue of the former one."""
        while (accepted := self._accept_one()) is not None:
            self.table.add(accepted)
        self.listening.replace(listener)

    def _may_connect(self, peer: Peer) -> bool:
        if peer.is_owner or peer.uid in self.facts.allow_uids:
            return True
        return bool(self.facts.allow_gids) and not peer.groups().isdisjoint(self.facts.allow_gids)

    def _handle(self, peer: Peer) -> None:
        """Read from a peer. An error ends only its connection."""
        try:
            self._read(peer)
        except MemoryError as error:
            with self._reserve.released():
                self.attaching.refuse(peer, resource_refusal(error))
        except Exception:
            self.log.exception("a message from pid %d could not be handled", peer.pid)
            self.table.end(peer, "its message could not be handled")

    def _refuse_stranger(self, peer: Peer) -> None:
        """Answer a process that may not use this sender. Its message is dropped unread, see dropped.py."""
        try:
            has_asked = peer.has_message()
        except BlockingIOError:
            return
        except OSError:
            has_asked = False
        if not has_asked:
            self.table.end(peer, HUNG_UP)
            return
        text = "a process was refused: --allow-uid and --allow-gid do not include it"
        self.table.refusals.note(peer, logging.WARNING, text, gid=peer.gid)
        peer.send(refusal("REFUSED", f"uid {peer.uid} may not use this sender (see --allow-uid, --allow-gid)"))
        self.table.end(peer, "refused")

    def _read(self, peer: Peer) -> None:
        if peer.account == STRANGERS:
            self._refuse_stranger(peer)
            return
        for _ in range(_MESSAGES_PER_TURN):
            if not self.table.unread.may_ask(peer):
                self.table.budget.pause(peer.fd)
                return
            if not self.table.budget.may_begin(peer.fd, peer.account):
                return
            try:
                # A message that arrives after this look is left for the next one: it may be a "want".
                waiting = control_messages.peek(peer.socket) if peer.attach_id else None
            except BlockingIOError:
                return
            is_new_topic = waiting is not None and self._handle_want(peer, waiting)
            try:
                message, fds, size = self._reserve.receive(peer.socket)
            except BlockingIOError:
                return
            except (OSError, control_messages.HandshakeError) as error:
                if isinstance(error, control_messages.TruncatedError) and not peer.attach_id:
                    self.attaching.refuse(peer, resource_refusal(error))
                    return
                self.table.end(peer, f"its message is invalid: {error}")
                return
            if message is None:
                self.table.end(peer, "it closed its producer" if peer.orderly else HUNG_UP)
                return
            try:
                self._on_message(peer, message, fds)
            finally:
                control_messages.discard(fds)
            if peer.fd not in self.table.peers:
                return
            size, peer.cost_bytes = size + peer.cost_bytes, 0
            if not is_new_topic and not self.table.budget.may_go_on(peer.fd, peer.account, size):
                return

    def _on_message(self, peer: Peer, message: dict[str, Any], fds: list[int]) -> None:
        """Handle one message. Code that takes over one of `fds` removes it from the list."""
        op = message.get("op")
        if op == "status":
            self._answer_status(peer)
        elif op == "client_instance_id":
            peer.send({"ok": True, "id": self.engine.client_instance_id(), "pushes": self.engine.pushes_metrics()})
        elif op == "stop":
            self._answer_stop(peer)
        elif op == "transaction" and not peer.attach_id:
            self._transaction_commands.do(peer, message)
        elif op == "transactions" and not peer.attach_id:
            self._ask_about_transactions(peer, message)
        elif op == "attach" and not peer.attach_id and self._drain is not None:
            self.attaching.refuse_during_drain(peer)
        elif op == "attach" and not peer.attach_id:
            self.attaching.attach(peer, message, fds)
        elif op == "token" and not peer.attach_id:
            self.tokens.take(peer, message)
        elif op == "replace":
            self.takeover.answer(peer, message, self.settings, self._drain is not None)
        elif op == "want" and peer.attach_id:
            pass  # handled before it was taken from the socket
        elif op == "close" and peer.attach_id:
            peer.orderly = True
        else:
            peer.send(refusal("MALFORMED", f"unexpected message: {str(op)[:40]!r}"))
            self.table.end(peer, "it sent an unexpected message")

    def _handle_want(self, peer: Peer, message: dict[str, Any]) -> bool:
        """Handle a "want" before it is taken from the socket: a successor finds it there or in the state region.

        Return whether it is the front-end's first request for this topic; the number of these is limited.
        """
        try:
            name = topic_name(message) if message.get("op") == "want" else None
        except ValueError as error:
            peer.send({"op": "warning", "message": str(error)})  # cyproducer's own front-ends check the name before
            return False
        if name is None:
            return False
        is_new_topic = False
        try:
            if name not in peer.wanted:
                self.table.quotas.check_topic(peer, self.table.front_ends.values())
            is_new_topic = peer.note_want(name)
            self.engine.want_topic(peer.attach_id, name, wanted_partition(message))
        except (OverflowError, ValueError) as error:
            peer.send({"op": "refused", "topic": name, "message": str(error)})
            if not peer.refusal_logged:
                peer.refusal_logged = True
                text = "cannot request metadata of a topic"
                self.table.refusals.note(peer, logging.WARNING, text, app=peer.app, topic=name, why=error)
        return is_new_topic

    # ------------------------------------------------------------------ handover

    def take_over(self, handover: Handover, refused: Collection[int]) -> None:
        """Take over the front-ends of a sender that has ended, and its drain.

        The engine has taken the front-ends over already, except those with an attach id in `refused`.
        """
        self.ledger = handover.ledger
        tokens = self.engine.supplied_tokens()
        if tokens is not None and handover.token is not None:
            tokens.restore(handover.token)
        handover.token = None
        self.takeover.restore(handover, refused)
        if handover.draining:
            self.drain(handover.draining, handover.drain_until)
        elif self.engine.released_before():
            # A sender was replaced while it was ending. The front-ends that it has released wait for its end.
            self.drain("its predecessor was ending")

    def handover(self) -> Handover:
        """Return what the supervisor has to hold and owns from here on. Called in a forked child that becomes it.

        Detach the Python objects from their descriptors. The caller closes the descriptors that only the sender
        needs, by number.
        """
        handover = Handover(self.idle_timeout_s, self.facts.started_at, self.facts.restarts, self.cluster_id)
        handover.ledger = self.ledger
        if self._drain is not None:
            handover.draining, handover.drain_until = "its predecessor was draining", self._drain.deadline
        self.takeover.fill(handover)
        tokens = self.engine.supplied_tokens()
        handover.token = None if tokens is None else tokens.for_successor()
        return handover

    def _extend_idle_timeout(self, asked_ms: int) -> None:
        """Keep the longest idle timeout that a front-end has requested. A sender without one keeps none."""
        if self.idle_timeout_s is None or asked_ms / 1000 <= self.idle_timeout_s:
            return
        self.idle_timeout_s = asked_ms / 1000
        self.line.tell({"op": "idle", "timeout_s": self.idle_timeout_s})

    # ------------------------------------------------------------------ failures and warnings

    def _note_violation(self, attach_id: int, why: str) -> None:
        peer = self.table.front_ends.get(attach_id)
        if peer is not None:
            text = "a front-end broke the protocol and is detached"
            self.table.refusals.note(peer, logging.WARNING, text, attach_id=attach_id, app=peer.app, why=why)

    def _detach_violators(self) -> None:
        for attach_id in self.engine.take_violators():
            peer = self.table.front_ends.get(attach_id)
            if peer is not None:
                text = "the sender detached this process, whose shared memory was overwritten; see the sender's log"
                peer.send({"op": "detached", "message": text})
                self.table.end(peer, "its shared memory violates the protocol")

    def _note_cluster(self) -> None:
        """Keep the last known cluster id: in an outage the engine starts from the bootstrap servers, without it."""
        found = self.engine.cluster_id()
        if found is not None and found != self.cluster_id:
            self.cluster_id = found
            self.line.tell({"op": "cluster", "id": found})

    def _collect_failures(self) -> None:
        rows = [
            (self.table.app_of(attach_id), topic, name_for_code(code), records, time.time())
            for attach_id, topic, code, records in self.engine.take_failures()
        ]
        if rows:
            self._count_failures(rows)

    def _count_failures(self, rows: list[tuple[str, str, str, int, float]]) -> None:
        for row in rows:
            self.ledger.add(*row)
        self.line.tell_failures(rows)

    def _count_lost(self, app: str, records: int) -> None:
        self._count_failures([(app, "(all)", "QUARANTINED", records, time.time())])

    def tell(self, text: str, app: str | None = None) -> None:
        """Send a warning to the attached front-ends of the application, or to all if it has none."""
        self.table.tell(text, app)

    # ------------------------------------------------------------------ requests

    def _answer_stop(self, peer: Peer) -> None:
        if not peer.is_owner:
            peer.send(refusal("REFUSED", f"uid {peer.uid} may not stop this sender, only its owner and root may"))
            return
        peer.awaits_end = True
        self.table.finish(peer)
        self.line.give({"op": "waiting"}, (peer.fd,))
        peer.send({"ok": True})
        self.drain(f"stop request from pid {peer.pid}")

    def _ask_about_transactions(self, peer: Peer, question: dict[str, Any]) -> None:
        """Answer once the brokers have answered. The connection has no time limit until then."""
        if question.get("do") == "abort" and not peer.is_owner:
            text = f"uid {peer.uid} may not abort transactions with this sender, only its owner and root may"
            peer.send(refusal("REFUSED", text))
            return

        def answer(result: dict[str, Any]) -> None:
            if self.table.peers.get(peer.fd) is not peer:
                return  # it has hung up
            try:
                with self._reserve.released():
                    peer.send_file("cyproducer-transactions", json.dumps(result).encode())
                    self.table.unread.note(peer)
            except (OSError, MemoryError) as error:
                text = "a process gets no answer about transactions"
                self.table.refusals.note(peer, logging.WARNING, text, why=error or "no memory")
                self.table.end(peer, "its answer could not be sent")

        try:
            self.engine.ask_about_transactions(question, answer)
        except ValueError as error:
            peer.send(refusal("MALFORMED", str(error)))
        else:
            self.table.finish(peer)

    def _answer_status(self, peer: Peer) -> None:
        with self._reserve.released():
            peer.send_file("cyproducer-status", json.dumps(self.status()).encode())
            self.table.unread.note(peer)

    def status(self) -> dict[str, Any]:
        """Return the status as `cyproducer status --json` shows it."""
        self._note_cluster()
        self._collect_failures()
        stats = self.engine.stats()
        return {
            "socket": self.facts.socket,
            "version": VERSION,
            "log": self.facts.log,
            "cluster_id": self.cluster_id,
            "bootstrap_servers": stats["bootstrap_servers"],
            "sender_pid": os.getpid(),
            "supervisor_pid": self.line.supervisor_pid,
            "started_at": self.facts.started_at,
            "restarts": self.facts.restarts,
            "totals_since": self._began_at,
            "front_ends": [
                describe_front_end(attach_id, peer, stats["front_ends"].get(attach_id, {}))
                for attach_id, peer in sorted(self.table.front_ends.items())
            ],
            "transactions": [
                describe_transaction(row, self.table.app_of(row["attach_id"]))
                for row in self.engine.describe_transactions()
            ],
            "connections": stats["connections"],
            "totals": stats["totals"],
            "counts": stats["counts"],
            "ledger": self.ledger.rows(),
            "last_error": stats["last_error"],
        }
