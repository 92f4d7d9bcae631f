"""Starts and ends the processes of a run: workers that take commands line by line, and the run's own senders."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bench.contestants import NotSupportedError
from bench.contestants.base import OWN_DIRECTORY
from cyproducer.observe.status import status, stop

ROOT = Path(__file__).resolve().parents[1]
Worker = subprocess.Popen[str]


@contextlib.contextmanager
def own_senders() -> Iterator[None]:
    """Use a separate runtime directory for the run, and stop its senders at the end."""
    directory = tempfile.mkdtemp(prefix="cyp-bench-")
    before = os.environ.get(OWN_DIRECTORY)
    os.environ[OWN_DIRECTORY] = directory
    try:
        yield
    finally:
        try:
            stop_senders()
        finally:
            if before is None:
                del os.environ[OWN_DIRECTORY]
            else:
                os.environ[OWN_DIRECTORY] = before
            shutil.rmtree(directory, ignore_errors=True)


def stop_senders() -> None:
    """Stop the senders of the run. Records that are not delivered after ten seconds are dropped."""
    for sender in status():
        stop(sender["socket"], 10)


def sender_pids(*roles: str) -> list[int]:
    """Return the pids of the run's senders and supervisors, or of only one of the roles "sender" and "supervisor"."""
    wanted = roles or ("sender", "supervisor")
    return [pid for s in status() for role in wanted if (pid := s[f"{role}_pid"]) is not None]


def start_worker(module: str, order: dict[str, Any]) -> Worker:
    """Start a module of this package as a process with pipes; it inherits our standard error."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        process_group=0,  # only the run gets Ctrl-C; it then ends its workers
    )


@contextlib.contextmanager
def interrupts_after() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the end of the block.

    If `Popen` is interrupted after its fork, the caller does not know the new process.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        raise KeyboardInterrupt


def kill_group(worker: Worker) -> None:
    """Kill a worker that has not ended normally and all processes that it has started, and wait for them."""
    try:
        started = psutil.Process(worker.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    # Also kill processes that have made their own group, such as Spark's Python workers.
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    worker.wait()
    deadline = time.monotonic() + 10
    while any(map(_lives, started)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _lives(process: psutil.Process) -> bool:
    """Return whether the process runs. A zombie does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def say(worker: Worker, text: str) -> None:
    """Send a line to a worker."""
    assert worker.stdin is not None
    worker.stdin.write(text + "\n")
    worker.stdin.flush()


def hear(worker: Worker, what: str) -> dict[str, Any]:
    """Return the next answer of a worker. Raise NotSupportedError if it says so, RuntimeError if it has ended."""
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"{what} ended with status {worker.wait()}")
    answer: dict[str, Any] = json.loads(line)
    if "not_supported" in answer:
        raise NotSupportedError(answer["not_supported"])
    return answer


@contextlib.contextmanager
def workers_of(orders: list[dict[str, Any]], module: str = "bench.worker") -> Iterator[list[Worker]]:
    """Start workers, and wait for their end at the end of the block."""
    started: list[Worker] = []
    try:
        for order in orders:
            with interrupts_after():
                started.append(start_worker(module, order))
        yield started
        for worker in started:
            say(worker, "end")
        for worker in started:
            worker.wait(60)
    finally:
        for worker in started:
            if worker.poll() != 0:
                kill_group(worker)
            for stream in (worker.stdin, worker.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


@contextlib.contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Run processes that compute all the time."""
    code = "import os, sys\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100000))"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            with interrupts_after():
                started.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", code], process_group=0))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
