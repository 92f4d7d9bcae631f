"""Counts the descriptors in answers that other users have not read yet.

The kernel counts them for the sender's user, and refuses more than RLIMIT_NOFILE. They stay in the peer's socket after
the sender has closed its end, so a user could use up the owner's number.
"""

import fcntl
import socket
import struct
import termios
from collections.abc import Iterator

from cyproducer.sender.control.peers import OWNER, Peer
from cyproducer.sender.system import dropped

__all__ = ["POLL_S", "UnreadDescriptors"]

#: The parts of RLIMIT_NOFILE for the descriptors that one admitted user, and all of them, have not read.
USER_SHARE = 32
ALL_SHARE = 16
#: Pause between two looks at the connections that are kept.
POLL_S = 1.0


class UnreadDescriptors:
    """Knows the connections of other users with descriptors that may be unread. It keeps them open after their end.

    `limit`: the sender's RLIMIT_NOFILE.
    """

    def __init__(self, limit: int) -> None:
        self.user_max = max(1, limit // USER_SHARE)
        self.all_max = max(1, limit // ALL_SHARE)
        self._peers: dict[int, dict[Peer, None]] = {}  # by account
        self._kept: dict[int, list[tuple[socket.socket, int]]] = {}  # by account: (connection, descriptors)

    @property
    def keeps_any(self) -> bool:
        """Whether it keeps a connection that has ended."""
        return bool(self._kept)

    def note(self, peer: Peer) -> None:
        """Note that an answer with descriptors was sent."""
        if peer.account != OWNER and peer.unread_descriptors:
            self._peers.setdefault(peer.account, {})[peer] = None

    def may_ask(self, peer: Peer) -> bool:
        """Return whether the next request of the peer may be answered: its user has read enough of the answers."""
        if peer.account == OWNER or not (self._peers or self._kept):
            return True
        counts = {account: sum(self._unread(account)) for account in {*self._peers, *self._kept}}
        return counts.get(peer.account, 0) < self.user_max and sum(counts.values()) < self.all_max

    def _unread(self, account: int) -> Iterator[int]:
        """Yield the numbers of descriptors of the connections of an account that has not read all."""
        for peer in list(self._peers.get(account, ())):
            if _is_read(peer.socket):
                self._forget(peer)
            else:
                yield peer.unread_descriptors
        yield from (count for _, count in self._kept.get(account, ()))

    def _forget(self, peer: Peer) -> None:
        peer.unread_descriptors = 0
        held = self._peers.get(peer.account, {})
        held.pop(peer, None)
        if not held:
            self._peers.pop(peer.account, None)

    def end(self, peer: Peer) -> None:
        """Take the connection of a peer that ends over, if it has unread descriptors."""
        count = peer.unread_descriptors
        if peer in self._peers.get(peer.account, ()) and not _is_read(peer.socket):
            peer.hang_up()
            kept = socket.socket(fileno=peer.socket.detach())
            self._kept.setdefault(peer.account, []).append((kept, count))
        self._forget(peer)

    def look(self) -> None:
        """Close the kept connections whose answers are read, or whose peer has closed its end."""
        for account, held in list(self._kept.items()):
            for sock, _ in [each for each in held if _is_read(each[0])]:
                dropped.drop(sock)
            held[:] = [each for each in held if each[0].fileno() >= 0]
            if not held:
                del self._kept[account]

    def close(self) -> None:
        """Close the kept connections."""
        for held in self._kept.values():
            for sock, _ in held:
                dropped.drop(sock)
        self._kept.clear()


def _is_read(sock: socket.socket) -> bool:
    """Return whether the peer has read every message, or has closed its end."""
    (unread,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0" * 4))
    return bool(unread == 0)
