"""Detaches the sender's processes from the process that started them: session, descriptors, limits, priority."""

import os
import resource
import signal
from collections.abc import Callable, Collection

__all__ = [
    "close_others",
    "forbid_core_dumps",
    "leave_environment",
    "low_limits",
    "name_process",
    "raise_limit",
    "raise_limits",
    "reap",
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
