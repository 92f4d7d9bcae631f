"""Tests that the sender's log never waits for its reader, says what it dropped, and rotates its file."""

import fcntl
import logging
import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.process import run_script, wait_until

from cyproducer.sender.system.log_relay import LogRelay

LINES = 3000


def stuck_pipe() -> tuple[int, int, Callable[[], None]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    return reader, writer, lambda: None


def stopped_terminal() -> tuple[int, int, Callable[[], None]]:
    """Stop the reader, as Ctrl-S does."""
    master, terminal = pty.openpty()
    termios.tcflow(terminal, termios.TCOOFF)
    return master, terminal, lambda: termios.tcflow(terminal, termios.TCOON)


@pytest.fixture(params=[stuck_pipe, stopped_terminal])
def stuck(request: pytest.FixtureRequest) -> Iterator[tuple[int, int, Callable[[], None]]]:
    """Return (what is read, standard error, a function that lets it go on)."""
    reader, writer, go_on = request.param()
    yield reader, writer, go_on
    os.close(reader)
    os.close(writer)


@pytest.fixture
def on_standard_error() -> Iterator[Callable[[int], LogRelay]]:
    """Return a LogRelay whose log is a descriptor of the test."""
    relays = []

    def make(fd: int) -> LogRelay:
        former = os.dup(2)
        os.dup2(fd, 2)
        try:
            relays.append(LogRelay())
        finally:
            os.dup2(former, 2)
            os.close(former)
        relays[0].start()
        return relays[0]

    yield make
    for relay in relays:
        relay.close()


def line(text: str) -> logging.LogRecord:
    return logging.LogRecord("n", logging.WARNING, "p", 1, text, (), None)


def test_unread_log_stops_no_process_and_counts_dropped_lines(
    stuck: tuple[int, int, Callable[[], None]], on_standard_error: Callable[[int], LogRelay]
) -> None:
    reader, writer, go_on = stuck
    relay = on_standard_error(writer)
    for number in range(LINES):
        relay.emit(line(f"line {number} {'x' * 100}"))
    go_on()
    os.set_blocking(reader, False)
    text = b""

    def take() -> bool:
        nonlocal text
        try:
            text += os.read(reader, 65536)
        except BlockingIOError:
            pass
        return b"the last" in text

    wait_until(lambda: take() or relay._unread() == 0, 20, "the log to go on")
    relay.emit(line("the last"))
    wait_until(take, 20, "the last line")
    lines = text.decode().splitlines()
    number = dropped = 0
    for row in lines:
        if "were dropped" in row:
            count = int(row.partition('msg="')[2].split()[0])
            number += count
            dropped += count
        elif f'{"x" * 100}"' in row:  # a line that was cut has no end and is counted as dropped
            assert f"line {number} " in row
            number += 1
    assert number == LINES and 0 < dropped < LINES
    assert "were dropped" in lines[-2] and "the last" in lines[-1]


def test_process_ends_though_its_log_is_stuck() -> None:
    script = """
        import fcntl, logging, os, sys
        from cyproducer.sender.system import log_relay
        from cyproducer.sender.system.log_relay import LogRelay
        log_relay.FLUSH_S = 0.05
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        os.dup2(writer, 2)
        relay = LogRelay()
        relay.start()
        for _ in range(3000):
            relay.emit(logging.LogRecord("n", logging.WARNING, "p", 1, "x" * 100, (), None))
        relay.close()
        print("ended")
    """
    assert run_script(script, timeout=30).stdout == "ended\n"


def test_full_disk_is_counted(tmp_path: Path, on_standard_error: Callable[[int], LogRelay]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    relay = on_standard_error(full)
    os.close(full)
    relay.emit(line("nowhere"))
    relay.flush()
    file = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(file, relay.target, inheritable=False)
    os.close(file)
    relay.emit(line("again"))
    relay.flush()
    first, second = (tmp_path / "log").read_text().splitlines()
    assert "1 lines of the log were dropped" in first and "again" in second


ROTATE = """
import logging, os, sys
from cyproducer.sender.system.log_relay import LogRelay
relay = LogRelay(sys.argv[1])
relay.start()
log = logging.getLogger("x"); log.setLevel(10)
log.addHandler(relay)
for number in range(900):
    log.info("%d %s", number, "x" * 3500)
    relay.flush()
relay.close()
os.write(2, b"the interpreter's own words\\n")
"""


def test_log_rotates_and_includes_the_interpreters_own_output(tmp_path: Path) -> None:
    path = tmp_path / "s.log"
    with open(path, "ab") as file:
        subprocess.run([sys.executable, "-c", ROTATE, str(path)], stderr=file, check=True)
    assert sorted(os.listdir(tmp_path)) == ["s.log", "s.log.1"]
    assert path.stat().st_size <= 1.1 * 2**20
    assert Path(f"{path}.1").stat().st_size <= 1.1 * 2**20
    assert path.read_text().endswith("the interpreter's own words\n")
    assert path.stat().st_mode & 0o077 == 0 or path.stat().st_mode & 0o777 == 0o644
