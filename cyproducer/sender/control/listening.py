"""Accepts connections on the sender's socket, and decides who may use the sender.

If no descriptor is free it pauses, and later tries again.
"""

import errno
import logging
import socket
from collections.abc import Callable

from cyproducer.sender.control.facts import Facts
from cyproducer.sender.control.peers import STRANGERS, Peer
from cyproducer.sender.control.reserve import Reserve
from cyproducer.sender.engine.native import Loop
from cyproducer.sender.system import dropped

__all__ = ["HANDSHAKE_S", "PAUSE_S", "Listening"]

HANDSHAKE_S = 5.0
PAUSE_S = 0.2
_LOG_PAUSE_S = 60.0


class Listening:
    """Owns the listening socket, which the loop watches except in a pause."""

    def __init__(
        self,
        loop: Loop,
        listener: socket.socket,
        reserve: Reserve,
        facts: Facts,
        log: logging.Logger,
        clock: Callable[[], float],
    ) -> None:
        self.socket = listener
        self._loop = loop
        self._reserve = reserve
        self._facts = facts
        self._log = log
        self._clock = clock
        self._paused_until: float | None = None
        self._log_again = 0.0
        loop.watch(listener.fileno())

    def accept(self) -> Peer | None:
        """Return the process that has connected next; None if none waits, or if no descriptor is free for it."""
        connection = self._accept()
        if connection is None:
            return None
        peer = Peer(connection, self._clock() + HANDSHAKE_S)
        if not self._may_connect(peer):
            peer.account = STRANGERS
        return peer

    def _may_connect(self, peer: Peer) -> bool:
        if peer.is_owner or peer.uid in self._facts.allow_uids:
            return True
        return bool(self._facts.allow_gids) and not peer.groups().isdisjoint(self._facts.allow_gids)

    def _accept(self) -> socket.socket | None:
        """Return the next connection, not blocking; None if none waits, or if no descriptor is free for it."""
        while True:
            try:
                connection, _ = self.socket.accept()
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno == errno.EMFILE and self._reserve.give_descriptor():
                    continue  # accept it: it gets the reason why it is refused, or it replaces this sender
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._pause(error)
                return None
            connection.setblocking(False)
            return connection

    def _pause(self, error: OSError) -> None:
        """Ignore the socket for a moment: the connection stays in its queue, so it stays readable."""
        now = self._clock()
        if self._paused_until is None:
            self._loop.unwatch(self.socket.fileno())
        if now >= self._log_again:
            self._log_again = now + _LOG_PAUSE_S
            self._log.warning("cannot accept connections: %s; the sender keeps trying", error.strerror)
        self._paused_until = now + PAUSE_S

    def paused_until(self) -> float | None:
        """Return when resume() must be called; None without a pause."""
        return self._paused_until

    def on_closed_connection(self) -> None:
        """End a pause early: a descriptor is free."""
        if self._paused_until is not None:
            self._paused_until = self._clock()

    def resume(self, now: float) -> None:
        """End a pause if it is over."""
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._loop.watch(self.socket.fileno())

    def hang_up_all(self) -> None:
        """Hang up on the processes that have connected and are not accepted yet. They try again."""
        with self._reserve.released():
            while (connection := self._accept()) is not None:
                dropped.drop(connection)

    def replace(self, listener: socket.socket) -> None:
        """Listen on another socket, which it owns. The caller has accepted what waited in the queue of the former."""
        if self._paused_until is None:
            self._loop.unwatch(self.socket.fileno())
        self.socket.close()
        self.socket, self._paused_until = listener, None
        listener.setblocking(False)
        self._loop.watch(listener.fileno())

    def close(self) -> None:
        """Stop listening; the caller has answered what waited in the queue."""
        self._loop.unwatch(self.socket.fileno())
        self.socket.close()
