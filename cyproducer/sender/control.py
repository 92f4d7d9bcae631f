"""The sender's control plane: who attaches, who has ended, what is asked, and when it is time to go.

It runs between two native turns of the engine and never waits for anybody: every socket here is non-blocking,
what a peer does not take is dropped, and what a peer gets wrong costs it its own connection only.
"""

import errno
import json
import logging
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cyproducer.errors import name_for_code
from cyproducer.observe.ledger import Ledger
from cyproducer.observe.logfmt import fields
from cyproducer.sender import replace
from cyproducer.sender.attached import Peer, RefusedError, has_ended, parse_attach, topic_name
from cyproducer.sender.custody import Line
from cyproducer.sender.succession import Succession
from cyproducer.shm import handshake
from cyproducer.shm.arena import LAYOUT_VERSION
from cyproducer.shm.crash import DEBUG, crashpoint
from cyproducer.shm.rendezvous import public_settings
from cyproducer.shm.whereabouts import time_namespace

__all__ = ["DRAIN_S", "Control", "Facts"]

HANDSHAKE_S = 5.0
#: Less than the 30 s that Kubernetes grants between SIGTERM and SIGKILL.
DRAIN_S = 25.0
ACCEPT_PAUSE_S = 0.2
DELIVERY_POLL_S = 0.05
_PENDING_MAX = 256
_ACCEPTS_PER_TURN = 64
_MESSAGES_PER_TURN = 32
_APPS_REMEMBERED = 4096


@dataclass
class Facts:
    """What a sender is, as its control plane needs it. `idle_timeout_s` None: it stays until it is told."""

    socket: str
    settings: Mapping[str, Any]
    idle_timeout_s: float | None
    allow_uids: Collection[int] = ()
    allow_gids: Collection[int] = ()
    drain_s: float = DRAIN_S
    started_at: float = field(default_factory=time.time)
    restarts: int = 0


class Control(Succession):
    """Everything about front-ends but their records. `finished` says that the process may end."""

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
        self.listener = listener
        self.facts = facts
        self.log = log
        self.clock = clock
        self.ledger = Ledger()
        self.settings = public_settings(facts.settings)
        self.idle_timeout_s = facts.idle_timeout_s
        self.draining = False
        self.finished = False
        self.standing_warnings: list[str] = []
        self._drain_deadline = 0.0
        self._time_namespace = time_namespace()
        self._idle_since: float | None = clock()
        self._listening_again: float | None = None
        self._peers: dict[int, Peer] = {}
        self._pidfds: dict[int, Peer] = {}
        self._front_ends: dict[int, Peer] = {}
        self._ended: dict[int, dict[str, Any]] = {}  # what their attach said; their batches are still delivered
        self._apps: OrderedDict[int, str] = OrderedDict()
        engine.watch(listener.fileno())

    # ------------------------------------------------------------------ turns

    def turn(self, ready: Iterable[int]) -> None:
        """Does what the readable descriptors and the clock ask for."""
        for fd in ready:
            if fd == self.listener.fileno():
                self._accept()
            elif fd in self._pidfds:
                # Asked again: in this very turn the number may have been given to another front-end.
                if has_ended(fd):
                    self._end(self._pidfds[fd], "its process ended")
            elif fd in self._peers:
                peer = self._peers[fd]
                try:
                    self._read(peer)
                except Exception:
                    self.log.exception("a message of pid %d could not be handled", peer.pid)
                    self._end(peer, "its message could not be handled")
        self._collect_failures()
        self._let_go_of_condemned()
        self._tell_of_the_gone()
        self._on_time()

    def timeout_ms(self) -> int:
        """How long the engine may run before the clock asks for a turn; -1: for ever."""
        now = self.clock()
        times = [peer.deadline for peer in self._peers.values() if peer.deadline is not None]
        if self._listening_again is not None:
            times.append(self._listening_again)
        if self.draining:
            times.append(self._drain_deadline)
        if not self._front_ends:
            if self.engine.undelivered():
                times.append(now + DELIVERY_POLL_S)
            elif self._idle_since is not None and self.idle_timeout_s is not None:
                times.append(self._idle_since + self.idle_timeout_s)
        notice = self.ledger.next_warning_in(now)
        if notice is not None:
            times.append(now + notice)
        if not times:
            return -1
        # Rounded up: a turn that comes a moment early would only ask for another one.
        return max(0, int((min(times) - now) * 1000) + 1)

    def _on_time(self) -> None:
        now = self.clock()
        for peer in [p for p in self._peers.values() if p.deadline is not None and p.deadline <= now]:
            self._end(peer, f"it did not finish its handshake within {HANDSHAKE_S:g} s")
        if self._listening_again is not None and now >= self._listening_again:
            self._listening_again = None
            self.engine.watch(self.listener.fileno())
        for notice in self.ledger.warnings(now):
            self.log.warning(notice.text, extra={"app": notice.app})
        self._maybe_finish(now)

    def _maybe_finish(self, now: float) -> None:
        if self._front_ends or self.engine.undelivered():
            self._idle_since = None
            if self.draining and now >= self._drain_deadline:
                self.log.warning(
                    "the drain's time is over",
                    extra=fields(front_ends=len(self._front_ends), undelivered=self.engine.undelivered()),
                )
                self.finished = True
            return
        if self._idle_since is None:
            self._idle_since = now
        if self.draining:
            self.finished = True
        elif self.idle_timeout_s is not None and now >= self._idle_since + self.idle_timeout_s:
            self._accept()  # who has connected in this moment is not turned away
            self.finished = not any(peer.deadline is not None for peer in self._peers.values())

    def drain(self, why: str, until: float | None = None) -> None:
        """Takes nobody in any more and ends when all is delivered and everybody gone, or at the deadline."""
        if not self.draining:
            self.draining = True
            self._drain_deadline = self.clock() + self.facts.drain_s if until is None else until
            self.line.tell({"op": "draining", "why": why, "until": self._drain_deadline})
            self.log.info(
                "draining",
                extra=fields(
                    why=why, front_ends=len(self._front_ends), undelivered=self.engine.undelivered()
                ),
            )

    def close(self) -> list[Peer]:
        """Hangs up on everybody; who is still in the listener's queue is told to try again.

        The connections of those who wait for the sender's end are returned open: their hang-up is the news.
        """
        self.engine.unwatch(self.listener.fileno())
        while (accepted := self._accept_one()) is not None:
            accepted.send({"ok": False, "error": "DRAINING", "message": "the sender is ending"})
            accepted.close()
        self.listener.close()
        waiting = [peer for peer in self._peers.values() if peer.awaits_end]
        for peer in waiting:
            del self._peers[peer.fd]
            self.engine.unwatch(peer.fd)
        for peer in list(self._peers.values()):
            if peer.attach_id:
                # Nothing more goes out: what did not, its owner may give to the next sender.
                peer.send({"op": "ended"})
            self._end(peer, "the sender is ending")
        return waiting

    # ------------------------------------------------------------------ connections

    def _accept_one(self) -> Peer | None:
        try:
            sock, _ = self.listener.accept()
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._pause_listening(error)
            return None
        sock.setblocking(False)
        return Peer(sock, self.clock() + HANDSHAKE_S)

    def _pause_listening(self, error: OSError) -> None:
        """The connection stays in the queue, which is readable all the time: look away for a moment."""
        if self._listening_again is None:
            self.log.warning("no connection can be accepted: %s", error.strerror)
            self.engine.unwatch(self.listener.fileno())
        self._listening_again = self.clock() + ACCEPT_PAUSE_S

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            peer = self._accept_one()
            if peer is None:
                return
            self._add_peer(peer)
            if len(self._peers) - len(self._front_ends) > _PENDING_MAX:
                # Who means it says at once what he wants: the one that has been silent longest goes.
                silent = next(known for known in self._peers.values() if known.deadline is not None)
                self._end(silent, "too many are in the middle of a handshake")

    def _add_peer(self, peer: Peer) -> None:
        self._peers[peer.fd] = peer
        self.engine.watch(peer.fd)

    def _may_connect(self, peer: Peer) -> bool:
        if self._is_owner(peer) or peer.uid in self.facts.allow_uids:
            return True
        return bool(self.facts.allow_gids) and not peer.groups().isdisjoint(self.facts.allow_gids)

    @staticmethod
    def _is_owner(peer: Peer) -> bool:
        return peer.uid in (0, os.geteuid())

    def _read(self, peer: Peer) -> None:
        for _ in range(_MESSAGES_PER_TURN):
            if peer.attach_id:
                self._heed_want(peer)
            try:
                message, fds = handshake.receive(peer.socket)
            except BlockingIOError:
                return
            except (OSError, handshake.HandshakeError) as error:
                if isinstance(error, handshake.TruncatedError) and not peer.attach_id:
                    peer.send(_refusal("REFUSED", f"the sender has no room for another front-end: {error}"))
                self._end(peer, f"its message is none: {error}")
                return
            if message is None:
                self._end(peer, "it closed" if peer.orderly else "it hung up")
                return
            try:
                self._on_message(peer, message, fds)
            finally:
                handshake.discard(fds)
            if peer.fd not in self._peers:
                return

    def _on_message(self, peer: Peer, message: dict[str, Any], fds: list[int]) -> None:
        """Whoever takes one of `fds` over removes it from the list."""
        op = message.get("op")
        if not self._may_connect(peer):
            # Not before its message was read: closing a socket with unread data drops the answer on its way.
            self.log.warning("a process was refused", extra=fields(uid=peer.uid, gid=peer.gid, peer=peer.pid))
            text = f"uid {peer.uid} may not use this sender (see --allow-uid, --allow-gid)"
            peer.send(_refusal("REFUSED", text))
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
            pass  # heeded before it was taken from the socket
        elif op == "close" and peer.attach_id:
            peer.orderly = True
        else:
            peer.send(_refusal("MALFORMED", f"unexpected: {str(op)[:40]!r}"))
            self._end(peer, "it sent something unexpected")

    def _heed_want(self, peer: Peer) -> None:
        """Before it is taken from the socket: a successor finds it there, or the topic in the state region."""
        message = handshake.peek(peer.socket)
        try:
            name = topic_name(message) if message is not None and message.get("op") == "want" else None
        except ValueError as error:
            peer.send({"op": "warning", "message": str(error)})  # an honest one does not ask for it
            return
        if name is None:
            return
        try:
            peer.note_want(name)
            self.engine.want_topic(peer.attach_id, name)
        except (OverflowError, ValueError) as error:
            self.log.warning(
                "no metadata for topic %s of %s: %s", name, peer.app, error, extra={"app": peer.app}
            )

    # ------------------------------------------------------------------ front-ends

    def _on_attach(self, peer: Peer, message: dict[str, Any], fds: list[int]) -> None:
        try:
            if self.draining:
                raise RefusedError("DRAINING", "the sender is ending")
            if message.get("layout") != LAYOUT_VERSION:
                raise RefusedError(
                    "LAYOUT",
                    f"the sender's memory has layout {LAYOUT_VERSION}, this process has "
                    f"{str(message.get('layout'))[:20]}; use the same version of cyproducer on both sides",
                )
            if message.get("time_namespace", self._time_namespace) != self._time_namespace:
                raise RefusedError("REFUSED", "its clock is another one (time namespace): nothing could be timed")
            request = parse_attach(message, fds, peer.pid)
            request.check_agreement(self.settings)
            peer.take(request, self._front_ends.values())
            fds.clear()
            if DEBUG:
                crashpoint("attach.request-read")
            attach_id, outcomes, wake = self._engine_attach(request)
            peer.meta = {
                "app": request.app,
                "pid": peer.pid or request.pid,
                "slots": request.slots,
                "settings": request.settings,
            }
            self._give_into_custody(peer, attach_id, (outcomes, wake))
            if DEBUG:
                crashpoint("attach.in-custody")
        except RefusedError as error:
            self.log.warning("an attach was refused", extra=fields(peer=peer.pid, uid=peer.uid, why=error))
            peer.send(_refusal(error.name, str(error)))
            self._end(peer, "refused")
            return
        peer.attach_id, peer.app, peer.deadline = attach_id, request.app, None
        peer.pid = peer.pid or request.pid
        self._front_ends[attach_id] = peer
        self._remember_app(attach_id, request.app)
        if not self._answer_attach(peer, outcomes, wake):
            return
        self._pidfds[peer.pidfd] = peer
        self.engine.watch(peer.pidfd)
        self._ask_for_idle_timeout(request.settings)
        self.log.info(
            "attached", extra=fields(attach_id=attach_id, peer=peer.pid, uid=peer.uid, app=peer.app)
        )
        for text in self.standing_warnings:
            peer.send({"op": "warning", "message": text})

    def _give_into_custody(self, peer: Peer, attach_id: int, opened: tuple[int, int]) -> None:
        """Before the front-end hears that it is attached: a successor has to know of it."""
        message = {"op": "hold", "attach_id": attach_id, "meta": peer.meta}
        if self.line.give(message, (peer.fd, peer.pidfd, *self.engine.descriptors(attach_id))):
            return
        self.engine.detach(attach_id)
        for fd in opened:
            os.close(fd)
        raise RefusedError("REFUSED", "the sender's supervisor takes nothing at the moment")

    def _answer_attach(self, peer: Peer, outcomes: int, wake: int) -> bool:
        """Sends the descriptors, which it owns. False: the front-end does not take them and is gone."""
        try:
            snapshot = self.engine.snapshot_fd()
        except OSError as error:
            os.close(outcomes)
            os.close(wake)
            peer.send(_refusal("REFUSED", f"the sender has no room for another front-end: {error}"))
            self._end(peer, f"there is no descriptor for its answer: {error}")
            return False
        answer = {"ok": True, "attach_id": peer.attach_id, "sender_pid": os.getpid()}
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
            self._end(peer, "it does not take the answer")
        return taken

    def _engine_attach(self, request: Any) -> tuple[int, int, int]:
        """The engine owns both descriptors from here on, also if it refuses."""
        try:
            attached: tuple[int, int, int] = self.engine.attach(
                request.arena_fd, request.slots, request.settings, request.wake_fd
            )
            return attached
        except ValueError as error:
            raise RefusedError("MALFORMED", str(error)) from None
        except PermissionError:
            raise RefusedError("MALFORMED", "the arena cannot be mapped for writing") from None
        except (OSError, MemoryError) as error:
            raise RefusedError("REFUSED", f"the sender has no room for another front-end: {error}") from None

    def _ask_for_idle_timeout(self, settings: dict[str, Any]) -> None:
        asked = settings.get("sender_idle_timeout_ms")
        if self.idle_timeout_s is None or not isinstance(asked, int) or asked / 1000 <= self.idle_timeout_s:
            return
        self.idle_timeout_s = asked / 1000
        self.line.tell({"op": "idle", "timeout_s": self.idle_timeout_s})

    def _remember_app(self, attach_id: int, app: str) -> None:
        """Longer than the front-end lives: its records may fail after it."""
        self._apps[attach_id] = app
        while len(self._apps) > max(_APPS_REMEMBERED, 2 * len(self._front_ends)):
            oldest = next((known for known in self._apps if known not in self._front_ends), None)
            if oldest is None:
                return
            del self._apps[oldest]

    def _end(self, peer: Peer, why: str) -> None:
        if self._peers.pop(peer.fd, None) is None:
            return
        self.engine.unwatch(peer.fd)
        if self._pidfds.pop(peer.pidfd, None) is not None:
            self.engine.unwatch(peer.pidfd)
        if peer.attach_id:
            if DEBUG:
                crashpoint("reclaim.noticed")
            del self._front_ends[peer.attach_id]
            self._ended[peer.attach_id] = peer.meta
            self.line.tell({"op": "ended", "attach_id": peer.attach_id})
            self.engine.detach(peer.attach_id)
            peer.hang_up()
            if DEBUG:
                crashpoint("reclaim.detached")
            self.log.info(
                "detached", extra=fields(attach_id=peer.attach_id, peer=peer.pid, app=peer.app, why=why)
            )
        elif why != "it hung up":
            self.log.info("a connection was closed", extra=fields(peer=peer.pid, why=why))
        peer.close()

    def _on_replace(self, peer: Peer, message: dict[str, Any]) -> None:
        """Another build wants to take over: it is passed on to the supervisor, which ends this process."""
        refusal = replace.why_not(message, self.settings)
        if not self._is_owner(peer):
            refusal = "REFUSED", f"uid {peer.uid} may not replace this sender"
        elif refusal is None and (self.draining or self.line.supervisor_pid is None):
            refusal = "DRAINING", "not at this moment"
        elif refusal is None and not self.line.give({"op": "replace", "pid": peer.pid}, (peer.fd,)):
            refusal = "DRAINING", "the supervisor does not answer"
        if refusal is None:
            peer.passed_on = True
        else:
            peer.send(_refusal(*refusal))
        self._end(peer, "it asked to take over")

    # ------------------------------------------------------------------ failures and warnings

    def _let_go_of_condemned(self) -> None:
        for attach_id in self.engine.take_condemned():
            peer = self._front_ends.get(attach_id)
            if peer is not None:
                text = "the sender found this process' shared memory overwritten and has given it up"
                peer.send({"op": "detached", "message": text})
                self._end(peer, "its shared memory is not what it should be")

    def _tell_of_the_gone(self) -> None:
        for attach_id in self.engine.take_gone():
            self._ended.pop(attach_id, None)
            self.line.tell({"op": "drop", "attach_id": attach_id})
        self.line.flush()

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
        """Sends a warning to the living front-ends: those of the application if it has any, else all."""
        peers = [peer for peer in self._front_ends.values() if app is not None and peer.app == app]
        for peer in peers or list(self._front_ends.values()):
            peer.send({"op": "warning", "message": text[:4000]})

    # ------------------------------------------------------------------ questions

    def _answer_stop(self, peer: Peer) -> None:
        if not self._is_owner(peer):
            peer.send(_refusal("REFUSED", f"uid {peer.uid} may not stop this sender"))
            return
        peer.deadline, peer.awaits_end = None, True
        self.line.give({"op": "waiting"}, (peer.fd,))
        peer.send({"ok": True})
        self.drain(f"asked by pid {peer.pid}")

    def _answer_status(self, peer: Peer) -> None:
        fd = os.memfd_create("cyproducer-status", os.MFD_CLOEXEC)
        try:
            with open(os.dup(fd), "wb") as file:
                file.write(json.dumps(self.status()).encode())
            peer.send({"ok": True}, (fd,))
        finally:
            os.close(fd)

    def status(self) -> dict[str, Any]:
        """The status as `cyproducer status --json` shows it."""
        self._collect_failures()
        stats = self.engine.stats()
        blank = {
            "buffer_memory": 0,
            "buffer_in_use": 0,
            "records_sent": 0,
            "oldest_unacked_ms": None,
            "blocked_ms": 0,
        }
        front_ends = [
            {
                "attach_id": attach_id,
                "pid": peer.pid,
                "uid": peer.uid,
                "app": peer.app,
                **blank,
                **stats["front_ends"].get(attach_id, {}),
            }
            for attach_id, peer in sorted(self._front_ends.items())
        ]
        return {
            "socket": self.facts.socket,
            "cluster_id": stats["cluster_id"],
            "bootstrap_servers": stats["bootstrap_servers"],
            "sender_pid": os.getpid(),
            "supervisor_pid": self.line.supervisor_pid,
            "started_at": self.facts.started_at,
            "restarts": self.facts.restarts,
            "front_ends": front_ends,
            "connections": stats["connections"],
            "totals": stats["totals"],
            "ledger": self.ledger.rows(),
            "last_error": stats["last_error"],
        }


def _refusal(name: str, text: str) -> dict[str, Any]:
    return {"ok": False, "error": name, "message": text}
