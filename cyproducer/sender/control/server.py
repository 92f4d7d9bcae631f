"""Serves the sender's control socket: reads what connected processes send, in time, and keeps to the limits of each.

It runs between two native loop iterations of the engine and never waits: every socket is non-blocking. A message that a
peer does not read is dropped. An error of a peer ends only the connection of that peer.
"""

import logging
import math
import socket
from collections.abc import Callable, Iterable

from cyproducer.host import control_messages
from cyproducer.sender.control.ending import Ending
from cyproducer.sender.control.failures import Failures
from cyproducer.sender.control.listening import HANDSHAKE_S, Listening
from cyproducer.sender.control.peer_table import HUNG_UP, PeerTable
from cyproducer.sender.control.peers import STRANGERS, Peer, refusal, resource_refusal
from cyproducer.sender.control.quotas import UNREAD_POLL_S, UserLimits
from cyproducer.sender.control.requests import Requests
from cyproducer.sender.control.reserve import Reserve
from cyproducer.sender.control.status import Status
from cyproducer.sender.control.token_suppliers import TokenSuppliers
from cyproducer.sender.system import dropped

__all__ = ["ControlServer", "FrontEndHandler"]

_ACCEPTS_PER_TURN = 64
_MESSAGES_PER_TURN = 32
WARNING_REPEAT_S = 60.0
WARNINGS_PER_INTERVAL = 20


class ControlServer:
    """Handles everything about front-ends except their records.

    finished  the process may end
    """

    def __init__(
        self,
        reserve: Reserve,
        listening: Listening,
        table: PeerTable,
        limits: UserLimits,
        failures: Failures,
        ending: Ending,
        tokens: TokenSuppliers,
        status: Status,
        requests: Requests,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self.finished = False
        self.listening = listening
        self.table = table
        self._reserve = reserve
        self._quotas = limits.quotas
        self._budget = limits.budget
        self._unread = limits.unread
        self._refusals = limits.refusals
        self._failures = failures
        self._ending = ending
        self._tokens = tokens
        self._status = status
        self._requests = requests
        self._log = log
        self._clock = clock

    # ------------------------------------------------------------------ loop iterations

    def turn(self, ready: Iterable[int]) -> None:
        """Handle the readable descriptors `ready` and the expired timers; called once in each loop iteration."""
        for fd in ready:
            if fd == self.listening.socket.fileno():
                self._accept()
            elif not self.table.end_if_process_ended(fd) and fd in self.table.peers:
                self._handle(self.table.peers[fd])
        self._status.keep_cluster_id()
        self._failures.collect()
        self.table.update()
        self._run_timers()

    def timeout_ms(self) -> int:
        """Return for how many milliseconds the engine may run before turn() must be called; -1: no limit."""
        now = self._clock()
        times = [peer.deadline for peer in self.table.unfinished.values() if peer.deadline is not None]
        times += self._budget.until.values()
        if self._unread.keeps_any:
            times.append(now + UNREAD_POLL_S)
        if self._tokens.next_time() < math.inf:
            times.append(self._tokens.next_time())
        others = self.listening.paused_until(), self._ending.next_time(), self._failures.next_warning(now)
        times += [each for each in others if each is not None]
        if not times:
            return -1
        # Rounded up: a call a moment too early would do nothing and need another call.
        return max(0, int((min(times) - now) * 1000) + 1)

    def _run_timers(self) -> None:
        self._budget.wake()
        self._unread.close_read()
        self._reserve.fill()
        now = self._clock()
        for peer in [p for p in self.table.unfinished.values() if p.deadline is not None and p.deadline <= now]:
            self.table.end(peer, f"it did not finish its handshake within {HANDSHAKE_S:g} s")
        self._tokens.run()
        self.listening.resume(now)
        self._failures.warn(now)
        if self._ending.is_over():
            if not self._ending.is_draining:
                self._accept()  # a process that has connected at this moment is not refused
            self.finished = self._ending.is_draining or not self.table.unfinished

    def close(self) -> list[Peer]:
        """Hang up on every peer. A process that is still in the listener's queue gets the answer to try again.

        Return the open connections of processes that wait for the sender's end: the hang-up notifies them.
        """
        while (accepted := self.listening.accept()) is not None:
            accepted.send(refusal("DRAINING", "the sender is ending"))
            accepted.close()
        self.listening.close()
        self._reserve.close()
        waiting = self.table.pop_waiting()
        left = self._failures.left()
        for peer in waiting if left else ():
            peer.send({"op": "lost", "records": sum(row[3] for row in left)})
        for peer in list(self.table.peers.values()):
            if peer.attach_id:
                # The sender sends no more batches: the front-end may pass its unsent batches to the next sender.
                peer.send({"op": "ended"})
            self.table.end(peer, "the sender is ending")
        self._unread.close()
        dropped.wait_until_closed()  # an answer is lost if its connection ends with an unread message
        self._failures.add_left(left)
        return waiting

    # ------------------------------------------------------------------ connections

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            peer = self.listening.accept()
            if peer is None:
                return
            surplus = self.table.add(peer)
            if surplus is not None:
                self._handle(surplus)  # its request may have arrived: if its user's budget allows, it gets the answer
                if self._quotas.counts(surplus):
                    self.table.end(surplus, "its user has too many connections")

    def listen_on(self, listener: socket.socket) -> None:
        """Replace the listening socket, and own the new one. Accept what waits in the queue of the former one."""
        while (accepted := self.listening.accept()) is not None:
            self.table.add(accepted)
        self.listening.replace(listener)

    def _handle(self, peer: Peer) -> None:
        """Read from a peer. An error ends only its connection."""
        try:
            self._read(peer)
        except MemoryError as error:
            with self._reserve.released():
                self._requests.refuse(peer, resource_refusal(error))
        except Exception:
            self._log.exception("a message from pid %d could not be handled", peer.pid)
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
        self._refusals.log(peer, logging.WARNING, text, gid=peer.gid)
        peer.send(refusal("REFUSED", f"uid {peer.uid} may not use this sender (see --allow-uid, --allow-gid)"))
        self.table.end(peer, "refused")

    def _read(self, peer: Peer) -> None:
        if peer.account == STRANGERS:
            self._refuse_stranger(peer)
            return
        for _ in range(_MESSAGES_PER_TURN):
            if not self._unread.may_ask(peer):
                self._budget.pause(peer.fd)
                return
            if not self._budget.may_begin(peer.fd, peer.account):
                return
            try:
                # A message that arrives after this look is left for the next one: it may be a "want".
                waiting = control_messages.peek(peer.socket) if peer.attach_id else None
            except BlockingIOError:
                return
            is_new_topic = waiting is not None and self._requests.want(peer, waiting)
            try:
                message, fds, size = self._reserve.receive(peer.socket)
            except BlockingIOError:
                return
            except (OSError, control_messages.HandshakeError) as error:
                if isinstance(error, control_messages.TruncatedError) and not peer.attach_id:
                    self._requests.refuse(peer, resource_refusal(error))
                    return
                self.table.end(peer, f"its message is invalid: {error}")
                return
            if message is None:
                self.table.end(peer, "it closed its producer" if peer.orderly else HUNG_UP)
                return
            try:
                self._requests.answer(peer, message, fds)
            finally:
                control_messages.discard(fds)
            if peer.fd not in self.table.peers:
                return
            size += peer.take_cost()
            if not is_new_topic and not self._budget.may_go_on(peer.fd, peer.account, size):
                return


class FrontEndHandler(logging.Handler):
    """Sends warnings of the sender's log to the front-ends' logger, each text at most once a minute."""

    def __init__(self, table: PeerTable, clock: Callable[[], float]) -> None:
        super().__init__(logging.WARNING)
        self._table = table
        self._clock = clock
        self._sent: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        extra = getattr(record, "fields", {})
        if extra:
            text += " (" + ", ".join(f"{name} {value}" for name, value in extra.items()) + ")"
        now = self._clock()
        self._sent = {known: at for known, at in self._sent.items() if now - at < WARNING_REPEAT_S}
        if text not in self._sent and len(self._sent) < WARNINGS_PER_INTERVAL:
            self._sent[text] = now
            self._table.tell(text, getattr(record, "app", None))
