"""Has what makes the sender's processes: detaching from the one that started them, forks, end signals, threads."""

import contextlib
import os
import resource
import signal
import socket
import threading
import warnings
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

__all__ = [
    "PeerProcess",
    "Signals",
    "blocked",
    "close_others",
    "forbid_core_dumps",
    "fork",
    "leave_environment",
    "low_limits",
    "name_process",
    "raise_limit",
    "raise_limits",
    "reap",
    "start_thread",
    "start_time",
    "state_of",
    "to_null",
]

_AFFINITY_CPUS_MAX = 4096
#: Limits that a sender can reach, through its front-ends' arenas, descriptors and mappings, its log, its CPU time and
#: its forks. Other settings stay as they are inherited. RLIMIT_CORE: the administrator decides about core files.
#: RLIMIT_MEMLOCK: a sender locks no memory. RLIMIT_RSS and RLIMIT_LOCKS: they have no effect. oom_score_adj: a service
#: or a container has set it for all its processes, and a sender serves only one service or container.
_LIMITS = {
    resource.RLIMIT_NOFILE: "RLIMIT_NOFILE",
    resource.RLIMIT_AS: "RLIMIT_AS",
    resource.RLIMIT_DATA: "RLIMIT_DATA",
    resource.RLIMIT_FSIZE: "RLIMIT_FSIZE",
    resource.RLIMIT_CPU: "RLIMIT_CPU",
    resource.RLIMIT_NPROC: "RLIMIT_NPROC",
}
_STACK_BYTES = 8 << 20  # Linux' default
#: Enough for some 680 front-ends: each needs six descriptors.
_DESCRIPTORS_WANTED = 4096
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_THREAD_STACK_BYTES = 256 << 10


def leave_environment() -> None:
    """Replace what is inherited from the starting process: session, descriptors, directory, limits, priority."""
    to_null(0)
    close_others(())
    os.setsid()  # the spawned process led a session; this process was forked from it
    os.chdir("/")
    os.umask(0o077)
    attempts: tuple[Callable[[], None], ...] = (
        lambda: os.setpriority(os.PRIO_PROCESS, 0, 0),
        lambda: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0)),
        lambda: os.sched_setaffinity(0, range(_AFFINITY_CPUS_MAX)),
    )
    for attempt in attempts:
        try:
            attempt()
        except (OSError, ValueError):
            pass  # not permitted: the inherited value stays
    raise_limits()


def raise_limits() -> None:
    """Raise the soft limits that a sender can reach: the starting process chose its soft limits for itself only."""
    for limit in _LIMITS:
        raise_limit(limit)
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if _is_less(soft, _STACK_BYTES):
        most = _STACK_BYTES if not _is_less(hard, _STACK_BYTES) else hard
        resource.setrlimit(resource.RLIMIT_STACK, (most, hard))


def raise_limit(limit: int) -> None:
    """Remove the limit if this process may (CAP_SYS_RESOURCE), else raise the soft limit to the hard limit."""
    try:
        _, hard = resource.getrlimit(limit)
        most = _most_descriptors() if limit == resource.RLIMIT_NOFILE else resource.RLIM_INFINITY
        for wanted in (most, hard):
            if _is_less(wanted, hard):
                continue
            try:
                resource.setrlimit(limit, (wanted, wanted))
                return
            except (OSError, ValueError):
                pass  # not permitted
    except (OSError, ValueError):
        pass


def low_limits() -> str:
    """Return the limits that a sender with many front-ends can reach, as text for its log; "" if there are none."""
    found = []
    for limit, name in _LIMITS.items():
        if limit == resource.RLIMIT_NPROC:
            continue  # most systems limit it, but far above the needs of a sender
        soft, _ = resource.getrlimit(limit)
        if _is_less(soft, _DESCRIPTORS_WANTED if limit == resource.RLIMIT_NOFILE else resource.RLIM_INFINITY):
            found.append(f"{name}={soft}")
    return ", ".join(found)


def _is_less(limit: int, other: int) -> bool:
    if limit == resource.RLIM_INFINITY:
        return False
    return other == resource.RLIM_INFINITY or limit < other


def _most_descriptors() -> int:
    """Return the largest RLIMIT_NOFILE that the kernel accepts; 0 if it cannot be read."""
    try:
        with open("/proc/sys/fs/nr_open") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def to_null(*fds: int) -> None:
    """Replace the descriptors with /dev/null."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        os.dup2(null, fd)
    if null not in fds:
        os.close(null)


def close_others(kept: Collection[int]) -> None:
    """Close all descriptors except 0, 1, 2 and `kept`."""
    last = 2
    for fd in sorted(fd for fd in kept if fd > 2):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)


def forbid_core_dumps() -> None:
    """Let the kernel write no core dump of this process and its forked children: they have secrets.

    With a limit of 1 byte it writes none, not even to a pipe (core(5)). A hard limit of 0 stays, because only root may
    raise it: with that, hide_memory() prevents the dump to a pipe.
    """
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))


def name_process(name: str) -> None:
    """Set the name that `ps` and `top` show; at most 15 bytes."""
    try:
        # Of the thread: the file of the process belongs to root after hide_memory().
        with open("/proc/thread-self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass


def state_of(pid: int) -> str:
    """Return a process' state from /proc/PID/stat (proc(5)); "" if it is gone.

    "T": stopped, "t": traced, "Z": its main thread has ended.
    """
    return _stat(pid, 0)


def start_time(pid: int) -> str:
    """Return when a process started, in clock ticks since boot; "" if it has ended.

    The kernel reuses pids: two processes with the same pid have different start times.
    """
    return _stat(pid, 19)


def _stat(pid: int, field: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[field]
    except (OSError, IndexError):
        return ""


def reap(pidfd: int) -> str:
    """Reap an ended child and return how it ended ("SIGKILL", "status 1"); "" for any other process."""
    try:
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
    except ChildProcessError:
        return ""
    if result is None:
        return ""
    if result.si_code == os.CLD_EXITED:
        return f"status {result.si_status}"
    try:
        return signal.Signals(result.si_status).name
    except ValueError:
        return f"signal {result.si_status}"


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
        for number in _END_SIGNALS:
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
    former = signal.pthread_sigmask(signal.SIG_BLOCK, _END_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def start_thread(work: Callable[[], None], name: str) -> threading.Thread | None:
    """Run `work`, which may wait for a file system, in a daemon thread, which does not delay the end of the process.

    fork() is safe beside it: it must hold no lock while it waits, and a child starts its own threads. Return None if
    the process may not have another thread.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    former = threading.stack_size(_THREAD_STACK_BYTES)
    try:
        thread.start()
    except RuntimeError:
        return None
    finally:
        threading.stack_size(former)
    return thread
