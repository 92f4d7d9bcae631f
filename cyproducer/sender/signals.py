"""Signals that tell a process to end, as a descriptor; and the fork after which each side can tell the other's end."""

import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Kin", "Signals", "fork"]

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """SIGTERM, and a terminal's SIGINT and SIGHUP if `of_a_terminal`; else these two are ignored.

    `reader` is readable when `take()` has something to say.
    """

    def __init__(self, of_a_terminal: bool) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        self.received: list[int] = []
        self._former: dict[int, Any] = {}
        for number in _NUMBERS:
            heeded = number == signal.SIGTERM or of_a_terminal
            handler = self._on_signal if heeded else signal.SIG_IGN
            self._former[number] = signal.signal(number, handler)
        self._former_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.received.append(number)

    def take(self) -> list[int]:
        """What came since the last call."""
        try:
            self.reader.recv(4096)
        except BlockingIOError:
            pass
        received, self.received = self.received, []
        return received

    def descriptors(self) -> set[int]:
        """What it keeps open."""
        return {self.reader.fileno(), self._writer.fileno()}

    def close(self) -> None:
        """Puts back what was there."""
        signal.set_wakeup_fd(self._former_fd)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self.reader.close()
        self._writer.close()


class Kin(NamedTuple):
    """The process on the other side of a fork; `pidfd` and `socket`, a SOCK_SEQPACKET pair's end, are owned.

    `signals` are the child's own; None in the parent.
    """

    pid: int
    pidfd: int
    socket: socket.socket
    signals: Signals | None


def fork(signals: Signals) -> Kin:
    """Forks; `signals` stay the parent's. Raises OSError."""
    parent = os.getpid()
    with contextlib.ExitStack() as opened:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (mine, theirs):
            opened.callback(sock.close)
            sock.setblocking(False)
        # Before the fork: at the child's first look the parent may be gone, and its number another's.
        me = os.pidfd_open(parent)
        opened.callback(os.close, me)
        with _blocked():
            pid = os.fork()
            if pid == 0:
                opened.pop_all()
                mine.close()
                signals.close()
                return Kin(parent, me, theirs, Signals(of_a_terminal=False))
        opened.pop_all()
        theirs.close()
        os.close(me)
        return Kin(pid, os.pidfd_open(pid), mine, None)


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """Around a fork: a signal to the child must not reach handlers and descriptors that are its parent's."""
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
