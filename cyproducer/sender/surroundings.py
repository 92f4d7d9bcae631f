"""What a sender's processes keep, and do not keep, of the process that they came from."""

import os
import resource
import signal
from collections.abc import Callable, Collection

__all__ = [
    "close_others",
    "leave_surroundings",
    "name_process",
    "raise_limit",
    "reap",
    "start_time",
    "state_of",
    "to_null",
]

_AFFINITY_CPUS_MAX = 4096


def leave_surroundings() -> None:
    """Nothing of the process that started it stays: session, descriptors, directory, limits, priority."""
    to_null(0)
    close_others(())
    os.setsid()  # the spawned half led a session; this one was forked from it
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
            pass  # not permitted: what was inherited stays
    for limit in ("NOFILE", "AS", "DATA", "FSIZE", "CPU"):
        raise_limit(getattr(resource, f"RLIMIT_{limit}"))


def raise_limit(limit: int) -> None:
    """Raises the soft limit to the hard one: the application's own choice is not the sender's."""
    try:
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (hard, hard))
    except (OSError, ValueError):
        pass


def to_null(*fds: int) -> None:
    """Makes /dev/null of descriptors."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        os.dup2(null, fd)
    if null not in fds:
        os.close(null)


def close_others(kept: Collection[int]) -> None:
    """Closes all descriptors but 0, 1, 2 and `kept`."""
    last = 2
    for fd in sorted(fd for fd in kept if fd > 2):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)


def name_process(name: str) -> None:
    """What `ps` and `top` show; at most 15 bytes."""
    try:
        with open("/proc/self/comm", "w") as file:
            file.write(name)
    except OSError:
        pass


def state_of(pid: int) -> str:
    """The state of a process as /proc/PID/stat has it (proc(5)): "T" stopped, "t" traced; "" if it is gone."""
    return _stat(pid, 0)


def start_time(pid: int) -> str:
    """Of a process, in clock ticks since boot: with it a pid that was used again is told apart."""
    return _stat(pid, 19)


def _stat(pid: int, field: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[field]
    except (OSError, IndexError):
        return ""


def reap(pidfd: int) -> str:
    """How a process that has ended did so, if it is a child of this one: "SIGKILL", "status 1"; else ""."""
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
