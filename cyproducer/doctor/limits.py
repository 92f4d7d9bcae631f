"""Checks limits: those of processes and of the cgroup, system calls, the runtime directory, and PID 1."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from cyproducer.config.settings import Settings
from cyproducer.config.table import BY_NAME, MIB
from cyproducer.doctor.finding import Finding, of_error, ok, problem, warning
from cyproducer.host import limits
from cyproducer.host.rendezvous import RendezvousError, runtime_directory, searched_directories

__all__ = ["check_limits", "memory_limit"]

CHECK = "limits"
# What a sender needs for itself and for each process, see docs/operations/sharing.md.
_OWN_DESCRIPTORS, _DESCRIPTORS_EACH = 24, 7
_OWN_ADDRESS_SPACE = 155 * MIB
_FEW_PROCESSES = 16
#: Programs that reap each child, by their name in /proc/1/comm.
_INITS = (
    *("systemd", "init", "tini", "tini-static", "docker-init", "dumb-init", "catatonit", "s6-svscan", "runit"),
    *("supervisord", "bash", "openrc-init", "pause"),
)


def check_limits(settings: Settings | None) -> Iterator[Finding]:
    """Yield what is found. Without settings, the defaults count."""
    buffer_memory = settings.buffer_memory if settings is not None else BY_NAME["buffer_memory"].default
    yield _check_descriptors()
    yield from _check_sizes(buffer_memory)
    yield from _check_system_calls()
    yield _check_runtime_directory()
    yield from _check_cgroup(buffer_memory)
    yield from _check_first_process()


def _check_descriptors() -> Finding:
    most = limits.reachable()["RLIMIT_NOFILE"]
    if most < 0:
        return ok(CHECK, "descriptors have no limit")
    processes = (most - _OWN_DESCRIPTORS) // _DESCRIPTORS_EACH
    text = f"{most} descriptors (ulimit -Hn) are enough for {max(processes, 0)} processes of a sender"
    if processes < 1:
        return problem(CHECK, f"{most} descriptors (ulimit -Hn) are too few for a sender", "raise the limit")
    return (
        warning(CHECK, text, "raise the limit if more shall share it")
        if processes < _FEW_PROCESSES
        else ok(CHECK, text)
    )


def _check_sizes(buffer_memory: int) -> Iterator[Finding]:
    """Check the limits of address space and of the size of files, which count for shared memory too."""
    most = limits.reachable()
    for name, option in (("RLIMIT_AS", "-Hv"), ("RLIMIT_DATA", "-Hd")):
        if most[name] < 0:
            continue
        processes = max((most[name] - _OWN_ADDRESS_SPACE) // buffer_memory, 0)
        text = f"{name} of {most[name] // MIB} MiB (ulimit {option}) is enough for {processes} processes of a sender"
        if not processes:
            advice = "raise it, or give a smaller buffer_memory"
            yield problem(CHECK, f"{name} of {most[name] // MIB} MiB (ulimit {option}) is too low for a sender", advice)
        elif processes < _FEW_PROCESSES:
            yield warning(CHECK, text, "raise it, or give a smaller buffer_memory, if more shall share it")
        else:
            yield ok(CHECK, text)
    size = most["RLIMIT_FSIZE"]
    if 0 <= size < buffer_memory:
        text = f"files of at most {size // MIB} MiB (ulimit -Hf) are too small for the shared memory of a process"
        yield problem(CHECK, text, "raise it, or give a smaller buffer_memory")


def _check_system_calls() -> Iterator[Finding]:
    failed = False
    calls: tuple[tuple[str, Callable[[], int]], ...] = (
        ("memfd_create", lambda: os.memfd_create("cyproducer-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)),
        ("pidfd_open", lambda: os.pidfd_open(os.getpid())),
    )
    for name, call in calls:
        try:
            os.close(call())
        except OSError as error:
            failed = True
            advice = "allow it in the seccomp profile of the container"
            yield problem(CHECK, f"the system call {name} fails: {error.strerror}", advice)
    if not failed:
        yield ok(CHECK, "the system calls memfd_create and pidfd_open work")


def _check_runtime_directory() -> Finding:
    try:
        return ok(CHECK, f"the runtime directory is {runtime_directory(make=False)}")
    except RendezvousError as error:
        missing = [path for path in searched_directories() if not os.path.lexists(path)]
        for path in missing:
            if os.access(os.path.dirname(path), os.W_OK | os.X_OK, effective_ids=True):
                return ok(CHECK, f"the runtime directory {path} does not exist yet; the first producer makes it")
        return of_error(CHECK, error)


# ---------------------------------------------------------------- memory of the cgroup


def memory_limit(cgroup: str, root: str = "/sys/fs/cgroup") -> int | None:
    """Return the lowest memory limit in bytes of this process' cgroups; None: there is none.

    cgroup: the text of /proc/self/cgroup. root: where cgroups are mounted.
    """
    found = []
    for line in cgroup.splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if number == "0" and not controllers:
            top, name = Path(root), "memory.max"
        elif "memory" in controllers.split(","):
            top, name = Path(root, "memory"), "memory.limit_in_bytes"
        else:
            continue
        here = top / path.lstrip("/")
        for directory in (here, *(parent for parent in here.parents if parent.is_relative_to(top))):
            try:
                found.append(int((directory / name).read_text()))
            except (OSError, ValueError):  # the root has no such file; "max" is no limit
                continue
    limit = min(found, default=None)
    return None if limit is None or limit >= 1 << 60 else limit  # the first version has a large number for no limit


def _check_cgroup(buffer_memory: int) -> Iterator[Finding]:
    try:
        limit = memory_limit(Path("/proc/self/cgroup").read_text())
    except OSError:
        return
    if limit is None:
        return
    processes = limit // buffer_memory
    text = (
        f"the memory limit of the cgroup is {limit // MIB} MiB; buffer_memory is {buffer_memory // MIB} MiB of shared "
        "memory for each process"
    )
    if processes < 2:
        yield warning(CHECK, text, "raise the limit of the container or service, or give a smaller buffer_memory")
    else:
        yield ok(CHECK, text)


def _check_first_process() -> Iterator[Finding]:
    """Check whether PID 1 reaps senders that end: the kernel makes it their parent."""
    try:
        name = Path("/proc/1/comm").read_text().strip()
    except OSError:
        return
    if name in _INITS:
        yield ok(CHECK, f"PID 1 is {name}, which reaps ended processes")
    else:
        yield warning(
            CHECK,
            f"PID 1 is {name}, which may not reap the senders that end",
            "use an init process (docker run --init), unless PID 1 is an application that imports cyproducer",
        )
