"""Writes the log of the sender and the supervisor without ever waiting.

Standard error may be a terminal that is stopped, a pipe whose reader hangs, or a file on a file system that does not
answer. So a log call writes to an internal, non-blocking pipe, and a thread of the supervisor copies from that pipe to
the real log. The sender shares the pipe and has no such thread. If the pipe is full, the line is dropped and counted,
and a later line says how many were dropped. If the supervisor dies, the pipe keeps the lines until the next supervisor,
which is forked from the sender, reads them.
"""

import array
import fcntl
import logging
import os
import select
import termios
import threading
import time
from collections.abc import Callable

from cyproducer.observe.logfmt import formatter_of
from cyproducer.sender.system.daemonise import start_thread

__all__ = ["LogRelay"]

ROTATE_BYTES = 1 << 20
#: How long flush() and close() each wait for the log to be written.
FLUSH_S = 1.0
_READ_BYTES = 4096  # a supervisor that is killed loses no more than this
_FLUSH_POLL_S = 0.002


class LogRelay(logging.Handler):
    """Writes lines to standard error, or to the file at `path`, and never waits for it.

    With a path, standard error is redirected to that file. A file of more than 1 MiB is renamed to `path.1`. Several
    senders may write to one file: a sender that finds another file at the path continues with that file.

    `log_format` is "logfmt" or "json"; without it CYPRODUCER_LOG_FORMAT decides. Lines of more than 4 KiB may be cut if
    the pipe is nearly full. Owns three descriptors: the two ends of the pipe and a copy of standard error.
    """

    def __init__(self, path: str | None = None, log_format: str | None = None) -> None:
        super().__init__()
        self.path = path
        self.setFormatter(formatter_of(log_format or os.environ.get("CYPRODUCER_LOG_FORMAT")))
        self.reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.writer, False)
        self.target = _standard_error()
        self._owns_standard_error = True
        self._thread: threading.Thread | None = None
        self._busy = False
        self._dropped = 0  # lines of this process that did not fit into the pipe
        self._torn = False  # the last write to the pipe was only a part of a line
        self._lost = 0  # lines that could not be written to the log; used by the thread only

    def descriptors(self) -> set[int]:
        """Return the descriptors that the sender and the supervisor both keep open."""
        return {self.reader, self.writer, self.target}

    def start(self, first: Callable[[], None] | None = None) -> None:
        """Start the thread that copies from the pipe to the log. Only one process may have this thread at a time.

        The thread calls `first` before it copies: work with files that may wait for the file system, or fail.
        """
        if self._thread is not None:
            return
        # If no thread can be started, lines that do not fit into the pipe are dropped and counted.
        self._thread = start_thread(lambda: self._copy(first), "cyproducer-log")

    def forget_thread(self) -> None:
        """Adapt to a fork, in the child: the thread stays with the parent, and standard error becomes the pipe.

        So what the interpreter itself writes when it crashes also reaches the log, and is also written without waiting.
        """
        self._thread = None
        self._busy = False
        self._owns_standard_error = False
        os.dup2(self.writer, 2)

    # ------------------------------------------------------------------ writing to the pipe

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped and self._put(self._notice(self._dropped)):
                self._dropped = 0
            if self._dropped or not self._put(self.format(record)):
                self._dropped += 1
        except OSError:
            pass  # the log must not end the sender

    def _put(self, line: str) -> bool:
        """Write a line to the pipe; False if the pipe has no space for all of it."""
        data = ("\n" * self._torn + line + "\n").encode(errors="backslashreplace")
        try:
            written = os.write(self.writer, data)
        except BlockingIOError:
            return False
        self._torn = written < len(data)
        return not self._torn

    def _notice(self, lines: int) -> str:
        text = f"{lines} lines of the log were dropped because they could not be written"
        return self.format(logging.LogRecord("", logging.WARNING, "", 0, text, (), None))

    def flush(self) -> None:
        """Wait until the log is written, for one second at most; do nothing in a process without the thread."""
        deadline = time.monotonic() + FLUSH_S
        while self._thread is not None and (self._unread() or self._busy) and time.monotonic() < deadline:
            time.sleep(_FLUSH_POLL_S)

    def _unread(self) -> int:
        count = array.array("i", [0])
        fcntl.ioctl(self.reader, termios.FIONREAD, count)
        return count[0]

    def close(self) -> None:
        """Flush, end the thread and close the descriptors. A second call does nothing.

        A thread that still waits for the log keeps running, with the descriptors that it uses.
        """
        super().close()
        if self.writer < 0:
            return
        self.flush()
        os.close(self.writer)
        self.writer = -1
        if self._thread is not None:
            self._thread.join(FLUSH_S)
            if self._thread.is_alive():
                return
        os.close(self.reader)
        os.close(self.target)

    # ------------------------------------------------------------------ the thread

    def _copy(self, first: Callable[[], None] | None) -> None:
        try:
            if first is not None:
                first()
        except OSError as error:
            self.emit(logging.LogRecord("", logging.WARNING, "", 0, "%s", (error,), None))
        poller = select.poll()
        poller.register(self.reader, select.POLLIN)
        while True:
            poller.poll()
            self._busy = True  # before the read: flush() sees either bytes in the pipe or this
            data = os.read(self.reader, _READ_BYTES)
            if not data:
                return
            self._deliver(data)
            self._busy = False

    def _deliver(self, data: bytes) -> None:
        try:
            if self.path is not None and not self._is_current(self.path):
                self._open(self.path)
            if self._lost:
                self._write((self._notice(self._lost) + "\n").encode())
                self._lost = 0
            self._write(data)
            if self.path is not None and os.fstat(self.target).st_size > ROTATE_BYTES:
                os.replace(self.path, self.path + ".1")
                self._open(self.path)
        except OSError:
            self._lost += data.count(b"\n")  # for example a full disk or a closed terminal

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self.target, data) :]
            except BlockingIOError:  # another process has made it non-blocking
                poller = select.poll()
                poller.register(self.target, select.POLLOUT)
                poller.poll()

    def _is_current(self, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(self.target), os.stat(path))
        except FileNotFoundError:
            return False

    def _open(self, path: str) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.dup2(fd, self.target, inheritable=False)
            if self._owns_standard_error:
                os.dup2(fd, 2)
        finally:
            os.close(fd)


def _standard_error() -> int:
    """Return a copy of descriptor 2, or a descriptor of /dev/null if 2 is closed."""
    try:
        return fcntl.fcntl(2, fcntl.F_DUPFD_CLOEXEC, 3)
    except OSError:
        return os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
