"""Delivers end signals through a descriptor, and forks so that each process can detect the end of the other."""

import contextlib
import os
import signal
import socket
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["PeerProcess", "Signals", "blocked", "fork"]

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Signals:
    """Receives SIGTERM, and with `from_terminal` also SIGINT and SIGHUP; else these two are ignored.

    `reader` is readable when take() has signals to return.
    """

    def __init__(self, from_terminal: bool) -> None:
        self.reader, self._writer = socket.socketpair()
        self.reader.setblocking(False)
        self._writer.setblocking(False)
        self.received: list[int] = []
        self._former: dict[int, Any] = {}
        for number in _NUMBERS:
            is_handled = number == signal.SIGTERM or from_terminal
            handler = self._on_signal if is_handled else signal.SIG_IGN
            self._former[number] = signal.signal(number, handler)
        self._former_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)

    def _on_signal(self, number: int, _frame: Any) -> None:
        self.received.append(number)

    def take(self) -> list[int]:
        """Return the numbers of the signals that came since the last call."""
        try:
            self.reader.recv(4096)
        except BlockingIOError:
            pass
        received, self.received = self.received, []
        return received

    def descriptors(self) -> set[int]:
        """Return the descriptors that it keeps open."""
        return {self.reader.fileno(), self._writer.fileno()}

    def close(self) -> None:
        """Restore the former handlers and close the descriptors."""
        signal.set_wakeup_fd(self._former_fd)
        for number, handler in self._former.items():
            signal.signal(number, handler)
        self.reader.close()
        self._writer.close()


class PeerProcess(NamedTuple):
    """The process on the other side of a fork. Owns `pidfd` and `socket`, one end of a SOCK_SEQPACKET pair.

    `signals` receives the signals of the child; it is None in the parent.
    """

    pid: int
    pidfd: int
    socket: socket.socket
    signals: Signals | None


def fork(signals: Signals) -> PeerProcess:
    """Fork and return the peer process, in parent and child. `signals` stays with the parent. Raise OSError."""
    parent = os.getpid()
    with contextlib.ExitStack() as opened:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for sock in (mine, theirs):
            opened.callback(sock.close)
            sock.setblocking(False)
        # Opened before the fork: when the child runs, the parent may have ended and its pid may be reused.
        me = os.pidfd_open(parent)
        opened.callback(os.close, me)
        with blocked(), warnings.catch_warnings():
            # Python 3.12 warns if there is another thread. The supervisor's (log_relay.py) holds no lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
            if pid == 0:
                opened.pop_all()
                mine.close()
                signals.close()
                return PeerProcess(parent, me, theirs, Signals(from_terminal=False))
        opened.pop_all()
        theirs.close()
        os.close(me)
        return PeerProcess(pid, os.pidfd_open(pid), mine, None)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block the end signals around a fork: a signal to the child must not reach the parent's handlers.

    These handlers would write to descriptors that the child shares with its parent.
    """
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
