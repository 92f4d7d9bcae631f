"""Plays many schedules in worker processes and gathers their results."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.build import PACKAGE

from simulation.virtual import compile_library, environment

TESTS = Path(__file__).resolve().parents[1]
BLOCK = 60  # schedules of a process: what a frozen sender has used is freed with its process
KILLS = 3  # at the same crash point, see play()
SILENT_S = 120.0  # real time: a schedule that takes longer hangs


@dataclass
class Campaign:
    """The results so far. `failed` has the rows of schedules with defects."""

    schedules: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    met: Counter[str] = field(default_factory=Counter)
    digests: dict[int, str] = field(default_factory=dict)
    virtual_s: float = 0.0
    on_failure: Callable[[dict[str, Any]], None] | None = None

    def take(self, row: dict[str, Any]) -> None:
        self.schedules += 1
        self.met.update(row["met"])
        self.digests[row["seed"]] = row["digest"]
        self.virtual_s += row["virtual_ms"] / 1000
        if row["defects"]:
            self.failed.append(row)
            if self.on_failure is not None:
                self.on_failure(row)


class _Worker:
    """One process, which plays a block of seeds."""

    def __init__(
        self, seeds: range, library: Path, package: Path | None = None, lines: bool = False, point: str | None = None
    ) -> None:
        paths = [str(package or PACKAGE.parent), str(TESTS), os.environ.get("PYTHONPATH", "")]
        command = [sys.executable, "-m", "simulation.worker", str(seeds.start), str(len(seeds))]
        command += ["--step", str(seeds.step), *(["--lines"] if lines else [])]
        command += ["--point", point] if point else []
        self._messages = os.memfd_create("messages")
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            cwd=TESTS,
            env=environment(library) | {"PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        )
        self.seed = seeds.start
        self.input = b""
        self.heard_at = time.monotonic()

    def read(self) -> list[dict[str, Any]] | None:
        """Return the results that have come; None at the end."""
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        if not data:
            return None
        self.heard_at = time.monotonic()
        *lines, self.input = (self.input + data).split(b"\n")
        rows = []
        for line in lines:
            row = json.loads(line)
            if "begins" in row:
                self.seed = row["begins"]
            else:
                rows.append(row)
        return rows

    def end(self, why: str = "") -> dict[str, Any] | None:
        """End the process. Return a failed row if it has ended by itself in the middle of a schedule."""
        if self.process.poll() is None and why != "ended":
            self.process.send_signal(signal.SIGKILL)
        status = self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        text = os.pread(self._messages, 1 << 20, 0).decode(errors="replace")
        os.close(self._messages)
        if why and (status or why != "ended"):
            defects = [f"the process {why} with status {status}", *text.splitlines()[-30:]]
            return {"seed": self.seed, "defects": defects, "digest": "", "met": {}, "virtual_ms": 0.0, "lines": []}
        return None


def play(
    first: int,
    count: int,
    seconds: float | None = None,
    *,
    step: int = 1,
    workers: int = 2,
    package: Path | None = None,
    lines: bool = False,
    point: str | None = None,
    stop_at: int = 5,
    progress: Callable[[Campaign, float], None] | None = None,
    failed: Callable[[dict[str, Any]], None] | None = None,
) -> Campaign:
    """Play `count` schedules from the seed `first` on, for at most so many seconds. step: from seed to seed.

    package: the directory of another build of the package. point: the crash point at which senders are killed where
    they pass it; KILLS of them end the campaign. stop_at: so many failed schedules end it.
    """
    campaign = Campaign(on_failure=failed)
    began = time.monotonic()
    following = range(first, first + count * step, step)
    running: list[_Worker] = []
    with tempfile.TemporaryDirectory(prefix="cyp-simulation-") as directory, selectors.DefaultSelector() as selector:
        library = compile_library(Path(directory))
        try:
            while True:
                spent = time.monotonic() - began
                late = seconds is not None and spent >= seconds
                over = late or len(campaign.failed) >= stop_at or campaign.met[f"killed at {point}"] >= KILLS
                while not over and len(running) < workers and following:
                    worker = _Worker(following[:BLOCK], library, package, lines, point)
                    following = following[BLOCK:]
                    running.append(worker)
                    selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
                if over or not running:
                    return campaign
                for key, _ in selector.select(0.2):
                    _hear(key.data, campaign, running, selector)
                for worker in [worker for worker in running if time.monotonic() - worker.heard_at > SILENT_S]:
                    selector.unregister(worker.process.stdout)
                    running.remove(worker)
                    campaign.take(worker.end("hangs") or {})
                if progress is not None:
                    progress(campaign, spent)
        finally:
            for worker in running:
                worker.end()


def _hear(worker: _Worker, campaign: Campaign, running: list[_Worker], selector: selectors.BaseSelector) -> None:
    rows = worker.read()
    if rows is None:
        selector.unregister(worker.process.stdout)
        running.remove(worker)
        failed = worker.end("ended")
        if failed is not None:
            campaign.take(failed)
        return
    for row in rows:
        campaign.take(row)
