"""Reaps ended senders and supervisors that became children of a process that did not start them.

When the process that started a supervisor has ended, the kernel makes the supervisor a child of PID 1 of its PID
namespace, or of the nearest ancestor that is a child subreaper (prctl(2)). In a container without an init process this
may be an application. The application does not know of this child, so each ended sender would leave a zombie.
"""

import contextlib
import os

from cyproducer.host.interrupts import pass_on
from cyproducer.shm.native import is_subreaper

__all__ = ["reap_orphans"]

_NAMES = frozenset({"cyp-supervisor", "cyp-sender", "cyp-helper"})


def reap_orphans() -> None:
    """Reap the ended senders and supervisors of this process if it gets orphans as children; no other child."""
    if os.getpid() != 1 and not is_subreaper():
        return
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return
        zombies = [pid for pid in _children() if _is_ours_and_dead(pid)]
    except OSError as error:  # no child at all, or no /proc
        pass_on(error)
        return
    for pid in zombies:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _children() -> list[int]:
    """Return the children of all threads; all processes if the kernel has no CONFIG_PROC_CHILDREN."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/children", "rb") as file:
                found += map(int, file.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/self/task/{thread}"):
                return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return found


def _is_ours_and_dead(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
    except OSError as error:
        pass_on(error)
        return False
    state, parent = rest.split()[:2]
    return state == "Z" and int(parent) == os.getpid() and head.partition("(")[2] in _NAMES
