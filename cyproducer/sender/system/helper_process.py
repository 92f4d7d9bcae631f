"""Runs work that must not delay the sender's loop in a process beside it, which gets questions and sends answers.

The process is forked from the sender for the first question. A thread in the sender would be no substitute: a forked
child would find its locks held for ever, and the sender must be able to fork a supervisor at any time. The helper holds
no descriptor of the sender except one socket, and ends when the sender ends.
"""

import contextlib
import gc
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from cyproducer.host import control_messages
from cyproducer.sender.system.daemonise import close_others, name_process
from cyproducer.sender.system.signals import blocked

__all__ = ["HelperProcess"]

Serve = Callable[[socket.socket], None]
"""Answers the questions of a blocking socket, until the sender hangs up."""


class HelperProcess:
    """The process, or its next one if it has ended. `fd` is readable when `answers()` must be called."""

    def __init__(self, name: str, serve: Serve) -> None:
        self._name = name
        self._serve = serve
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        self._owner_pid = os.getpid()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._ended: dict[int, int] = {}  # processes that must be reaped, each with a pidfd; -1: none

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended, as far as is known."""
        return self._socket is not None

    def ask(self, question: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a question, with descriptors. Raise OSError or HandshakeError if it cannot be sent."""
        if self._socket is None:
            self._start()
        assert self._socket is not None
        control_messages.send(self._socket, question, tuple(fds))

    def answers(self) -> Iterator[tuple[dict[str, Any] | None, list[int]]]:
        """Yield the answers that have arrived, with their descriptors, which the caller owns.

        None means that the process has ended: it answers none of the questions before.
        """
        self._reap()
        while self._socket is not None:
            try:
                answer, fds = control_messages.receive(self._socket)
            except BlockingIOError:
                return
            except (OSError, control_messages.HandshakeError):
                answer, fds = None, []
            if answer is None:
                self.end()
            yield answer, fds

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                with blocked():
                    self._pid = os.fork()
                    if self._pid == 0:
                        _run(self._name, self._serve, theirs)
            except OSError:
                ours.close()
                raise
        ours.setblocking(False)
        self._socket = ours
        self._epoll.register(ours, select.EPOLLIN)

    def end(self) -> None:
        """End the process if it runs. The next question starts another one."""
        if self._socket is None:
            return
        self._epoll.unregister(self._socket)
        self._socket.close()
        self._socket = None
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self._ended[self._pid] = -1
        with contextlib.suppress(OSError):  # no descriptor is free: the process is reaped later
            self._ended[self._pid] = os.pidfd_open(self._pid)
            self._epoll.register(self._ended[self._pid], select.EPOLLIN)
        self._reap()

    def _reap(self, options: int = os.WNOHANG) -> None:
        for pid in list(self._ended):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, options)[0] == 0:
                    continue
            self._close_pidfd(self._ended.pop(pid))

    @staticmethod
    def _close_pidfd(fd: int) -> None:
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        """End the process. A forked child of the owner only closes its descriptors. A second call does nothing."""
        if self.fd < 0:
            return
        if os.getpid() == self._owner_pid:
            self.end()
            self._reap(0)  # it was killed, so this does not block for long
        elif self._socket is not None:
            self._socket.close()
        for fd in self._ended.values():
            self._close_pidfd(fd)
        self._ended.clear()
        self._epoll.close()
        self.fd = -1


def _run(name: str, serve: Serve, sock: socket.socket) -> NoReturn:
    """Run the helper from the fork to its end. No object of the sender is touched: no destructor runs."""
    status = 1
    try:
        gc.disable()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # the helper ends with the sender, which may still need it after such a signal
            signal.signal(number, signal.SIG_IGN)
        close_others({sock.fileno()})
        name_process(name)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        sock.setblocking(True)
        serve(sock)
        status = 0
    finally:
        os._exit(status)
