"""Executes one chaos run from its start to its report; `python -m tests.chaos` and the test of 50 kills call it."""

import re
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from chaos import journal
from chaos.check import Hidden, Report, check, percentile
from chaos.clients import Clients
from chaos.journal import Life
from chaos.monkey import ACTIONS, Monkey
from chaos.world import World
from cyproducer import errors
from cyproducer.sender.process.files import INTERVAL_S

PARTITIONS = 48
FEW_PARTITIONS = 3  # with a small max.message.bytes: so that batches are larger than that
REPLICAS_MOST = 3
LAST_ACKNOWLEDGED, LAST_ACKNOWLEDGED_S = 200, 60.0
"""So many records of each front-end are acknowledged after the last kill, within so many seconds."""
# On a terminal one line that changes, else lines that add up.
_PROGRESS_S = 1.0 if sys.stderr.isatty() else 30.0
_DETACHED = re.compile(r"^ts=(\S+) .*msg=detached .*\bpeer=(\d+)\b")


@dataclass
class Plan:
    """The parameters of a run.

    seconds             approximate duration of the kills
    actions             weights, as monkey.ACTIONS
    max_message_bytes   of the topic: larger batches are sent in parts, and all records are smaller; 0: the default
    """

    kills: int
    seed: int
    seconds: float
    rate: float
    actions: dict[str, int] = field(default_factory=lambda: dict(ACTIONS))
    settings: dict[str, Any] = field(default_factory=dict)
    max_message_bytes: int = 0


@dataclass
class Result:
    """A finished run."""

    plan: Plan
    report: Report
    lives: list[Life]
    monkey: Monkey
    figures: dict[str, str]
    seconds: float

    @property
    def clean(self) -> bool:
        return self.report.clean

    def text(self) -> str:
        """Return the report for readers."""
        actions = Counter(event.action for event in self.monkey.events)
        lines = [f"seed {self.plan.seed}: {self.monkey.killed} kills in {self.seconds:.0f} s"]
        lines += [f"{name:24} {count:>10,}" for name, count in sorted(actions.items())]
        lines.append(f"{'died with no successor':24} {len(self.monkey.falls):>10,}")
        lines += ["", *self.report.lines(), ""]
        lines += [f"{name:36} {figure}" for name, figure in self.figures.items()]
        lines += ["", "clean" if self.clean else f"DEFECTS: {dict(self.report.defects)}"]
        return "\n".join(lines)


def run(plan: Plan, clients: Clients, directory: Path, progress: bool = False) -> Result:
    """Run the plan; journals and logs are in `directory`. Errors of the rig itself are raised.

    Only three brokers can be killed and stopped: one broker needs a plan without these actions.
    """
    name, limit = f"chaos-{plan.seed}-{time.time_ns() % 10**9}", plan.max_message_bytes
    partitions, order = PARTITIONS, {}
    if limit:
        partitions = FEW_PARTITIONS
        order = {"sizes": {str(limit // 10): 30, str(limit // 2): 1}}
    replicas = min(REPLICAS_MOST, len(clients.cluster.nodes))
    topic = clients.create_topic(name, partitions, replicas, {"max.message.bytes": str(limit)} if limit else {})
    world = World(
        clients.servers,
        topic,
        partitions,
        directory,
        seed=plan.seed,
        rate=plan.rate,
        order=order,
        **clients.producer,
        **plan.settings,
    )
    monkey = Monkey(world, clients.cluster, plan.seed, plan.kills, plan.seconds, plan.actions)
    began = time.monotonic()
    try:
        world.start()
        shown = 0.0
        while not monkey.done:
            monkey.tick()
            if progress and time.monotonic() - shown > _PROGRESS_S:
                shown = time.monotonic()
                _show(f"{monkey.killed}/{plan.kills} kills, {_lines(world):,} lines, {shown - began:.0f} s")
            time.sleep(0.005)
        monkey.rest()
        if progress:
            _show("no kills any more; waiting for every outcome")
        _await_acknowledgements(world)
        world.finish()
    finally:
        monkey.restore_all()
        world.abort()
    if progress:
        _show("reading the topic")
    # a batch that may be in the log is not sent in parts if it is refused then
    excused = {errors.OUTCOME_UNKNOWN: world.failed("OUTCOME_UNKNOWN")} if limit else {}
    # The ledger's file is written once in INTERVAL_S. No front-end sends more than `rate` records a second.
    hidden = Hidden(monkey.ledger_kills, plan.rate * INTERVAL_S) if limit else None
    report, lives = check(
        world.journals,
        clients.servers,
        topic,
        monkey.falls,
        monkey.front_end_kills,
        excused,
        hidden,
        clients.consumer,
    )
    for defect in world.defects + monkey.defects:
        report.add("left or broken", 1, defect)
    _add_errors(report, lives)
    if progress:
        print(file=sys.stderr)
    return Result(plan, report, lives, monkey, figures(lives, monkey, world.log_text()), time.monotonic() - began)


def _add_errors(report: Report, lives: list[Life]) -> None:
    """Add a defect for each refused send(): max_block_ms is longer than any outage, so no record may be refused."""
    for life in lives:
        if life.refusals:
            report.add("send() refused", len(life.refusals), f"incarnation {life.incarnation}: {life.refusals[:5]}")


def _show(text: str) -> None:
    terminal = sys.stderr.isatty()
    print(f"\r\x1b[K{text}" if terminal else text, end="" if terminal else "\n", file=sys.stderr, flush=True)


def _await_acknowledgements(world: World) -> None:
    """Wait until records of all front-ends are acknowledged again after the last kill, however slow the machine is."""
    before, deadline = _acknowledged(world), time.monotonic() + LAST_ACKNOWLEDGED_S
    while short := [slot for slot, count in _acknowledged(world).items() if count - before[slot] < LAST_ACKNOWLEDGED]:
        if time.monotonic() > deadline:
            text = f"the front-ends {short} had less than {LAST_ACKNOWLEDGED} records acknowledged"
            world.defects.append(f"{text} in {LAST_ACKNOWLEDGED_S:g} s after the last kill")
            return
        time.sleep(0.2)


def _acknowledged(world: World) -> Counter[int]:
    """Return how many records each slot has had acknowledged."""
    found: Counter[int] = Counter(dict.fromkeys(world.slots, 0))
    for path in world.journals.glob(f"*{journal.SUFFIX}"):
        lines = np.fromfile(path, journal.DTYPE)
        found[int(path.name.split("-")[0])] += int((lines["kind"] == journal.ACKED).sum())
    return found


def _lines(world: World) -> int:
    return sum(path.stat().st_size for path in world.journals.glob("*")) // 32


def figures(lives: list[Life], monkey: Monkey, log: str) -> dict[str, str]:
    """Return what was measured: times in ms, "p50 / p99 (n)"."""
    found = {}
    losses = [event for event in monkey.events if event.action.startswith(("kill sender", "kill both", "stop sender"))]
    quiet = [
        ns / 1e6
        for life in lives
        for ns in life.attach_ns
        if not any(-1e9 < life.began - event.time < 5e9 for event in losses)
    ]
    found["attach, ms"] = _figure(quiet)
    found["reclaim of a killed front-end, ms"] = _figure(reclaim_ms(monkey, log))
    for action in ("kill sender", "kill supervisor", "kill both"):
        times = [event.time for event in monkey.events if event.action.startswith(action)]
        found[f"{action} to first acknowledgement, ms"] = _figure(first_ack_ms(lives, times))
    return found


def _figure(values: list[float]) -> str:
    if not values:
        return "-"
    return f"{percentile(values, 0.5):.1f} / {percentile(values, 0.99):.1f} ({len(values)})"


def reclaim_ms(monkey: Monkey, log: str) -> list[float]:
    """Return times from a front-end's SIGKILL to the log line that the sender has everything (steps of 1 ms)."""
    detached: dict[int, list[float]] = {}
    for line in log.splitlines():
        match = _DETACHED.match(line)
        if match:
            when = datetime.fromisoformat(match[1]).timestamp()
            detached.setdefault(int(match[2]), []).append(when)
    found = []
    for event in monkey.events:
        if event.action == "kill front-end":
            later = [when - event.wall for when in detached.get(event.pid, ()) if when > event.wall - 0.002]
            if later:
                found.append(max(0.0, min(later) * 1000))
    return found


def first_ack_ms(lives: list[Life], times: list[int]) -> list[float]:
    """Return the time from each point to the first acknowledgement of a record that was sent after it."""
    found = []
    for when in times:
        firsts = [
            life.resolved[chosen].min()
            for life in lives
            if (chosen := (life.intended > when) & (life.resolved > when) & (life.error == 0)).any()
        ]
        if firsts:
            found.append((np.min(firsts) - when) / 1e6)
    return found
