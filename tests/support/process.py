"""Runs pieces of Python as separate processes, waits for conditions, and ends processes by pid."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import psutil

T = TypeVar("T")


def wait_until(condition: Callable[[], T], timeout: float = 10.0, what: str = "the condition") -> T:
    """Poll until ``condition()`` is true and return its value; fail with the name ``what`` after ``timeout`` s."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come true within {timeout:g} s")
        time.sleep(0.02)


def kill9(pid: int, timeout: float = 10.0) -> None:
    """SIGKILL one process and wait until it has ended (a zombie counts as ended: another process reaps it)."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid), timeout, f"the end of process {pid}")


def is_running(pid: int) -> bool:
    """Return True if the process exists and is not a zombie.

    While another thread than the first one still ends, the process is called a zombie and has all its descriptors.
    """
    try:
        process = psutil.Process(pid)
        return process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD) or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def script_command(script: str | Path, *arguments: object) -> list[str]:
    """Return the command of a script: a Path is run as a file, a str is (indented) source text for ``-c``."""
    source = [str(script)] if isinstance(script, Path) else ["-c", textwrap.dedent(script)]
    return [sys.executable, "-X", "faulthandler", *source, *map(str, arguments)]


def script_environment(changes: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """Return this process's environment with ``changes`` (None removes) and this process's import path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for name, value in (changes or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    return environment


def run_script(
    script: str | Path,
    *arguments: object,
    timeout: float = 60.0,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path | None = None,
    input: str | None = None,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run a script file (Path) or source text (str) to its end; ``stdout`` and ``stderr`` are captured text.

    ``check`` fails the test if the exit status is not 0. At the timeout the process gets SIGABRT, so that
    faulthandler prints every thread's stack, and the test fails with what it printed.
    """
    with start_script(script, *arguments, env=env, cwd=cwd) as process:
        late = False
        try:
            out, err = process.communicate(input, timeout)
        except subprocess.TimeoutExpired:
            late = True
            process.send_signal(signal.SIGABRT)
            try:
                out, err = process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
    printed = f"--- stdout\n{out}\n--- stderr\n{err}"
    if late:
        raise AssertionError(f"the script did not end within {timeout:g} s\n{printed}")
    if check and process.returncode != 0:
        raise AssertionError(f"the script ended with status {process.returncode}\n{printed}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def cyproducer(*arguments: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Run the command `cyproducer` to its end."""
    command = [sys.executable, "-m", "cyproducer", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def start_module(log: Path, environment: Mapping[str, str | None], *arguments: object) -> "subprocess.Popen[bytes]":
    """Start ``python -m ARGUMENTS`` in the directory of the log, which gets what it writes."""
    with open(log, "wb") as file:
        return subprocess.Popen(
            [sys.executable, "-m", *map(str, arguments)],
            env=script_environment(environment),
            cwd=log.parent,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )


@contextlib.contextmanager
def start_script(
    script: str | Path,
    *arguments: object,
    env: Mapping[str, str | None] | None = None,
    cwd: str | Path | None = None,
) -> Iterator["subprocess.Popen[str]"]:
    """Start a script (as ``run_script``) with all three pipes; killed at the end of the block."""
    process = subprocess.Popen(
        script_command(script, *arguments),
        env=script_environment(env),
        cwd=cwd,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def sender_processes(runtime_directory: str | Path) -> list[psutil.Process]:
    """Return the senders that were started for producers of a runtime directory, and their supervisors."""
    return [p for p in users_of(runtime_directory) if "cyproducer-sender" in command_of(p)]


def senders(runtime_directory: str | Path) -> list[psutil.Process]:
    """Return those of the `sender_processes` that are senders."""
    return [p for p in sender_processes(runtime_directory) if name_of(p) == "cyp-sender"]


def supervisors(runtime_directory: str | Path) -> list[psutil.Process]:
    """Return those of the `sender_processes` that are supervisors."""
    return [p for p in sender_processes(runtime_directory) if name_of(p) == "cyp-supervisor"]


def name_of(process: psutil.Process) -> str:
    """Return the name that the process has set for itself; empty if it has ended."""
    try:
        return Path(f"/proc/{process.pid}/comm").read_text().strip()
    except OSError:
        return ""


def kill_senders(runtime_directory: str | Path) -> None:
    """SIGKILL all senders and supervisors. All are stopped first, so that none can start another."""
    found = sender_processes(runtime_directory)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
    for process in found:
        wait_until(lambda pid=process.pid: not is_running(pid), what=f"the end of process {process.pid}")


def below_of(pid: int) -> list[psutil.Process]:
    """Return the children of a process, their children, and so on; none if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).children(recursive=True)
    return []


def all_pids() -> set[int]:
    """Return the pids of all processes of the machine, with zombies."""
    return {int(entry) for entry in os.listdir("/proc") if entry.isdigit()}


def users_of(directory: str | Path, among: set[int] | None = None) -> list[psutil.Process]:
    """Return the processes other than this one that name a directory in their command line or initial environment.

    Only the processes of ``among`` are checked; without it, all processes of the machine.
    """
    wanted = os.fsencode(directory)
    found = []
    # Read raw: psutil's objects for every process of the machine would cost too much.
    for pid in (all_pids() if among is None else among) - {os.getpid()}:
        if wanted in proc_file(pid, "cmdline") or wanted in proc_file(pid, "environ"):
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(pid))
    return found


def proc_file(pid: int, name: str) -> bytes:
    """Return a file of a process from /proc; empty if this user may not read it, or the process has ended.

    The environment of a sender with secrets can be read by root only.
    """
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def command_of(process: psutil.Process) -> list[str]:
    """Return the command line of a process; empty if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []
