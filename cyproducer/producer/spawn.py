"""Starts a sender process from inside somebody else's program, without running any of its Python.

posix_spawn of a plain interpreter: no fork of the caller, its handlers, locks or memory. What is started
forks once more, so that the sender is nobody's child: no application has to reap it, none ends it with its
own process group, and a handler that reaps every child (gunicorn's) only ever sees exit status 0.
"""

import errno
import fcntl
import importlib.util
import json
import os
import re
import signal
import sys
from typing import Any

from cyproducer.errors import SenderUnavailableError
from cyproducer.shm.build import SANITIZED
from cyproducer.shm.crash import DEBUG, crashpoint
from cyproducer.shm.rendezvous import Rendezvous, open_private
from cyproducer.shm.waiting import wait_readable

__all__ = ["SpawnLock", "Spawned", "interpreters", "spawn_sender"]

_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*[a-z]*(-[a-z]+)?")
# LD_LIBRARY_PATH: a Python built with a shared library in a place of its own does not start without it.
_ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "TZ", "HOME", "TMPDIR", "LD_LIBRARY_PATH")
if SANITIZED:
    _ENVIRONMENT += ("LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS")
_GUARD = "CYPRODUCER_SPAWNED"
_DESCRIPTORS = 4
# EBADF: posix_spawn means a number above the limit of this process.
_SCARCE = (errno.EAGAIN, errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_LOG_TAIL_BYTES = 2000
_FIRST_HALF_S = 1.0
# At the end of sys.path: a site-packages directory must not shadow the standard library.
_BOOTSTRAP = """
import os, sys
try:
    if sys.implementation.cache_tag != {tag!r}:
        os.write(1, b'{{"interpreter": "%s"}}' % sys.implementation.cache_tag.encode())
    elif os.fork() == 0:
        sys.path += {paths!r}
        from cyproducer.sender.process import main
        main()
except BaseException:
    sys.excepthook(*sys.exc_info())
finally:
    try:
        sys.stderr.flush()
    finally:
        os._exit(0)
""".strip()


class SpawnLock:
    """The right to start a sender for a rendezvous: of many processes that find none, one does it."""

    _held: "set[SpawnLock]" = set()  # noqa: RUF012 - of the process; emptied in a forked child

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1

    def try_acquire(self) -> bool:
        """Takes the lock if nobody has it. Raises OSError if the file cannot be made."""
        if self.fd >= 0:
            return True
        fd = open_private(self.path, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = os.path.samestat(os.fstat(fd), os.stat(self.path, follow_symlinks=False))
        except (BlockingIOError, FileNotFoundError):
            same = False
        except OSError:
            os.close(fd)
            raise
        if not same:
            os.close(fd)
            return False
        self.fd = fd
        SpawnLock._held.add(self)
        if DEBUG:
            crashpoint("attach.spawn-lock-taken")
        return True

    def release(self) -> None:
        """Unlinks the file and ends the lock. Again: nothing."""
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        SpawnLock._held.discard(self)
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        # Not by close() alone: a child that was forked meanwhile may hold the same open file description.
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)

    @classmethod
    def _forget_in_child(cls) -> None:
        held, cls._held = cls._held, set()
        for lock in held:
            fd, lock.fd = lock.fd, -1
            os.close(fd)


os.register_at_fork(after_in_child=SpawnLock._forget_in_child)


def interpreters() -> list[str]:
    """Paths of what may be a Python like this one, the best first.

    `sys.executable` is the server itself under uWSGI and the application when it is frozen: only a file whose
    name is an interpreter's is taken. Raises SenderUnavailableError if there is none.
    """
    chosen = os.environ.get("CYPRODUCER_PYTHON", "")
    if chosen:
        if not _is_executable(chosen):
            raise SenderUnavailableError(f"CYPRODUCER_PYTHON={chosen} is not a program that can be run")
        return [os.path.abspath(chosen)]
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    candidates = []
    if not getattr(sys, "frozen", False):
        candidates += [sys.executable, getattr(sys, "_base_executable", "")]
    for prefix in (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
        candidates += [os.path.join(prefix, "bin", name) for name in (version, "python3", "python")]
    candidates += [os.path.join(path, version) for path in os.get_exec_path() if os.path.isabs(path)]
    found = [
        path
        for path in dict.fromkeys(candidates)
        if path and _PYTHON_NAME.fullmatch(os.path.basename(path)) and _is_executable(path)
    ]
    if not found:
        raise SenderUnavailableError(
            f"no Python interpreter was found to run the sender with (this program is {sys.executable!r}); "
            f"set CYPRODUCER_PYTHON to a Python {version.removeprefix('python')}"
        )
    return found


def _paths() -> list[str]:
    """Where the sender finds this package, and the library that compresses, wherever they are installed."""
    library = importlib.util.find_spec("cramjam")
    origin = library.origin if library else None
    return list(dict.fromkeys([_PACKAGE_PARENT, *([os.path.dirname(os.path.dirname(origin))] if origin else [])]))


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


class Spawned:
    """A sender on its way. `fd` becomes readable when there is news; the first half of it is `pid`."""

    def __init__(self, pid: int, fd: int, log: str, log_size: int, python: str) -> None:
        self.pid = pid
        self.fd = fd
        self.python = python
        self._log = log
        self._log_size = log_size
        self._text = b""

    def news(self) -> dict[str, Any] | None:
        """What the process reported, {} if it ended without a word, None if it has not spoken yet."""
        self._reap()
        if self.fd < 0:
            return {}
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError:
            return None
        if data:
            self._text += data
        try:
            report = json.loads(self._text)
        except ValueError:
            report = None
        if isinstance(report, dict):
            self.close()
            return report
        if not data:
            self.close()
            return {}
        return None

    def log_tail(self) -> str:
        """What came into the log since the start, its end; of the report too if that is no report."""
        try:
            with open(self._log, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = self._log_size if size >= self._log_size else 0
                file.seek(max(start, size - _LOG_TAIL_BYTES))
                text = file.read()
        except OSError:
            text = b""
        return (text or self._text).decode(errors="replace").strip()

    def _reap(self) -> None:
        if self.pid > 0:
            try:
                pid, _ = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid = self.pid  # a handler of the application was faster, or it ignores SIGCHLD
            if pid:
                self.pid = 0

    def close(self) -> None:
        """Listens no longer and waits for the first half, which ends at once. Again: nothing."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)
        self._reap()
        if self.pid > 0:
            try:
                pidfd = os.pidfd_open(self.pid)
            except OSError:
                return
            wait_readable([pidfd], _FIRST_HALF_S)
            os.close(pidfd)
            self._reap()


def spawn_sender(python: str, rendezvous: Rendezvous, order: dict[str, Any]) -> Spawned:
    """Starts `python` as a sender; the order (settings and more, as JSON) is its standard input.

    Raises SenderUnavailableError if this process was itself started to be a sender (a program that poses as
    an interpreter) or gets no descriptors, OSError if `python` cannot be run.
    """
    if os.environ.get(_GUARD):
        raise SenderUnavailableError(
            f"this process ({sys.executable}) was started to be a sender, and it is another program; "
            "set CYPRODUCER_PYTHON to a Python interpreter"
        )
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in _ENVIRONMENT or name.startswith("CYPRODUCER_")
    }
    environment[_GUARD] = "1"
    code = _BOOTSTRAP.format(tag=sys.implementation.cache_tag, paths=_paths())
    arguments = [python, "-I", "-S", "-c", code, "cyproducer-sender", os.path.basename(rendezvous.stem)]
    opened: list[int] = []
    try:
        stdin, report, stdout, log = _descriptors(order, rendezvous.log, opened)
        log_size = os.fstat(log).st_size
        pid = os.posix_spawn(
            python,
            arguments,
            environment,
            setsid=True,
            setsigmask=[],
            setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            file_actions=_file_actions(stdin, stdout, log),
        )
        opened.remove(report)
        if DEBUG:
            crashpoint("attach.sender-spawned")
        return Spawned(pid, report, rendezvous.log, log_size, python)
    except OSError as error:
        if len(opened) == _DESCRIPTORS and error.errno not in _SCARCE:
            raise
        text = f"a sender cannot be started: {error.strerror}; check the limits of this process (ulimit -n, -u, -v)"
        raise SenderUnavailableError(text) from error
    finally:
        for fd in opened:
            os.close(fd)


def _descriptors(order: dict[str, Any], log: str, opened: list[int]) -> tuple[int, int, int, int]:
    """(order, end of the report that is read, end that is written, log), which are in `opened` too."""
    # A memfd rather than a pipe: settings of any size, and nobody waits for a reader.
    try:
        opened.append(os.memfd_create("cyproducer-order", os.MFD_CLOEXEC))
    except OSError as error:
        raise OSError(error.errno, f"memfd_create: {error.strerror}") from None
    os.write(opened[0], json.dumps(order).encode())
    os.lseek(opened[0], 0, os.SEEK_SET)
    opened.extend(os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
    opened.append(open_private(log, os.O_WRONLY | os.O_APPEND))
    order_fd, report, stdout, log_fd = opened
    return order_fd, report, stdout, log_fd


def _file_actions(stdin: int, stdout: int, log: int) -> list[tuple[int, ...]]:
    # To numbers above all of them first, lest one overwrites another: a daemon's 0-2 may be closed.
    free = max(stdin, stdout, log, 2) + 1
    actions: list[tuple[int, ...]] = []
    for at, fd in enumerate((stdin, stdout, log)):
        actions.append((os.POSIX_SPAWN_DUP2, fd, free + at))
    for at in range(3):
        actions.append((os.POSIX_SPAWN_DUP2, free + at, at))
        actions.append((os.POSIX_SPAWN_CLOSE, free + at))
    return actions
