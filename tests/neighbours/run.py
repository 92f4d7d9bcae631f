"""Runs a scenario: brokers, a sender, the measured front-end, noisy front-ends; its latency alone and beside them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.process import script_environment, wait_until

from neighbours.scenarios import Scenario

BACKLOG = 200  # more connections than a listener takes that accepts none


@dataclass
class Outcome:
    """What the measured front-end saw: figures of honest.measure."""

    name: str
    alone: dict[str, Any]
    beside: dict[str, Any]
    budget_ms: float

    @property
    def in_budget(self) -> bool:
        """Whether the 99th percentile minus its value alone is within the budget, and nothing failed."""
        return bool(self.beside["p99"] - self.alone["p99"] <= self.budget_ms and not self.beside["failed"])

    def text(self) -> str:
        """Return one line for readers."""

        def figures(seen: dict[str, Any]) -> str:
            return f"p50 {seen['p50']:.1f} p99 {seen['p99']:.1f} max {seen['max']:.0f} ms (n={seen['n']})"

        failed = f"; failed: {self.beside['failed']}" if self.beside["failed"] else ""
        verdict = "ok" if self.in_budget else "OVER"
        return f"{self.name:12} alone {figures(self.alone)}, beside {figures(self.beside)}: {verdict}{failed}"


def _start(module: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", f"neighbours.{module}", *map(str, arguments)],
        env=script_environment(),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"{process.args} ended with status {process.wait()}")
    return line


def _tell(process: "subprocess.Popen[str]", text: object) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{text}\n")
    process.stdin.flush()


@contextlib.contextmanager
def _ended(processes: "list[subprocess.Popen[str]]") -> Iterator[None]:
    """Kill the processes at the end of the block, also stopped ones."""
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    assert stream is not None
                    stream.close()


class Cluster:
    """The brokers of a scenario, each a process."""

    def __init__(self, count: int, partitions: int) -> None:
        self.nodes: list[subprocess.Popen[str]] = []
        self.ports: list[int] = []
        self._fill: list[socket.socket] = []
        for number in range(1, count + 1):
            self.nodes.append(_start("node", number, count, partitions))
        self.ports = [int(_line(node)) for node in self.nodes]
        for node in self.nodes:
            _tell(node, " ".join(map(str, self.ports)))

    def sicken(self, numbers: tuple[int, ...], sickness: str) -> None:
        """Make these brokers sick, as Scenario.sickness says."""
        for number in numbers:
            node = self.nodes[number - 1]
            if sickness in ("frozen", "black-holed"):
                node.send_signal(signal.SIGSTOP)
            else:
                _tell(node, sickness)
            if sickness == "black-holed":
                self._occupy(self.ports[number - 1])

    def _occupy(self, port: int) -> None:
        """Fill the listener's queue, so that the kernel answers no more connection attempts."""
        for _ in range(BACKLOG):
            sock = socket.socket()
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
            self._fill.append(sock)

    def heal(self) -> None:
        """Make all brokers well again; they close connections with unanswered requests."""
        for sock in self._fill:
            sock.close()
        for node in self.nodes:
            node.send_signal(signal.SIGCONT)
            _tell(node, "well")


@contextlib.contextmanager
def _sender(path: str, servers: str, log: Path) -> Iterator[None]:
    command = [
        sys.executable,
        "-X",
        "faulthandler",
        "-m",
        "cyproducer",
        "sender",
        "--socket",
        path,
        "--bootstrap-servers",
        servers,
    ]
    with open(log, "ab") as file:
        process = subprocess.Popen(command, stderr=file, env=script_environment())
    try:
        wait_until(lambda: os.path.exists(path), 30, "the sender's socket")
        yield
    finally:
        process.terminate()
        process.wait(300)


def measure(
    name: str, scenario: Scenario, directory: Path, seconds: float, say: Callable[[str], None] = lambda text: None
) -> Outcome:
    """Run the scenario for `seconds` (first alone for a quarter of it). Files are in `directory`, a short path."""
    path = str(directory / f"{name}.sock")
    started: list[subprocess.Popen[str]] = []
    noise: list[subprocess.Popen[str]] = []
    with _ended(started):
        cluster = Cluster(scenario.nodes, scenario.partitions)
        started += cluster.nodes
        servers = f"127.0.0.1:{cluster.ports[-1]}"
        with _sender(path, servers, directory / "neighbours.log"), _ended(noise):
            measured = _start("honest", path, scenario.nodes - 1)
            noise.append(measured)
            _line(measured)
            say(f"{name}: alone")
            _tell(measured, max(seconds / 4, 1.0))
            alone = json.loads(_line(measured))
            say(f"{name}: the noisy front-ends get ready")
            noise += [_start("noise", kind, path, *numbers) for kind, *numbers in scenario.noise]
            for process in noise[1:]:
                _line(process)
            cluster.sicken(scenario.sick, scenario.sickness)
            for process in noise[1:]:
                _tell(process, "go")
            say(f"{name}: beside {scenario.text}")
            _tell(measured, seconds)
            beside = json.loads(_line(measured))
            for process in noise[1:]:
                process.kill()
            cluster.heal()
    return Outcome(name, alone, beside, scenario.budget_ms)
