"""Observes and kills a sender and its supervisor from outside, and runs a foreground sender with a patch."""

import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cyproducer
from cyproducer.host import control_messages
from cyproducer.observe.status import status, stop
from support.process import is_running, kill9, script_command, script_environment, wait_until

NOWHERE = "127.0.0.1:9"
ROOT = Path(cyproducer.__file__).resolve().parents[1]  # installed, or the source tree


def the_sender() -> dict[str, Any]:
    """Return the status of the only sender."""
    (found,) = status()
    return found


def kill(which: str) -> int:
    """SIGKILL the "sender" or the "supervisor". Return its pid."""
    pid = the_sender()[f"{which}_pid"]
    kill9(pid)
    return pid


def pair() -> tuple[int, int] | None:
    """Return the pids (sender, supervisor) if both run, otherwise None."""
    found = status()
    if len(found) != 1 or found[0]["supervisor_pid"] is None:
        return None
    pids = found[0]["sender_pid"], found[0]["supervisor_pid"]
    return pids if all(map(is_running, pids)) else None


def another(former: tuple[int, int]) -> tuple[int, int]:
    """Wait until the sender or the supervisor of a pair is replaced, and return the new pair."""
    return wait_until(lambda: (now := pair()) and now != former and now, 10, f"a successor in {former}")


@contextlib.contextmanager
def asking(path: Path) -> Iterator[socket.socket]:
    """Open a connection to a sender and send a status request, so that its control plane has something to do."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(20)
        sock.connect(str(path))
        with contextlib.suppress(BrokenPipeError):  # a sender that crashes on purpose may have accepted it already
            control_messages.send(sock, {"op": "status"})
        yield sock


def trouble(log: str) -> list[str]:
    """Return the warnings and errors in a sender's log, without the one about low limits, which a user may have."""
    lines = [line for line in log.splitlines() if "level=warning" in line or "level=error" in line]
    return [line for line in lines if "has low hard limits" not in line]


#: What a patch may change. Another version may have it elsewhere.
PATCHED = """
from cyproducer.sender.cluster import engine
from cyproducer.sender.control import server
from cyproducer.sender.process import sender_process, supervisor
"""


class Foreground:
    """A foreground sender that a test changes: `patch` is Python source that runs before the sender starts."""

    def __init__(self, socket: Path, servers: str, log: Path, patch: str = "", **options: Any) -> None:
        self.socket = socket
        self.log = log
        self.ended = False
        script = f"""
import os, sys, time
sys.path[:0] = {[options.pop("root", str(ROOT))]!r}
from cyproducer.foreground import run_sender
{PATCHED if patch else ""}
{patch}
run_sender({{"bootstrap_servers": {servers!r}, **{options.pop("settings", {})!r}}}, {str(socket)!r}, **{options!r})
"""
        with open(log, "a") as file:
            self.process = subprocess.Popen(
                [*script_command(script)], env=script_environment(), stderr=file, cwd="/", text=True
            )

    def ready(self) -> "Foreground":
        wait_until(lambda: self.socket.exists() or self.process.poll() is not None, 30, "the sender's socket")
        assert self.process.poll() is None, self.log.read_text()
        return self

    def lines(self, text: str) -> list[str]:
        """Return the lines of its log that contain a text."""
        return [line for line in self.log.read_text().splitlines() if text in line]

    def end(self) -> None:
        """End the sender; if it was killed, stop its successor. A second call does nothing."""
        if self.ended:
            return
        self.ended = True
        if self.process.poll() is None:
            self.process.terminate()
        if self.process.wait(30) == -signal.SIGKILL:
            stop(str(self.socket), 20)
        else:
            assert self.process.returncode == 0, self.log.read_text()
