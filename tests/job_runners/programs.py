"""Runs the servers of a job runner, and ends them with all processes that they have started."""

import contextlib
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from support.process import below_of, start_module, wait_until

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STARTS_S = 600
ENDS_S = 60
"""So long a server may need on a busy machine until it answers, and to end by itself."""


@contextlib.contextmanager
def program(log: Path, environment: Mapping[str, str], *arguments: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Run ``python -m ARGUMENTS``. At the end it gets SIGINT, and is killed with its children if it stays."""
    process = start_module(log, environment, *arguments)
    try:
        yield process
    finally:
        children = below_of(process.pid)
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_S)
        for each in (*children, *below_of(process.pid)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.kill()
        process.wait()


def wait_for_answer(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Wait until a server answers; fail with its log if it has ended."""

    def answers() -> bool:
        assert server.poll() is None, log.read_text()
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=20):
            return True
        return False

    wait_until(answers, STARTS_S, f"an answer from {url}")
