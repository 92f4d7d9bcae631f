"""Closes connections with unread messages in another thread, so that no descriptor in them makes the sender wait.

Descriptors in an unread message are closed with the connection. A message is read here without space for descriptors:
then the kernel drops them itself. It does not ask the server of a file's file system (FUSE), which could let a process
wait for ever that has got the file as a descriptor. But it waits for a socket that lingers. A signal ends that wait.
"""

import os
import signal
import socket
import threading
import time
from collections import deque

__all__ = ["drop", "shut", "wait_until_closed"]

#: So many connections may wait while one of them takes long.
_PATIENT = 8
_WAITING_MAX = 64
_PAUSE_S = 0.001
_PAUSES_MAX = 10
_CLOSE_S = 0.2
_MESSAGES_MAX = 4096
#: Space for the credentials of a message and for nothing else.
_SPACE = socket.CMSG_SPACE(12)
_PEEK = socket.MSG_PEEK | socket.MSG_DONTWAIT
#: Without a handler it does nothing, and no other part of the sender uses it.
_INTERRUPT = signal.SIGURG


class _Dropper:
    """A thread that exists while it has something to do. `waiting`: the descriptors of connections."""

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        self.lock = threading.Lock()
        self.thread: threading.Thread | None = None

    def add(self, fd: int) -> None:
        """Close a connection soon; at once if no thread can be started."""
        with self.lock:
            self.waiting.append(fd)
            if self.thread is None:
                self._start()
        for _ in range(_PAUSES_MAX):
            if len(self.waiting) <= _PATIENT:
                return
            self.interrupt()
            if len(self.waiting) <= _WAITING_MAX:
                return
            time.sleep(_PAUSE_S)

    def _start(self) -> None:
        try:
            signal.signal(_INTERRUPT, lambda number, frame: None)
        except ValueError:
            pass  # this is not the main thread
        thread = threading.Thread(target=self._run, daemon=True, name="cyproducer-drop")
        try:
            thread.start()
            self.thread = thread
        except RuntimeError:  # the process may not have another thread
            _empty_and_close(self.waiting.pop())

    def _run(self) -> None:
        while True:
            with self.lock:
                if not self.waiting:
                    self.thread = None
                    return
                fd = self.waiting.popleft()
            _empty_and_close(fd)

    def interrupt(self) -> None:
        """End the wait of the thread for a socket that lingers."""
        with self.lock:  # the thread cannot end meanwhile
            if self.thread is not None and self.thread.ident is not None and callable(signal.getsignal(_INTERRUPT)):
                signal.pthread_kill(self.thread.ident, _INTERRUPT)


_dropper = _Dropper()


def _begin_again() -> None:
    """Forget the thread, which is that of the parent, and the connections, whose descriptors the child closes."""
    global _dropper
    _dropper = _Dropper()


os.register_at_fork(after_in_child=_begin_again)


def shut(sock: socket.socket) -> None:
    """End a connection for all processes that hold it. Its unread messages stay until drop()."""
    try:
        sock.shutdown(socket.SHUT_RDWR)  # from here on no message arrives
    except OSError:
        pass  # the peer has ended it


def drop(sock: socket.socket) -> None:
    """End a connection for all processes that hold it, discard its unread messages, and close it. Do not wait.

    Another thread closes it if the messages contain descriptors.
    """
    shut(sock)
    try:
        has_descriptors = _has_descriptors(sock)
    except OSError:
        has_descriptors = False
    if has_descriptors:
        _dropper.add(sock.detach())
    else:
        sock.close()


def wait_until_closed() -> None:
    """Wait for a moment, until all connections are closed that drop() was given."""
    give_up = time.monotonic() + _CLOSE_S
    while _dropper.thread is not None and time.monotonic() < give_up:
        _dropper.interrupt()
        time.sleep(_PAUSE_S)


def _has_descriptors(sock: socket.socket) -> bool:
    """Return whether an unread message has descriptors. Read the messages before it, which have none."""
    # With credentials in each message, an empty message differs from the end of the connection.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    for _ in range(_MESSAGES_MAX):
        _, ancillary, flags, _ = sock.recvmsg(1, _SPACE, _PEEK)
        if flags & socket.MSG_CTRUNC:
            return True
        if not ancillary:
            return False
        sock.recvmsg(1, _SPACE, socket.MSG_DONTWAIT)
    return True


def _empty_and_close(fd: int) -> None:
    with socket.socket(fileno=fd) as sock:
        try:
            for _ in range(_MESSAGES_MAX):
                _, ancillary, _, _ = sock.recvmsg(1, _SPACE, socket.MSG_DONTWAIT)
                if not ancillary:
                    return
        except OSError:
            pass
