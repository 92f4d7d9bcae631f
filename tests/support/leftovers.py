"""Finds what a test left behind: processes, descriptors, mappings, threads and files of cyproducer."""

import contextlib
import gc
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cyproducer.host.lock_file import try_lock
from support.process import all_pids, command_of, is_running, kill9, users_of

# Files that a sender may leave in its runtime directory: other processes must not unlink the lock file; the log and
# the ledger of failures are for people. With another key, processes with the same secrets would not share a sender.
LASTING = (".lock", ".log", ".log.1", ".failures", "credentials.key")
LEAVES_S = 20.0
"""What belongs to a test may need so long to go on a machine that is busy; what stays is found all the same."""


@dataclass(slots=True)
class Holdings:
    """The resources of this process at one moment, and the processes of the machine."""

    processes: set[int] = field(default_factory=set)
    sockets: set[str] = field(default_factory=set)
    memfds: set[str] = field(default_factory=set)
    mappings: int = 0
    threads: set[str] = field(default_factory=set)


def holdings() -> Holdings:
    """Return the present holdings. A descriptor is listed by number and target, so that a reused number is noticed."""
    held = Holdings()
    held.processes = all_pids()
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue  # the descriptor of the listing itself
        if target.startswith("socket:"):
            held.sockets.add(f"{entry} -> {target}")
        elif target.startswith("/memfd:cyproducer"):
            held.memfds.add(f"{entry} -> {target}")
    held.mappings = Path("/proc/self/maps").read_text().count("/memfd:cyproducer")
    held.threads = {f"{t.name} {t.ident}" for t in threading.enumerate() if t.name.startswith("cyproducer")}
    return held


def leftovers(before: Holdings, runtime: Path, expected_pids: set[int], sockets: bool = True) -> list[str]:
    """Return one line for each thing that is there, was not there `before`, and is not expected."""
    now = holdings()
    # Only processes that started since: to check all others after every test would cost too much.
    fresh = now.processes - before.processes - expected_pids
    found = [f"child process {pid}: {_describe(pid)}" for pid in sorted(_our_children(fresh))]
    users = sorted(p.pid for p in users_of(runtime, fresh))
    found += [f"process {pid} uses the runtime directory: {_describe(pid)}" for pid in users]
    found += [f"memfd {fd}" for fd in sorted(now.memfds - before.memfds)]
    found += [f"thread {name}" for name in sorted(now.threads - before.threads)]
    if now.mappings > before.mappings:
        found.append(f"{now.mappings - before.mappings} mappings of memfds")
    if sockets:
        found += [f"socket {fd}" for fd in sorted(now.sockets - before.sockets)]
    if runtime.is_dir():
        found += [
            f"file {p.name} in the runtime directory"
            for p in sorted(runtime.rglob("*"))
            if not p.is_dir() and not p.name.endswith(LASTING)
        ]
    return found


def wait_for_nothing_left(
    before: Holdings, runtime: Path, expected_pids: set[int], sockets: bool = True, timeout: float = LEAVES_S
) -> list[str]:
    """Return the leftovers that remain after ``timeout`` seconds: an idle sender may need some time to exit."""
    deadline = time.monotonic() + timeout
    while found := leftovers(before, runtime, expected_pids, sockets):
        gc.collect()
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return found


def kill_leftovers(before: Holdings, runtime: Path, expected_pids: set[int]) -> None:
    """Send SIGKILL to the processes that ``leftovers`` would name.

    All are stopped first: otherwise a sender or supervisor that still runs would start the other one again.
    """
    for _ in range(2):
        fresh = all_pids() - before.processes - expected_pids
        found = _our_children(fresh) | {p.pid for p in users_of(runtime, fresh)}
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        for pid in found:
            kill9(pid)


def remove_spawn_locks(runtime: Path) -> None:
    """Remove the locks of front-ends that were killed while they started a sender; the next start would do it."""
    for path in runtime.glob("*.spawn"):
        with contextlib.suppress(FileNotFoundError, BlockingIOError), path.open("rb") as file:
            if try_lock(file.fileno(), str(path)):
                path.unlink()


def _our_children(pids: set[int]) -> set[int]:
    """Return those of the processes that run and are descendants of this one."""
    return {pid for pid in pids if is_running(pid) and _is_our_descendant(pid)}


def _is_our_descendant(pid: int) -> bool:
    try:
        return os.getpid() in (parent.pid for parent in psutil.Process(pid).parents())
    except psutil.Error:
        return False


def _describe(pid: int) -> str:
    try:
        return " ".join(command_of(psutil.Process(pid)))[:300]
    except psutil.Error:
        return "gone"
