"""Elects one of several processes that start as the sender of a place: only the holder of a lock file may bind.

bind() alone is no lock for sockets with a path: if a stale socket file exists, two processes can each unlink it and
bind.
"""

import os
import socket
import time

from cyproducer.host import lock_file
from cyproducer.host.rendezvous import Rendezvous, open_private

__all__ = ["Election"]

_BACKLOG = 512
_POLL_S = 0.005


class Election:
    """The held lock on a rendezvous. Its holder owns the path of the socket and the files beside it.

    The lock belongs to the open file description, so supervisor and sender, which share it through fork, both hold it.
    The lock has no effect once its file is removed (see holds_place()): another process may have locked a new file, and
    then owns all paths.
    """

    def __init__(self, rendezvous: Rendezvous, lock_fd: int) -> None:
        self.rendezvous = rendezvous
        self.lock_fd = lock_fd

    @classmethod
    def win(cls, rendezvous: Rendezvous, wait_s: float = 0.0) -> "Election | None":
        """Return the election if this process wins it; None if another process is the sender.

        A sender that is about to end has unlinked its socket but still holds the lock. Wait up to `wait_s` seconds
        for its end. Raise OSError if the lock file cannot be created.
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
        """Bind the socket and return it, listening and non-blocking. Replace the socket file of a dead sender."""
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

    def holds_place(self) -> bool:
        """Return whether the lock's path still names the locked file; False also after the lock was given up."""
        if self.lock_fd < 0:
            return False
        try:
            return lock_file.is_at(self.lock_fd, self.rendezvous.lock)
        except OSError:
            return False

    def lock_again(self) -> bool:
        """Lock a new file after the lock file was removed; False if another process has locked a new one.

        Raise OSError if the file cannot be created. The caller must send the new lock to the other process that holds
        the former one.
        """
        fd = _try_lock(self.rendezvous.lock)
        if fd < 0:
            return False
        self.replace_lock(fd)
        return True

    def replace_lock(self, fd: int) -> None:
        """Replace the lock with another open file description, and take ownership of it."""
        self.forget()
        self.lock_fd = fd

    def unlink_names(self) -> None:
        """Unlink this sender's socket and description, so that no process finds it; not those of another sender."""
        if self.holds_place():
            _unlink(self.rendezvous.socket)
            _unlink(self.rendezvous.description)

    def forget(self) -> None:
        """Close the lock's descriptor; another process still holds the lock. A second call does nothing."""
        if self.lock_fd >= 0:
            fd, self.lock_fd = self.lock_fd, -1
            os.close(fd)

    def release(self) -> None:
        """Unlink the remaining files and end the lock. A second call does nothing."""
        if self.holds_place():
            self.unlink_names()
            _unlink(self.rendezvous.lock)  # before the lock ends: afterwards the path may belong to another sender
        self.forget()


def _try_lock(path: str) -> int:
    """Return a descriptor that holds the lock on the file at `path`; -1 if another process holds the lock."""
    while True:
        fd = open_private(path, os.O_RDWR)
        try:
            if lock_file.try_lock(fd, path):
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
