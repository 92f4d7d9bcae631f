"""Which of several processes that want to be the sender becomes it: a file is locked, only its holder binds.

`bind` alone is no lock for path sockets: with a stale file about, two can each unlink and bind. The lock file
itself is unlinked by its holder at the end, so who gets a lock looks whether the name still means that file.
"""

import fcntl
import os
import socket
import time

from cyproducer.shm.rendezvous import Rendezvous, open_private

__all__ = ["Election"]

_BACKLOG = 512
_POLL_S = 0.005


class Election:
    """The lock on a rendezvous, won. Whoever holds it owns the socket's path and the files beside it.

    The open file description is locked: the supervisor and its sender, forked from one another, hold it both.
    """

    def __init__(self, rendezvous: Rendezvous, lock_fd: int) -> None:
        self.rendezvous = rendezvous
        self.lock_fd = lock_fd

    @classmethod
    def win(cls, rendezvous: Rendezvous, wait_s: float = 0.0) -> "Election | None":
        """The election if this process wins it; None if another one is the sender.

        A sender that is about to end has given its socket up but still holds the lock: it is waited for, up
        to `wait_s` seconds. Raises OSError if the lock file cannot be made.
        """
        give_up = time.monotonic() + wait_s
        while True:
            fd = _try_lock(rendezvous.lock)
            if fd >= 0:
                return cls(rendezvous, fd)
            if time.monotonic() >= give_up or os.path.exists(rendezvous.socket):
                return None
            time.sleep(_POLL_S)

    def listen(self, mode: int = 0o600) -> socket.socket:
        """Binds the socket, in place of one that a dead sender left, and listens without blocking."""
        _unlink(self.rendezvous.socket)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.setblocking(False)
            former = os.umask(0o777 & ~mode)
            try:
                listener.bind(self.rendezvous.socket)
            finally:
                os.umask(former)
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def give_up_names(self) -> None:
        """Unlinks the socket and the description: from here on nobody finds this sender."""
        _unlink(self.rendezvous.socket)
        _unlink(self.rendezvous.description)

    def forget(self) -> None:
        """Another process holds the lock as well, and goes on. Again: nothing."""
        if self.lock_fd >= 0:
            fd, self.lock_fd = self.lock_fd, -1
            os.close(fd)

    def release(self) -> None:
        """Unlinks what is left and ends the lock. Again: nothing."""
        if self.lock_fd >= 0:
            self.give_up_names()
            _unlink(self.rendezvous.lock)  # before the lock ends: after that the name may be somebody else's
            self.forget()


def _try_lock(path: str) -> int:
    """A descriptor that holds the lock on the file that `path` names now; -1 if another one holds it."""
    while True:
        fd = open_private(path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = os.fstat(fd)
            named = os.stat(path, follow_symlinks=False)
            if (locked.st_dev, locked.st_ino) == (named.st_dev, named.st_ino):
                return fd
        except BlockingIOError:
            os.close(fd)
            return -1
        except FileNotFoundError:
            pass
        except OSError:
            os.close(fd)
            raise
        os.close(fd)


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
