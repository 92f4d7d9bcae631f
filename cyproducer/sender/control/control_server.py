"""Runs the sender's control plane: attaches and detaches front-ends, answers messages, and decides when to end.

It runs between two native loop iterations of the engine and never waits: every socket is non-blocking. A message that a
peer does not read is dropped. An error of a peer ends only the connection of that peer.
"""

import errno
import json
import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from cyproducer.errors import name_for_code
from cyproducer.host import control_messages, limits
from cyproducer.host.process_identity import network_namespace, time_namespace
from cyproducer.host.rendezvous import public_settings
from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import fields
from cyproducer.sender.control.draining import Drain
from cyproducer.sender.control.listening import Listening
from cyproducer.sender.control.message_budget import MessageBudget
from cyproducer.sender.control.peers import (
    Peer,
    RefusedError,
    has_ended,
    parse_attach,
    refusal,
    resource_refusal,
    topic_name,
    wanted_partition,
)
from cyproducer.sender.control.reserve import Reserve
from cyproducer.sender.control.sender_info import DRAIN_S, Facts, describe_front_end
from cyproducer.sender.control.takeover import TakeoverMixin
from cyproducer.sender.handover.handover import Line
from cyproducer.shm.arena_region import LAYOUT_VERSION
from cyproducer.shm.crash import DEBUG, crashpoint
from cyproducer.version import VERSION

__all__ = ["DRAIN_S", "Control", "Facts"]

HANDSHAKE_S = 5.0
DELIVERY_POLL_S = 0.05
#: The shortest time that a sender waits for its first front-end. With an idle timeout of 0 it would end at once.
FIRST_IDLE_S = 1.0
_PENDING_MAX = 256
_ACCEPTS_PER_TURN = 64
_MESSAGES_PER_TURN = 32
_APPS_REMEMBERED = 4096


class Control(TakeoverMixin):
    """Handles everything about front-ends except their records. `finished`: the process may end."""

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
        self.standing_warnings: list[str] = []
        self._drain: Drain | None = None
        self._waiting_pids: set[int] = set()
        self._time_namespace = time_namespace()
        self._network_namespace = network_namespace()
        self._idle_since: float | None = clock()
        self._attached_any = self._shortage_logged = False
        self._peers: dict[int, Peer] = {}
        self._unfinished: dict[int, Peer] = {}  # the peers in their handshake, the oldest first
        self._message_budget = MessageBudget(engine, clock)
        self._pidfds: dict[int, Peer] = {}
        self._front_ends: dict[int, Peer] = {}
        self._ended: dict[int, dict[str, Any]] = {}  # meta of ended front-ends whose batches are still delivered
        self._apps: OrderedDict[int, str] = OrderedDict()
        self._reserve = Reserve()
        self.listening = Listening(engine, listener, self._reserve, log, clock)

    # ------------------------------------------------------------------ loop iterations

    def turn(self, ready: Iterable[int]) -> None:
        """Handle the readable descriptors `ready` and the expired timers; called once in each loop iteration."""
        for fd in ready:
            if fd == self.listening.socket.fileno():
                self._accept()
            elif fd in self._pidfds:
                # Checked again: in this loop iteration the number may have become that of another front-end's pidfd.
                if has_ended(fd):
                    self._end(self._pidfds[fd], "its process ended")
            elif fd in self._peers:
                peer = self._peers[fd]
                try:
                    self._read(peer)
                except MemoryError as error:
                    with self._reserve.released():
                        self._refuse(peer, resource_refusal(error))
                except Exception:
                    self.log.exception("a message from pid %d could not be handled", peer.pid)
                    self._end(peer, "its message could not be handled")
        self._note_cluster()
        self._collect_failures()
        self._detach_violators()
        self._drop_finished_front_ends()
        self._run_timers()

    def timeout_ms(self) -> int:
        """Return for how many milliseconds the engine may run before turn() must be called; -1: no limit."""
        now = self.clock()
        times = [peer.deadline for peer in self._unfinished.values() if peer.deadline is not None]
        times += self._message_budget.until.values()
        again = self.listening.paused_until()
        if again is not None:
            times.append(again)
        if self._drain is not None:
            times.append(self._drain.next_look(now))
        elif not self._front_ends:
            if self.engine.undelivered():
                times.append(now + DELIVERY_POLL_S)
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
        self._message_budget.wake()
        self._reserve.fill()
        now = self.clock()
        for peer in [p for p in self._unfinished.values() if p.deadline is not None and p.deadline <= now]:
            self._end(peer, f"it did not finish its handshake within {HANDSHAKE_S:g} s")
        self.listening.resume(now)
        for notice in self.ledger.warnings(now):
            more = fields(see="cyproducer status", file=self.facts.failures)
            self.log.warning(notice.text, extra={"app": notice.app, **more})
        self._maybe_finish(now)

    def _maybe_finish(self, now: float) -> None:
        if self._drain is not None:
            self.finished = self._drain.is_over(now, list(self._front_ends))
            return
        if self._front_ends or self.engine.undelivered():
            self._idle_since = None
            return
        if self._idle_since is None:
            self._idle_since = now
        if self.idle_timeout_s is not None and now >= self._idle_since + self._idle_limit_s(self.idle_timeout_s):
            self._accept()  # a process that has connected at this moment is not refused
            self.finished = not self._unfinished

    def _idle_limit_s(self, timeout_s: float) -> float:
        return timeout_s if self._attached_any else max(timeout_s, FIRST_IDLE_S)

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
                extra=fields(why=why, front_ends=len(self._front_ends), undelivered=self.engine.undelivered()),
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
        waiting = [peer for peer in self._peers.values() if peer.awaits_end]
        for peer in waiting:
            del self._peers[peer.fd]
            self.engine.unwatch(peer.fd)
        for peer in list(self._peers.values()):
            if peer.attach_id:
                # The sender sends no more batches: the front-end may pass its unsent batches to the next sender.
                peer.send({"op": "ended"})
            self._end(peer, "the sender is ending")
        return waiting

    # ------------------------------------------------------------------ connections

    def _accept_one(self) -> Peer | None:
        connection = self.listening.accept()
        return None if connection is None else Peer(connection, self.clock() + HANDSHAKE_S)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            peer = self._accept_one()
            if peer is None:
                return
            self._add_peer(peer)
            if len(self._unfinished) > _PENDING_MAX:
                # A front-end sends its request at once, so the connection that has been silent longest is closed.
                silent = next(iter(self._unfinished.values()))
                self._end(silent, f"more than {_PENDING_MAX} connections have not finished their handshake")

    def listen_on(self, listener: socket.socket) -> None:
        """Replace the listening socket, and own the new one. Accept what waits in the queue of the former one."""
        while (accepted := self._accept_one()) is not None:
            self._add_peer(accepted)
        self.listening.replace(listener)

    def _pass_on(self, peer: Peer, message: dict[str, Any]) -> bool:
        """Pass a connection on to the supervisor; False if the supervisor accepts no messages at the moment.

        The kernel limits the descriptors in unread messages for each user, to RLIMIT_NOFILE of this process. Most of
        them are in requests of processes that have connected. This method hangs up on these processes if the limit is
        reached, and they try again.
        """
        if self.line.give(message, (peer.fd,)):
            return True
        if self.line.refusal is None or self.line.refusal.errno != errno.ETOOMANYREFS:
            return False
        for other in list(self._unfinished.values()):
            if other is not peer:
                control_messages.drain(other.socket)
                self._end(other, "a takeover needs its descriptors")
        with self._reserve.released():
            self.listening.hang_up_all()
        return self.line.give(message, (peer.fd,))

    def _add_peer(self, peer: Peer) -> None:
        self._peers[peer.fd] = peer
        if peer.deadline is not None:
            self._unfinished[peer.fd] = peer
        self.engine.watch(peer.fd)

    def _finish(self, peer: Peer) -> None:
        """End the time limit of a peer whose handshake is over."""
        peer.deadline = None
        self._unfinished.pop(peer.fd, None)

    def _may_connect(self, peer: Peer) -> bool:
        if self._is_owner(peer) or peer.uid in self.facts.allow_uids:
            return True
        return bool(self.facts.allow_gids) and not peer.groups().isdisjoint(self.facts.allow_gids)

    def _is_owner(self, peer: Peer) -> bool:
        return peer.uid in (0, os.geteuid())

    def _read(self, peer: Peer) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            is_new_topic = peer.attach_id != 0 and self._handle_want(peer)
            try:
                message, fds = self._reserve.receive(peer.socket)
            except BlockingIOError:
                return
            except (OSError, control_messages.HandshakeError) as error:
                if isinstance(error, control_messages.TruncatedError) and not peer.attach_id:
                    self._refuse(peer, resource_refusal(error))
                    return
                self._end(peer, f"its message is invalid: {error}")
                return
            if message is None:
                self._end(peer, "it closed its producer" if peer.orderly else "it hung up")
                return
            try:
                self._on_message(peer, message, fds)
            finally:
                control_messages.discard(fds)
            if peer.fd not in self._peers or not (is_new_topic or self._message_budget.may_go_on(peer.fd)):
                return

    def _on_message(self, peer: Peer, message: dict[str, Any], fds: list[int]) -> None:
        """Handle one message. Code that takes over one of `fds` removes it from the list."""
        op = message.get("op")
        if not self._may_connect(peer):
            # Only after its message was read: closing a socket with unread data would discard the answer.
            extra = fields(uid=peer.uid, gid=peer.gid, peer=peer.pid)
            self.log.warning("a process was refused: --allow-uid and --allow-gid do not include it", extra=extra)
            peer.send(refusal("REFUSED", f"uid {peer.uid} may not use this sender (see --allow-uid, --allow-gid)"))
            self._end(peer, "refused")
        elif op == "status":
            self._answer_status(peer)
        elif op == "stop":
            self._answer_stop(peer)
        elif op == "attach" and not peer.attach_id:
            self._on_attach(peer, message, fds)
        elif op == "replace":
            self._on_replace(peer, message)
        elif op == "want" and peer.attach_id:
            pass  # handled before it was taken from the socket
        elif op == "close" and peer.attach_id:
            peer.orderly = True
        else:
            peer.send(refusal("MALFORMED", f"unexpected message: {str(op)[:40]!r}"))
            self._end(peer, "it sent an unexpected message")

    def _handle_want(self, peer: Peer) -> bool:
        """Handle a "want" before it is taken from the socket: a successor finds it there or in the state region.

        Return whether it is the front-end's first request for this topic; the number of these is limited.
        """
        message = control_messages.peek(peer.socket)
        try:
            name = topic_name(message) if message is not None and message.get("op") == "want" else None
        except ValueError as error:
            peer.send({"op": "warning", "message": str(error)})  # cyproducer's own front-ends check the name before
            return False
        if message is None or name is None:
            return False
        is_new_topic = False
        try:
            is_new_topic = peer.note_want(name)
            self.engine.want_topic(peer.attach_id, name, wanted_partition(message))
        except (OverflowError, ValueError) as error:
            extra = {"app": peer.app}
            self.log.warning("cannot request metadata of topic %s for %s: %s", name, peer.app, error, extra=extra)
        return is_new_topic

    # ------------------------------------------------------------------ front-ends

    def _refuse_during_drain(self, peer: Peer) -> None:
        """Refuse an attach during the drain. The hang-up at the sender's end notifies the process to try again."""
        self._finish(peer)
        peer.awaits_retry = True
        if not peer.send(refusal("DRAINING", "the sender is ending")):
            self._end(peer, "it does not read the answer")
        elif peer.pid not in self._waiting_pids:
            self._waiting_pids.add(peer.pid)
            self.log.info("a process waits for the end of this sender", extra=fields(peer=peer.pid, uid=peer.uid))

    def _on_attach(self, peer: Peer, message: dict[str, Any], fds: list[int]) -> None:
        if self._drain is not None:
            self._refuse_during_drain(peer)
            return
        try:
            if message.get("layout") != LAYOUT_VERSION:
                raise RefusedError(
                    "LAYOUT",
                    f"the sender uses memory layout {LAYOUT_VERSION}, this process has "
                    f"{str(message.get('layout'))[:20]}; use the same version of cyproducer on both sides",
                )
            if message.get("time_namespace", self._time_namespace) != self._time_namespace:
                text = "the sender is in another time namespace; start one in the time namespace of this process"
                raise RefusedError("REFUSED", text)
            request = parse_attach(message, fds, peer.pid)
            request.check_agreement(self.settings)
            request.check_network(message.get("network_namespace", self._network_namespace), self._network_namespace)
            peer.take(request, self._front_ends.values())
            fds.clear()
            if DEBUG:
                crashpoint("attach.request-read")
            attach_id, outcomes, wake = self._engine_attach(request)
            peer.meta = request.meta(peer.pid)
            self._register_for_handover(peer, attach_id, (outcomes, wake))
            if DEBUG:
                crashpoint("attach.in-handover")
        except RefusedError as error:
            self._refuse(peer, error)
            return
        peer.attach_id, peer.app = attach_id, request.app
        self._finish(peer)
        peer.pid = peer.pid or request.pid
        self._front_ends[attach_id] = peer
        self._attached_any = True
        self._remember_app(attach_id, request.app)
        if not self._answer_attach(peer, outcomes, wake):
            return
        self._pidfds[peer.pidfd] = peer
        self.engine.watch(peer.pidfd)
        self._ask_for_idle_timeout(request.settings)
        self.log.info("attached", extra=fields(attach_id=attach_id, peer=peer.pid, uid=peer.uid, app=peer.app))
        for text in self.standing_warnings:
            peer.send({"op": "warning", "message": text})

    def _refuse(self, peer: Peer, error: RefusedError) -> None:
        """Refuse a peer that is not attached or cannot be. It gets the answer before the warning that is logged."""
        peer.send(error.answer(self.facts.replaceable))
        # Front-ends receive every warning. If each new process is refused for lack of resources, one warning is enough.
        level = logging.INFO if error.shortage and self._shortage_logged else logging.WARNING
        self._shortage_logged |= bool(error.shortage)
        self.log.log(level, "an attach was refused", extra=fields(peer=peer.pid, uid=peer.uid, why=error))
        self._end(peer, "refused")

    def _register_for_handover(self, peer: Peer, attach_id: int, opened: tuple[int, int]) -> None:
        """Register a front-end with the supervisor, before it gets its answer: a successor has to know of it."""
        message = {"op": "hold", "attach_id": attach_id, "meta": peer.meta}
        if self.line.give(message, (peer.fd, peer.pidfd, *self.engine.descriptors(attach_id))):
            return
        self.engine.detach(attach_id)
        for fd in opened:
            os.close(fd)
        if self.line.refusal is not None and limits.shortage_of(self.line.refusal):
            raise resource_refusal(self.line.refusal)
        raise RefusedError("REFUSED", "the sender's supervisor accepts no messages at the moment; try again")

    def _answer_attach(self, peer: Peer, outcomes: int, wake: int) -> bool:
        """Send the answer and close the descriptors. False: the front-end cannot receive it and is detached."""
        try:
            snapshot = self.engine.snapshot_fd()
        except OSError as error:
            os.close(outcomes)
            os.close(wake)
            self._refuse(peer, resource_refusal(error))
            return False
        answer = {
            "ok": True,
            "attach_id": peer.attach_id,
            "sender_pid": os.getpid(),
            "max_request_size": self.settings["max_request_size"],
        }
        if DEBUG:
            crashpoint("attach.before-answer")
        taken = peer.send(answer, (outcomes, snapshot, wake))
        if DEBUG:
            crashpoint("attach.answered")
        for fd in (outcomes, snapshot, wake):
            os.close(fd)
        if taken:
            self.line.tell({"op": "answered", "attach_id": peer.attach_id})
        else:
            self._end(peer, "it does not read the answer")
        return taken

    def _engine_attach(self, request: Any) -> tuple[int, int, int]:
        """Return (attach id, outcomes, wake). The engine owns the request's arena and socket even if it refuses."""
        try:
            attached: tuple[int, int, int] = self.engine.attach(
                request.arena_fd, request.slots, request.settings, request.wake_fd
            )
            return attached
        except ValueError as error:
            raise RefusedError("MALFORMED", str(error)) from None
        except PermissionError:
            raise RefusedError("MALFORMED", "the arena's memfd does not allow a writable mapping") from None
        except (OSError, MemoryError) as error:
            raise resource_refusal(error) from None

    def _ask_for_idle_timeout(self, settings: dict[str, Any]) -> None:
        asked = settings.get("sender_idle_timeout_ms")
        if self.idle_timeout_s is None or not isinstance(asked, int) or asked / 1000 <= self.idle_timeout_s:
            return
        self.idle_timeout_s = asked / 1000
        self.line.tell({"op": "idle", "timeout_s": self.idle_timeout_s})

    def _remember_app(self, attach_id: int, app: str) -> None:
        """Keep the application's name longer than the front-end lives, since its records may fail after its end."""
        self._apps[attach_id] = app
        while len(self._apps) > max(_APPS_REMEMBERED, 2 * len(self._front_ends)):
            oldest = next((known for known in self._apps if known not in self._front_ends), None)
            if oldest is None:
                return
            del self._apps[oldest]

    def _end(self, peer: Peer, why: str) -> None:
        if self._peers.pop(peer.fd, None) is None:
            return
        self._finish(peer)
        self._message_budget.drop(peer.fd)
        self.engine.unwatch(peer.fd)
        if self._pidfds.pop(peer.pidfd, None) is not None:
            self.engine.unwatch(peer.pidfd)
        if peer.attach_id:
            if DEBUG:
                crashpoint("reclaim.noticed")
            del self._front_ends[peer.attach_id]
            self._ended[peer.attach_id] = peer.meta
            self.line.tell({"op": "ended", "attach_id": peer.attach_id})
            self.engine.detach(peer.attach_id, peer.orderly or has_ended(peer.pidfd))
            peer.hang_up()
            if DEBUG:
                crashpoint("reclaim.detached")
            self.log.info("detached", extra=fields(attach_id=peer.attach_id, peer=peer.pid, app=peer.app, why=why))
        elif why != "it hung up" and not peer.awaits_retry:
            self.log.info("a connection was closed", extra=fields(peer=peer.pid, why=why))
        peer.close()
        self.listening.note_closed_connection()

    # ------------------------------------------------------------------ failures and warnings

    def _detach_violators(self) -> None:
        for attach_id in self.engine.take_violators():
            peer = self._front_ends.get(attach_id)
            if peer is not None:
                text = "the sender detached this process, whose shared memory was overwritten; see the sender's log"
                peer.send({"op": "detached", "message": text})
                self._end(peer, "its shared memory violates the protocol")

    def _drop_finished_front_ends(self) -> None:
        for attach_id in self.engine.take_gone():
            self._ended.pop(attach_id, None)
            self.line.tell({"op": "drop", "attach_id": attach_id})
        self.line.flush()

    def _note_cluster(self) -> None:
        """Keep the last known cluster id: in an outage the engine starts from the bootstrap servers, without it."""
        found = self.engine.cluster_id()
        if found is not None and found != self.cluster_id:
            self.cluster_id = found
            self.line.tell({"op": "cluster", "id": found})

    def _collect_failures(self) -> None:
        rows = [
            (self._apps.get(attach_id, "?"), topic, name_for_code(code), records, time.time())
            for attach_id, topic, code, records in self.engine.take_failures()
        ]
        if rows:
            self._count_failures(rows)

    def _count_failures(self, rows: list[tuple[str, str, str, int, float]]) -> None:
        for row in rows:
            self.ledger.add(*row)
        self.line.tell_failures(rows)

    def tell(self, text: str, app: str | None = None) -> None:
        """Send a warning to the attached front-ends of the application, or to all if it has none."""
        peers = [peer for peer in self._front_ends.values() if app is not None and peer.app == app]
        for peer in peers or list(self._front_ends.values()):
            peer.send({"op": "warning", "message": text[:4000]})

    # ------------------------------------------------------------------ requests

    def _answer_stop(self, peer: Peer) -> None:
        if not self._is_owner(peer):
            peer.send(refusal("REFUSED", f"uid {peer.uid} may not stop this sender, only its owner and root may"))
            return
        peer.awaits_end = True
        self._finish(peer)
        self.line.give({"op": "waiting"}, (peer.fd,))
        peer.send({"ok": True})
        self.drain(f"stop request from pid {peer.pid}")

    def _answer_status(self, peer: Peer) -> None:
        with self._reserve.released():
            peer.send_file("cyproducer-status", json.dumps(self.status()).encode())

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
                for attach_id, peer in sorted(self._front_ends.items())
            ],
            "connections": stats["connections"],
            "totals": stats["totals"],
            "ledger": self.ledger.rows(),
            "last_error": stats["last_error"],
        }
