"""Runs a command with a time limit, and ends all processes that it leaves."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36


class TooLongError(Exception):
    """The command was ended, because its time was over."""


def become_subreaper() -> None:
    """Let processes whose parent has ended become children of this one, so that it can end them."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def run(command: Sequence[str], directory: Path, environment: Mapping[str, str], output: Path, limit_s: float) -> int:
    """Run a command in a session of its own, with its output in a file, and return its exit status.

    All descendants of this process are ended before the function returns. Raise TooLongError.
    """
    deadline = time.monotonic() + limit_s
    try:
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        while (status := _reap(process.pid)) is None:
            if time.monotonic() > deadline:
                raise TooLongError
            time.sleep(0.02)
        process.returncode = status  # it is reaped already
        return status
    finally:
        _end_all()


def _reap(wanted: int) -> int | None:
    """Reap all children that have ended. Return the exit status of `wanted` if it is among them, negative for a signal.

    Orphans of the tests are children of this process. A test may wait until they are gone.
    """
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == wanted:
                found = os.waitstatus_to_exitcode(status)
    return found


def _end_all() -> None:
    """End all descendants of this process: senders have sessions of their own, and start each other again."""
    while running := _running():
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        _reap(0)
        time.sleep(0.02)
    _reap(0)


def _running() -> list[psutil.Process]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
