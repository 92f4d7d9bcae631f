"""Tests `cyproducer status --watch` on a terminal of 80 columns and 24 lines, and in a pipe."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from typing import Any

import pytest
from support.process import cyproducer, wait_until

WATCH = [sys.executable, "-m", "cyproducer", "status", "--watch", "0.3"]


def read(fd: int) -> str:
    return os.read(fd, 1 << 16).decode() if select.select([fd], [], [], 0)[0] else ""


def test_a_terminal_shows_one_screen_with_rates(
    make_producer: Callable[..., Any], new_topic: Callable[..., str]
) -> None:
    topics = [new_topic(1) for _ in range(30)]
    producer = make_producer()
    for topic in topics:
        producer.send(topic, b"value").result(30)
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(WATCH, stdout=terminal, stderr=subprocess.PIPE, text=True, env=environment)
    os.close(terminal)
    text = ""

    def screens() -> list[str]:
        nonlocal text
        producer.send(topics[0], b"value").result(30)
        text += read(screen)
        return [each for each in re.split(r"\x1b\[H\x1b\[2J", text) if "more lines" in each]

    shown = wait_until(lambda: (found := screens())[3:] and found, 60, "four screens")
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
    os.close(screen)
    for each in shown:
        lines = each.strip("\r\n").split("\r\n")
        assert max(map(len, lines)) <= 80
        assert len(lines) <= 23
    assert "Ctrl-C ends this" in shown[-1]
    assert re.search(r"  [1-9][\d.,]* records/s, [\d.]+ [KM]?i?B/s, 0 retries/s, 0 failed", "".join(shown[1:]))


def test_a_pipe_gets_all_lines(make_producer: Callable[..., Any], topic: str) -> None:
    make_producer().send(topic, b"value").result(30)
    with subprocess.Popen(WATCH, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = ""
        while text.count("\n\ncyproducer, ") < 2:
            text += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert topic in text
    assert "\x1b" not in text


@pytest.mark.parametrize("wrong", ["0", "x", "-1", "1e9"])
def test_a_wrong_interval(wrong: str) -> None:
    shown = cyproducer("status", f"--watch={wrong}")
    assert shown.returncode == 2
    assert f"{wrong!r} is not a number of seconds from 0.1 to 3600" in shown.stderr


def test_json_is_no_watch() -> None:
    assert cyproducer("status", "--watch", "1", "--json").returncode == 2
