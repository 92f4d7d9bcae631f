"""Tests what a foreground sender reports to systemd; a datagram socket is in the place of systemd's.

`tests/systemd` has the tests with systemd itself.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.process import kill9

from cyproducer.observe.status import status, stop

NOWHERE = "127.0.0.1:9"


@pytest.fixture
def systemd(runtime_dir: Path, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yield the socket that receives the reports of the senders that a test starts. The watchdog's limit is 2 s."""
    path = short_tmp / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(60)
        yield sock
    path.unlink()


def next_report(systemd: socket.socket) -> str:
    """Return the next report that is no sign of life."""
    while (text := systemd.recv(4096).decode()) == "WATCHDOG=1":
        pass
    return text


@pytest.fixture
def command(runtime_dir: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `cyproducer sender`; wait for its end after the test."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "cyproducer", "sender", "--bootstrap-servers", NOWHERE]
        process = subprocess.Popen(
            [*line, "--socket", str(runtime_dir / "s.sock"), *arguments], stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.communicate(timeout=60)


def test_start_upgrade_and_stop(
    systemd: socket.socket,
    command: Callable[..., subprocess.Popen[str]],
    runtime_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An upgrade names the next main process before the former one ends, and keeps the watchdog's time limit."""
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    path = runtime_dir / "s.sock"
    former = command()
    assert next_report(systemd) == f"READY=1\nMAINPID={former.pid}"
    assert path.exists()
    assert systemd.recv(4096) == b"WATCHDOG=1"
    monkeypatch.delenv("WATCHDOG_USEC")  # as systemd does for ExecReload=
    upgrade = command("--replace", "--detach")
    assert next_report(systemd).startswith("RELOADING=1\nMONOTONIC_USEC=")
    successor = next_report(systemd)
    assert next_report(systemd) == f"READY=1\n{successor}"
    assert upgrade.wait(60) == former.wait(60) == 0
    (found,) = status(str(path))
    assert successor == f"MAINPID={found['supervisor_pid']}"
    assert found["supervisor_pid"] not in (former.pid, upgrade.pid)
    for _ in range(2):
        assert systemd.recv(4096) == b"WATCHDOG=1"
    stop(str(path), 60)
    assert next_report(systemd) == "STOPPING=1"


def test_the_sender_names_the_supervisor_that_it_starts(
    systemd: socket.socket, command: Callable[..., subprocess.Popen[str]], runtime_dir: Path
) -> None:
    process = command()
    assert next_report(systemd) == f"READY=1\nMAINPID={process.pid}"
    kill9(process.pid)
    report = next_report(systemd)
    (found,) = status(str(runtime_dir / "s.sock"))
    assert report == f"READY=1\nMAINPID={found['supervisor_pid']}"
    assert found["supervisor_pid"] != process.pid
    stop(str(runtime_dir / "s.sock"), 60)
    assert next_report(systemd) == "STOPPING=1"


def test_a_detached_sender_that_fails_says_why(command: Callable[..., subprocess.Popen[str]]) -> None:
    first = command("--detach")
    assert first.wait(60) == 0
    second = command("--detach")
    _, error = second.communicate(timeout=60)
    assert (second.returncode, "another sender serves" in error) == (1, True)
    third = command("--detach", "--metrics-port", "9464")
    _, error = third.communicate(timeout=60)
    assert (third.returncode, "--metrics-port" in error) == (2, True)
    (found,) = status()
    assert os.getppid() != found["supervisor_pid"]
    stop(found["socket"], 60)
