"""Executes a run: transactional front-ends, a monkey that kills, and the check at the end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from chaos import journal
from chaos.monkey import ACTIONS, Monkey
from chaos.world import SETTINGS, Target
from devkafka.node import KafkaCluster
from support.leftovers import remove_spawn_locks
from support.process import command_of, script_environment, users_of, wait_until

from cyproducer.errors import SenderUnavailableError
from cyproducer.observe.status import status, stop
from transactional.check import Report, check, read_journal
from transactional.front_end import UNKNOWN_STATUS

PARTITIONS = 12
SLOTS = 5
KINDS = [action for action in ACTIONS if action.startswith("kill")]
"""The kinds of kills: each run has all of them."""
ENDS_S = 150.0
FIRST_TRANSACTIONS_S = 60.0
"""The limit of the front-ends for their first transactions, in which the cluster makes its topic of transactions."""
LAST_TRANSACTIONS_S = 60.0
"""The limit for the transactions after the last kill."""
LAST_TRANSACTIONS = {"committed": 10, "aborted": 1}
"""How many transactions of each result every front-end must reach after the last kill."""
_PROGRESS_S = 10.0
_ALARMS = ("broken invariant", "Traceback", "broke the protocol", "could not be handled", "Fatal Python error")


@dataclass
class Plan:
    """The parameters of a run, as in chaos/run.py. There are more kills, if not all kinds were possible in so many."""

    kills: int
    seed: int
    seconds: float
    may_be_fenced: bool = False
    """Whether a front-end may be fenced in a commit, so that its result is unknown. That happens only without KIP-890:
    the sender that has committed raises the epoch, and is killed with its supervisor before the front-end reads it."""


class World:
    """The front-ends of a run, one for each slot. A front-end that has ended is replaced."""

    def __init__(self, servers: str, topic: str, directory: Path, plan: Plan) -> None:
        self.topic = topic
        self.directory = directory
        self.order = SimpleNamespace(partitions=PARTITIONS)
        self.runtime = Path(os.environ["CYPRODUCER_RUNTIME_DIR"])
        self.lives = [0] * SLOTS
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.defects: list[str] = []
        self._fenced = {UNKNOWN_STATUS} if plan.may_be_fenced else set()
        self._order = {
            "settings": {**SETTINGS, "bootstrap_servers": servers, "max_block_ms": 20_000},
            "topic": topic,
            "partitions": PARTITIONS,
            "directory": str(directory),
            "seed": plan.seed,
        }

    def keep_running(self) -> None:
        """Start the front-ends that are missing. One that ended by itself is a defect."""
        for slot in range(SLOTS):
            process = self.processes.get(slot)
            if process is not None and process.poll() is None:
                continue
            if process is not None and process.returncode not in {-signal.SIGKILL} | self._fenced:
                self.defects.append(self._ended(slot, process.returncode))
            self._start(slot)

    def _ended(self, slot: int, code: int | None) -> str:
        """Return the defect of a front-end that has ended by itself, with what it has said."""
        said = [line for line in self._log().splitlines() if line.startswith(f"{slot}: ")]
        return f"front-end {slot} ended with status {code}" + (f", {said[-1]}" if said else "")

    def _log(self) -> str:
        path = self.directory / "front-ends.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, slot: int) -> None:
        order = {**self._order, "slot": slot, "life": self.lives[slot]}
        self.lives[slot] += 1
        with open(self.directory / "front-ends.log", "ab") as log:
            self.processes[slot] = subprocess.Popen(
                [sys.executable, "-m", "transactional.front_end", json.dumps(order)],
                env=script_environment({"PYTHONFAULTHANDLER": "1"}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def await_transactions(self, wanted: dict[str, int], timeout: float, when: str) -> None:
        """Wait until every front-end has ended so many more transactions, by result. Else that is a defect."""
        before = self._counts()
        deadline = time.monotonic() + timeout

        def missing() -> list[str]:
            now = self._counts()
            counts = [(slot, name, now[slot][name] - before[slot][name]) for slot in range(SLOTS) for name in wanted]
            return [f"{count} {name} by front-end {slot}" for slot, name, count in counts if count < wanted[name]]

        while short := missing():
            if time.monotonic() > deadline:
                self.defects.append(f"{when}, too few transactions within {timeout:g} s: {', '.join(short)}")
                return
            self.keep_running()
            time.sleep(0.05)

    def _counts(self) -> list[Counter[str]]:
        """Return how many transactions each front-end has ended, by their results."""
        paths = [self.directory / f"{slot}.journal" for slot in range(SLOTS)]
        found = [read_journal(path) if path.exists() else {} for path in paths]
        return [Counter(outcome.result for outcome in outcomes.values()) for outcomes in found]

    def front_ends(self) -> list[Target]:
        """Return the living front-ends, for the monkey."""
        living = [(slot, process.pid) for slot, process in self.processes.items() if process.poll() is None]
        return [Target(slot, self.lives[slot] - 1, pid, journal.start_ticks(pid)) for slot, pid in living]

    def status(self) -> dict[str, Any] | None:
        """Return the sender's status; None if it does not answer."""
        with contextlib.suppress(SenderUnavailableError, OSError):
            found = status(timeout=5)
            if len(found) == 1:
                return found[0]
        return None

    def finish(self) -> None:
        """Stop the front-ends, which end their transactions, and the sender."""
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + ENDS_S
        for slot, process in self.processes.items():
            try:
                code = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.defects.append(f"front-end {slot} did not end its transaction in time")
                continue
            if code not in {0, -signal.SIGTERM} | self._fenced:
                self.defects.append(self._ended(slot, code))
        found = self.status()
        if found is not None:
            try:
                wait_until(lambda: not (self.status() or {"transactions": []})["transactions"], 30, "no transactions")
            except AssertionError:
                self.defects.append(f"the sender still has {self.status()['transactions']}")  # type: ignore[index]
            stop(found["socket"], timeout=30)
        for path in self.runtime.glob("*.log*"):
            for line in path.read_text(errors="replace").splitlines():
                if any(alarm in line for alarm in _ALARMS):
                    self.defects.append(f"the sender's log: {line[:300]}")

    def abort(self) -> None:
        """End everything that was started here, at once."""
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for _ in range(2):
            for process in users_of(self.runtime):
                if "cyproducer-sender" in command_of(process):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, signal.SIGCONT)
                        os.kill(process.pid, signal.SIGKILL)
        remove_spawn_locks(self.runtime)


@dataclass
class Result:
    """A finished run."""

    report: Report
    monkey: Monkey

    @property
    def clean(self) -> bool:
        return not self.report.defects

    def text(self) -> str:
        kinds = (f"{name:40} {count:>8,}" for name, count in sorted(self.monkey.kinds().items()))
        return "\n".join([f"{self.monkey.killed} kills", *kinds, self.report.text()])


def run(plan: Plan, cluster: KafkaCluster, directory: Path, progress: bool = False) -> Result:
    """Run the plan on three brokers. Journals and logs are in `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    topic = cluster.create_topic(f"txn-{plan.seed}-{time.time_ns() % 10**9}", PARTITIONS, 3)
    world = World(cluster.bootstrap_servers, topic, directory, plan)
    try:
        world.keep_running()
        world.await_transactions({"committed": 1}, FIRST_TRANSACTIONS_S, "before the first kill")
        monkey = _kill(plan, world, cluster, progress)
        world.await_transactions(LAST_TRANSACTIONS, LAST_TRANSACTIONS_S, "after the last kill")
        world.finish()
    finally:
        world.abort()
    report = check(directory, cluster.bootstrap_servers, topic)
    report.defects += world.defects + monkey.defects
    return Result(report, monkey)


def _kill(plan: Plan, world: World, cluster: KafkaCluster, progress: bool) -> Monkey:
    """Kill and stop processes by the plan's schedule. All of them run again at the end."""
    monkey = Monkey(
        world,  # type: ignore[arg-type]
        cluster,
        plan.seed,
        plan.kills,
        plan.seconds,
        dict(ACTIONS),
        KINDS,
    )
    shown = time.monotonic()
    try:
        while not monkey.done:
            monkey.tick()
            world.keep_running()
            if progress and time.monotonic() - shown > _PROGRESS_S:
                shown = time.monotonic()
                print(f"{monkey.killed}/{plan.kills} kills", file=sys.stderr, flush=True)
            time.sleep(0.01)
        monkey.rest()
    finally:
        monkey.restore_all()
    return monkey
