"""The processes of a run: workers that are told what to do line by line, and senders of the run's own."""

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
    """A runtime directory of the run's own, whose senders end with it."""
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
    """End the senders of the run; what they still had is dropped with them after ten seconds."""
    for sender in status():
        stop(sender["socket"], 10)


def sender_pids(*roles: str) -> list[int]:
    """Senders and supervisors of the run, or those of the roles "sender" or "supervisor" only."""
    wanted = roles or ("sender", "supervisor")
    return [pid for s in status() for role in wanted if (pid := s[f"{role}_pid"]) is not None]


def start_worker(module: str, order: dict[str, Any]) -> Worker:
    """A Python process of this package with pipes; its standard error is ours."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        process_group=0,  # Ctrl-C is for the run, which then ends its workers
    )


def kill_group(worker: Worker) -> None:
    """Kill a worker that has not ended well, with all that it has started (a JVM, forks), and wait for them."""
    try:
        started = psutil.Process(worker.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        started = []
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    # Those that have made a group of their own, as Spark's Python workers do.
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    worker.wait()
    deadline = time.monotonic() + 10
    while any(map(_lives, started)) and time.monotonic() < deadline:
        time.sleep(0.01)


def _lives(process: psutil.Process) -> bool:
    """Whether it runs; one that nobody has reaped yet does not."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def say(worker: Worker, text: str) -> None:
    """A line to a worker."""
    assert worker.stdin is not None
    worker.stdin.write(text + "\n")
    worker.stdin.flush()


def hear(worker: Worker, what: str) -> dict[str, Any]:
    """The next answer of a worker. Raises NotSupportedError if it says so, RuntimeError if it ended instead."""
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
    """Workers that have ended when the block has."""
    started: list[Worker] = []
    try:
        for order in orders:
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
def busy_neighbours(count: int) -> Iterator[None]:
    """Processes that compute all the time."""
    code = "import os, sys\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(100000))"
    started: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(count):
            started.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", code], process_group=0))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
