"""Starts a sender, for the first time or to replace one whose resource limits are lower than those of this process."""

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import posix
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any

from cyproducer import errors
from cyproducer.config.settings import Settings
from cyproducer.errors import SenderUnavailableError
from cyproducer.host import limits, lock_file
from cyproducer.host.interrupts import pass_on
from cyproducer.host.poll import wait_readable
from cyproducer.host.rendezvous import Rendezvous, open_private
from cyproducer.shm import system_clock
from cyproducer.shm.native import DEBUG, SANITIZED, crashpoint, in_child

__all__ = ["LimitedSenderError", "SpawnLock", "Spawned", "Starter", "interpreters", "spawn_sender"]


# ------------------------------------------------------------ replacement
#
# Decides whether a process replaces a sender that refuses it because of the sender's resource limits.


#: The largest number of replacements that one attach starts. Each replaced sender had lower limits than this process.
_REPLACEMENTS_MAX = 3


class LimitedSenderError(Exception):
    """A sender refused this process: its resource limits do not allow another front-end."""

    def __init__(self, path: str, answer: dict[str, Any], named: bool) -> None:
        super().__init__(f"the sender at {path} refuses this process: {answer.get('message')}")
        self.shortage = str(answer["shortage"])
        self.limits = answer.get("limits")
        #: It gets its OAuth tokens from producers, and was started by one of them.
        self.ends_only = answer.get("needs_token") is True
        self.stop = f"cyproducer stop --socket {path}"
        self.on_purpose = named or answer.get("replaceable") is not True

    def check(self, replacements: int) -> None:
        """Raise SenderUnavailableError unless this process should start a sender that replaces the refusing one.

        `replacements`: how many senders this attach has started.
        """
        if self.ends_only:
            raise self.to_error(
                "it gets its OAuth tokens from producers, so no other sender can take over from it: end it with "
                f"`{self.stop}`, and the next process that attaches starts a sender with its own limits (`ulimit -H`)"
            )
        if self.on_purpose:
            raise self.to_error(
                "it was started with `cyproducer sender`, or is named by the setting `sender`, so it is not replaced "
                "automatically: start it again with a higher limit (`ulimit -H`), or replace it with "
                "`cyproducer sender --replace`"
            )
        if not limits.are_higher(limits.reachable(), self.limits, self.shortage):
            ours = limits.describe(self.shortage, limits.reachable()) or "other limits, which are lower"
            raise self.to_error(
                f"a sender that this process starts would have no more, because this process has {ours}: raise the "
                "hard limit (`ulimit -H`) of this process, close producers, or start `cyproducer sender` with higher "
                "limits"
            )
        if replacements >= _REPLACEMENTS_MAX:
            raise self.to_error(
                "the senders that this process started to replace it reached their limits as well: close producers, "
                "or start `cyproducer sender` with higher limits"
            )

    def to_error(self, detail: str) -> SenderUnavailableError:
        """Return the error for the user: the refusal, and `detail`, which says why it is final and what to do."""
        return SenderUnavailableError(f"{self}; {detail}")


# ------------------------------------------------------------ process
#
# Starts a sender process from inside an application, without running any of the application's Python code.
#
# It calls posix_spawn with a plain interpreter: the application's handlers, locks and memory are not forked. The
# spawned process forks once more, so that the sender is not a child of the application. The application does not have
# to reap it, and a signal to the application's process group does not end it. A handler that reaps every child (such
# as gunicorn's) only sees exit status 0. The functions of `os` that gevent replaces wait for its handler of SIGCHLD,
# which misses a process that ends early: those of `posix` are used.


_PACKAGE_PARENT = os.path.dirname(os.path.dirname(os.path.abspath(errors.__file__)))
_PYTHON_NAME = re.compile(r"(python|pypy)[0-9.]*[a-z]*(-[a-z]+)?")
# LD_LIBRARY_PATH: needed by a Python whose shared library is not in a standard directory.
_ENVIRONMENT = ["PATH", "LANG", "LC_ALL", "TZ", "HOME", "TMPDIR", "LD_LIBRARY_PATH"]
if SANITIZED:
    _ENVIRONMENT += ["LD_PRELOAD", "ASAN_OPTIONS", "UBSAN_OPTIONS"]
#: For compression and the push of metrics: package and subpackage.
_LIBRARIES = (("cramjam", ""), ("opentelemetry", "proto"), ("google", "protobuf"))
#: For files in PKCS#12, and for Kerberos.
_CRYPTOGRAPHY, _GSSAPI = ("cryptography", ""), ("gssapi", "")
_GUARD = "CYPRODUCER_SPAWNED"
_DESCRIPTORS = 4
# EBADF: from posix_spawn it means a descriptor number above the limit of this process.
_SHORTAGES = (errno.EAGAIN, errno.EBADF, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_LOG_TAIL_BYTES = 2000
#: The holder of the lock shows every 0.1 s that it runs. After this time without that, others may start a sender.
SILENCE_S = 2.0
_BEATS = 1000
_FIRST_PROCESS_S = 1.0
# At the end of sys.path: a site-packages directory must not shadow the standard library.
_BOOTSTRAP = """
import os, sys
try:
    if sys.implementation.cache_tag != {tag!r}:
        os.write(1, b'{{"interpreter": "%s"}}' % sys.implementation.cache_tag.encode())
    elif os.fork() == 0:
        try:
            open('/proc/self/comm', 'w').write('cyp-supervisor')
        except OSError:
            pass
        sys.path += {paths!r}
        from cyproducer.sender.process.main import main
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
    """The right to start a sender for a rendezvous: if many processes find none, only one of them starts it.

    The holder shows that it runs by beat(), which changes the size of the file. A holder that does not call it for two
    seconds (it is stopped, or its thread does not run) loses the lock: others remove the file and lock a new one.
    If it continues after that, two senders are started, and the election leaves one of them.
    """

    _held: "set[SpawnLock]" = set()  # noqa: RUF012 - one per process; emptied in a forked child

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1
        self._seen: tuple[int, int, int] | None = None
        self._silent_since = 0.0
        self._beats = 0

    def beat(self) -> bool:
        """Show that the holder runs. Return False if another process has taken the lock; it is released then."""
        try:
            if lock_file.is_at(self.fd, self.path):
                self._beats = (self._beats + 1) % _BEATS
                try:
                    os.ftruncate(self.fd, self._beats)
                except OSError as error:  # RLIMIT_FSIZE: others may take the lock, which does little harm
                    pass_on(error)
                return True
        except FileNotFoundError as error:
            pass_on(error)
        self.release()
        return False

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Return whether it is held now. Raise OSError if the file cannot be created."""
        if self.fd >= 0:
            return True
        fd = open_private(self.path, os.O_RDWR)
        try:
            same = self._lock(fd)
        except BaseException:
            with contextlib.suppress(OSError):  # this process may have made the file; no other has its lock
                if lock_file.try_lock(fd, self.path):
                    os.unlink(self.path)
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

    def _lock(self, fd: int) -> bool:
        """Lock the open file. Return False if another process holds it, or another file is at the path."""
        try:
            return lock_file.try_lock(fd, self.path)
        except BlockingIOError as error:
            pass_on(error)
            self._watch_holder(os.fstat(fd))
            return False
        except FileNotFoundError as error:
            pass_on(error)
            return False

    def _watch_holder(self, file: os.stat_result) -> None:
        """Remove the file of a holder that has not called beat() for SILENCE_S."""
        now = system_clock.monotonic()
        seen = file.st_dev, file.st_ino, file.st_size
        if seen != self._seen:
            self._seen, self._silent_since = seen, now
        elif now - self._silent_since >= SILENCE_S:
            self._seen = None
            try:
                # Between the two calls another process may do the same. Two processes may then start a sender.
                if os.path.samestat(file, os.stat(self.path, follow_symlinks=False)):
                    os.unlink(self.path)
            except FileNotFoundError as error:
                pass_on(error)

    def release(self) -> None:
        """Unlock, and unlink the file unless it belongs to another process. Do nothing if called again."""
        if self.fd < 0:
            return
        fd, self.fd = self.fd, -1
        SpawnLock._held.discard(self)
        try:
            if lock_file.is_at(fd, self.path):
                os.unlink(self.path)
        except FileNotFoundError as error:
            pass_on(error)
        finally:
            # close() alone does not unlock if a forked child holds the same open file description.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    @classmethod
    def _forget_in_child(cls) -> None:
        held, cls._held = cls._held, set()
        for lock in held:
            fd, lock.fd = lock.fd, -1
            with contextlib.suppress(OSError):  # the program has closed it
                os.close(fd)


in_child(SpawnLock._forget_in_child)


def interpreters() -> list[str]:
    """Return paths that may be an interpreter like this one, the most likely first.

    Under uWSGI `sys.executable` is the server, and in a frozen application it is the application. So only files with
    the name of an interpreter are returned, or the application if it can be the sender. Raise SenderUnavailableError if
    there is none.
    """
    chosen = os.environ.get("CYPRODUCER_PYTHON", "")
    if chosen:
        if not _is_executable(chosen):
            raise SenderUnavailableError(
                f"CYPRODUCER_PYTHON={chosen} is not an executable file; set it to a Python interpreter"
            )
        return [os.path.abspath(chosen)]
    if getattr(sys, "_cyproducer_is_own_sender", False):  # cyproducer/pyinstaller has set it
        return [sys.executable]
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
            f"no Python interpreter was found to run the sender (this program is {sys.executable!r}); "
            f"set CYPRODUCER_PYTHON to a Python {version.removeprefix('python')}"
        )
    return found


def _paths(settings: Mapping[str, Any]) -> list[str]:
    """Return the directories from which the sender imports this package and the libraries that it may need."""
    libraries = list(_LIBRARIES)
    if settings.get("ssl_keystore_location") or settings.get("ssl_truststore_location"):
        libraries.append(_CRYPTOGRAPHY)
    if settings["security_protocol"].startswith("SASL") and settings["sasl_mechanism"] == "GSSAPI":
        libraries.append(_GSSAPI)
    found = [_PACKAGE_PARENT, *(_parent_of(name, part) for name, part in libraries)]
    return list(dict.fromkeys(path for path in found if path))


def _parent_of(name: str, part: str) -> str:
    """Return the directory that has the package `name` with the subpackage `part`; "": none. Import nothing.

    A namespace package has several directories, each with other subpackages.
    """
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # a module without a specification has taken the name
        spec = None
    for location in (spec.submodule_search_locations or ()) if spec else ():
        if os.path.isdir(os.path.join(location, part)):
            return os.path.dirname(os.path.abspath(location))
    return ""


def _is_executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


class Spawned:
    """A sender that is starting.

    `fd` becomes readable when the sender reports. `pid` is the spawned process, which forks the sender and ends.
    """

    def __init__(self, pid: int, fd: int, log: str, log_size: int, python: str) -> None:
        self.pid = pid
        self.fd = fd
        self.python = python
        self._log = log
        self._log_size = log_size
        self._text = b""

    def news(self) -> dict[str, Any] | None:
        """Return the report of the process; {} if it ended without one; None if there is none yet."""
        self._reap()
        if self.fd < 0:
            return {}
        try:
            data = os.read(self.fd, 65536)
        except BlockingIOError as error:
            pass_on(error)
            return None
        if data:
            self._text += data
        try:
            report = json.loads(self._text)
        except ValueError as error:
            pass_on(error)
            report = None
        if isinstance(report, dict):
            self.close()
            return report
        if not data:
            self.close()
            return {}
        return None

    def log_tail(self) -> str:
        """Return the end of what was logged since the start, at most 2000 bytes.

        If the log has nothing, return what the process wrote instead of a report.
        """
        try:
            with open(self._log, "rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = self._log_size if size >= self._log_size else 0
                file.seek(max(start, size - _LOG_TAIL_BYTES))
                text = file.read()
        except OSError as error:
            pass_on(error)
            text = b""
        return (text or self._text).decode(errors="replace").strip()

    def _reap(self) -> None:
        if self.pid > 0:
            try:
                pid, _ = posix.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid = self.pid  # the application has reaped it, or ignores SIGCHLD
            if pid:
                self.pid = 0

    def close(self) -> None:
        """Close `fd` and wait for process `pid`, which ends at once. Do nothing if called again."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            os.close(fd)
        self._reap()
        if self.pid > 0:
            try:
                pidfd = os.pidfd_open(self.pid)
            except OSError as error:
                pass_on(error)
                return
            wait_readable([pidfd], _FIRST_PROCESS_S)
            os.close(pidfd)
            self._reap()


def spawn_sender(python: str, rendezvous: Rendezvous, order: dict[str, Any]) -> Spawned:
    """Start `python` as a sender; `order` (settings and more) is its standard input, as JSON.

    Raise SenderUnavailableError if this process was itself started as a sender (a program that was mistaken for an
    interpreter) or a resource limit is reached, and OSError if `python` cannot be run.
    """
    if os.environ.get(_GUARD):
        raise SenderUnavailableError(
            f"this process ({sys.executable}) was started to be a sender, but it is not a Python interpreter; "
            "set CYPRODUCER_PYTHON to a Python interpreter"
        )
    environment = {
        name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith("CYPRODUCER_")
    }
    environment[_GUARD] = "1"
    arguments = [python, "cyproducer-sender", os.path.basename(rendezvous.stem)]
    if hasattr(sys, "_MEIPASS"):
        # PyInstaller puts the libraries of this program first, which are not those of another interpreter.
        environment["LD_LIBRARY_PATH"] = os.environ.get("LD_LIBRARY_PATH_ORIG", "")
    if python != sys.executable or not getattr(sys, "_cyproducer_is_own_sender", False):
        code = _BOOTSTRAP.format(tag=sys.implementation.cache_tag, paths=_paths(order["settings"]))
        arguments[1:1] = ["-I", "-S", "-c", code]
    opened: list[int] = []
    try:
        stdin, report, stdout, log = _descriptors(order, rendezvous.log, opened)
        log_size = os.fstat(log).st_size
        pid = posix.posix_spawn(
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
        pass_on(error)
        if len(opened) == _DESCRIPTORS and error.errno not in _SHORTAGES:
            raise
        text = f"cannot start a sender: {error.strerror}; check the limits of this process (ulimit -n, -u, -v)"
        raise SenderUnavailableError(text) from error
    finally:
        for fd in opened:
            os.close(fd)


def _descriptors(order: dict[str, Any], log: str, opened: list[int]) -> tuple[int, int, int, int]:
    """Return the descriptors (order, read end of the report, write end of the report, log). Add them to `opened`."""
    # A memfd, not a pipe: it takes settings of any size, and writing never waits for a reader.
    try:
        opened.append(os.memfd_create("cyproducer-order", os.MFD_CLOEXEC))
    except OSError as error:
        pass_on(error)
        raise OSError(error.errno, f"memfd_create: {error.strerror}") from None
    os.write(opened[0], json.dumps(order).encode())
    os.lseek(opened[0], 0, os.SEEK_SET)
    opened.extend(os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK))
    opened.append(open_private(log, os.O_WRONLY | os.O_APPEND))
    order_fd, report, stdout, log_fd = opened
    return order_fd, report, stdout, log_fd


def _file_actions(stdin: int, stdout: int, log: int) -> list[tuple[int, ...]]:
    # First to higher numbers, so that none overwrites another: in a daemon 0-2 may be closed, and these may have them.
    free = max(stdin, stdout, log, 2) + 1
    actions: list[tuple[int, ...]] = []
    for at, fd in enumerate((stdin, stdout, log)):
        actions.append((os.POSIX_SPAWN_DUP2, fd, free + at))
    for at in range(3):
        actions.append((os.POSIX_SPAWN_DUP2, free + at, at))
        actions.append((os.POSIX_SPAWN_CLOSE, free + at))
    return actions


# ------------------------------------------------------------ starter
#
# Starts a sender for this process, if no other process is starting it, and watches it until it is ready.


_SPAWN_PAUSE_S = 0.05
_ASK_S = 0.5


class Starter:
    """Starts a sender if this process gets the lock for that, and watches it until it is ready."""

    def __init__(self, settings: Settings, place: Rendezvous, description: dict[str, Any]) -> None:
        self.settings = settings
        self.place = place
        self.description = description
        self.lock = SpawnLock(place.spawn_lock)
        self.child: Spawned | None = None
        self.candidates: list[str] | None = None
        self.rejected: list[str] = []
        self.not_before = 0.0
        self.ask_at = 0.0
        self.replacements = 0

    def step(self, limited: LimitedSenderError | None) -> None:
        """Continue the start if no sender or a limited one answered. Raise SenderUnavailableError if that fails."""
        try:
            self._step(limited is not None)
        except SenderUnavailableError as error:
            if limited is None:
                raise
            raise limited.to_error(f"it cannot be replaced: {error}") from error

    def may_ask_again(self) -> bool:
        """Return whether to ask a limited sender again: it may have been replaced. False while a replacement starts."""
        now = system_clock.monotonic()
        if self.child is not None or (self.lock.fd < 0 and now < self.ask_at):
            return False
        self.ask_at = now + _ASK_S
        return True

    def _step(self, replace: bool) -> None:
        if self.lock.fd >= 0:
            self.lock.beat()
        if self.child is not None:
            self._watch(self.child)
        if self.child is None and system_clock.monotonic() >= self.not_before and self._may_start():
            self._start(replace)

    def _may_start(self) -> bool:
        try:
            if self.lock.fd >= 0:
                return True
            # Start in the next step: the last holder may have started a sender since this process looked.
            self.lock.try_acquire()
            return False
        except OSError as error:
            pass_on(error)
            raise SenderUnavailableError(
                f"cannot lock {self.place.spawn_lock}: {error.strerror}; check the runtime directory"
            ) from error

    def _start(self, replace: bool) -> None:
        if self.candidates is None:
            self.candidates = interpreters()
        if not self.candidates:
            raise SenderUnavailableError(
                f"no interpreter can run the sender ({'; '.join(self.rejected)}); set CYPRODUCER_PYTHON "
                f"to a Python of the same version as this program's ({sys.implementation.cache_tag})"
            )
        python = self.candidates[0]
        try:
            self.child = spawn_sender(python, self.place, {**self._order(), "replace": replace})
            self.replacements += replace
        except OSError as error:
            pass_on(error)
            self._reject(f"{python}: {error.strerror or error}")

    def _order(self) -> dict[str, Any]:
        return {
            "stem": self.place.stem,
            "socket": self.place.socket,
            "description_path": self.place.description,
            "identity": self.description,
            "settings": self.settings.sender_settings() | self.settings.secrets(),
            "sender_idle_timeout_ms": self.settings.sender_idle_timeout_ms,
        }

    def _reject(self, reason: str) -> None:
        assert self.candidates is not None
        self.rejected.append(reason)
        del self.candidates[0]

    def _watch(self, child: Spawned) -> None:
        report = child.news()
        if report is None:
            return
        self.child = None
        self.not_before = system_clock.monotonic() + _SPAWN_PAUSE_S
        child.close()
        if "interpreter" in report:
            self._reject(f"{child.python} is {report['interpreter']}")
            self.not_before = 0.0
        elif "error" in report:
            raise SenderUnavailableError(f"the sender could not start: {report['error']}")
        elif not report:
            self._reject(f"{child.python} ended without a report")
            if not self.candidates:
                raise SenderUnavailableError(self._crash(child))
            self.not_before = 0.0

    def _crash(self, child: Spawned) -> str:
        tail = child.log_tail()
        return f"the sender ended right after its start ({child.python}); " + (
            f"the end of its log {self.place.log}:\n{tail}" if tail else f"its log {self.place.log} is empty"
        )

    def descriptors(self) -> list[int]:
        """Return the descriptors that become readable when the started process reports."""
        return [self.child.fd] if self.child is not None and self.child.fd >= 0 else []

    def failure(self, seen: str, limited: LimitedSenderError | None) -> SenderUnavailableError:
        """Return the error for a deadline that came before a sender was ready."""
        text = self._describe_failure(seen)
        return SenderUnavailableError(text) if limited is None else limited.to_error(f"it was not replaced: {text}")

    def _describe_failure(self, seen: str) -> str:
        if self.child is not None:
            tail = self.child.log_tail()
            return f"the sender did not come up in time ({seen})" + (
                f"; its log {self.place.log}:\n{tail}" if tail else ""
            )
        return f"no sender at {self.place.socket} in time ({seen}); see its log {self.place.log}, or raise max_block_ms"

    def close(self) -> None:
        """Release the lock. A sender that is starting continues."""
        if self.child is not None:
            self.child.close()
            self.child = None
        self.lock.release()
