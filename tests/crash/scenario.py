"""Runs a small world in which every crash point is reached, with a procedure at each of them.

Most points are reached by front-ends that send records of all sizes to few partitions and are recycled fast.
`stimuli.py` has what the other points need. After each point the world must go on; at the end the journals are compared
with the topic, as after chaos.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from chaos.check import Report, check
from chaos.falls import Fall, falling, founder_of
from chaos.journal import ACKED, LINE, SUFFIX
from chaos.world import World
from devkafka.node import KafkaCluster
from support.crashpoints import AFTER_LOST_ANSWERS, Trigger, points, role_of
from support.process import is_running, wait_until

from crash.stimuli import STIMULI, Scene

PARTITIONS = 4
REACH_S = 40.0
STOPPED_S = 0.1
GO_ON_LINES = 60
FAMILIES = {"recycled": [0, 1, 2, 3]}
ORDER = {"limit": 150, "sizes": {"100": 60, "3000": 30, "70000": 2, "600000": 1}}
SETTINGS = {
    "linger_ms": 2,
    "buffer_memory": 4 << 20,
    "request_timeout_ms": 2_000,
    "sender_idle_timeout_ms": 5_000,
    "compression_type": "lz4",
    "max_request_size": 4 << 20,
    "metadata_max_age_ms": 1_000,  # topics that are not used give their numbers back
    "metadata_max_idle_ms": 5_000,
}
#: Points that are reached only when no sender runs yet: each gets a world of its own.
FRESH = (
    "attach.spawn-lock-taken",
    "attach.sender-spawned",
    "attach.elected",
    "attach.listening",
    "attach.identity-came",
    "metrics.node-entered",
)
#: A kill at one of these ends the supervisor when the sender has just died, or the other way round.
BOTH_FALL = ("supervise.before-fork", "supervise.sender-gone", "supervise.reaped", "supervise.lost")
#: Another point where a process has to stop first, and how that ends: a front-end goes on once the sender has sealed
#: its batch, a sender is killed in the middle of a split, or while it gives a number back.
AFTER = {
    "commit.refused": ("append.encoded", signal.SIGCONT),
    "append.chunk-refused": ("append.chunk-opened", signal.SIGCONT),
    "recover.part-kept": ("split.committed", signal.SIGKILL),
    "recover.row-freed": ("topics.decided", signal.SIGKILL),
}


@dataclass
class Rig:
    """A cluster of one node, a topic, and a world of front-ends that see the trigger."""

    cluster: KafkaCluster
    directory: Path
    trigger: Trigger
    topic: str
    aloud: bool = False
    number: int = 0
    defects: list[str] = field(default_factory=list)
    falls: list[Fall] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    read: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def world(self, families: dict[str, list[int]]) -> World:
        return World(
            self.cluster.bootstrap_servers,
            self.topic,
            PARTITIONS,
            self.directory,
            seed=1,
            rate=300,
            families=families,
            environment=self.trigger.environment,
            order=ORDER,
            **SETTINGS,
        )

    # ------------------------------------------------------------------ one point

    def pass_point(self, world: World, name: str, number: int) -> None:
        """Arm the point, wait until it has acted, and check that the others go on and that all is as before."""
        role = role_of(points()[name])
        scene = Scene(self.cluster, world)
        if name not in AFTER:
            self.trigger.arm(name, role, number)
        both = number == signal.SIGKILL and name in BOTH_FALL
        fall = self._falling(world) if both else contextlib.nullcontext()
        with fall, STIMULI.get(name, contextlib.nullcontext)(scene):
            if name in AFTER:
                self._prelude(*AFTER[name], lambda: self.trigger.arm(name, role, number))
            self._await(world, name, number)
        self.defects += [f"{name}: {defect}" for defect in scene.defects]

    @contextlib.contextmanager
    def _falling(self, world: World) -> Iterator[None]:
        """Record the death of supervisor and sender in the block."""
        known = wait_until(world.supervised, 10, "a sender with its supervisor")
        with falling([known["sender_pid"], known["supervisor_pid"]], founder_of(known["socket"])) as fall:
            yield
        self.falls.append(fall)

    def _prelude(self, point: str, number: int, then: Callable[[], None]) -> None:
        """Stop a process at another point first, call `then`, and send the process `number` (SIGCONT or a kill)."""
        self.trigger.arm(point, role_of(points()[point]), signal.SIGSTOP)
        pid = self.trigger.wait(REACH_S)
        wait_until(lambda: _is_stopped(pid), 5, f"process {pid} stopped at {point}")
        if number == signal.SIGCONT:
            time.sleep(STOPPED_S)
        then()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def _await(self, world: World, name: str, number: int) -> None:
        try:
            pid = self.trigger.wait(REACH_S)
        except AssertionError as error:
            self.defects.append(str(error))
            self._say(str(error))
            return
        finally:
            self.trigger.disarm()
        self._say(f"{signal.Signals(number).name} at {name} in {pid}")
        if number == signal.SIGKILL:
            wait_until(lambda: not is_running(pid), 10, f"the end of process {pid}, killed at {name}")
        else:
            wait_until(lambda: _is_stopped(pid), 10, f"process {pid} stopped at {name}")
            time.sleep(STOPPED_S)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def go_on(self, world: World, after: str) -> None:
        """Check that the world is as it was: all processes live, the supervisor too, and records are acknowledged."""
        before = self.acknowledged(world)
        try:
            wait_until(world.supervised, 30, f"a supervisor after {after}")
            wait_until(lambda: self.acknowledged(world) >= before + GO_ON_LINES, 30, f"acknowledgements after {after}")
        except AssertionError as error:
            self.defects.append(str(error))

    def acknowledged(self, world: World) -> int:
        """Return how many records of the world are acknowledged; it reads only the new part of each journal."""
        for path in world.journals.glob(f"*{SUFFIX}"):
            count, at = self.read.get(path, (0, 0))
            size = path.stat().st_size // LINE.size * LINE.size
            if size > at and int(path.name.partition("-")[0]) in world.slots:
                with open(path, "rb") as file:
                    file.seek(at)
                    count += file.read(size - at)[:: LINE.size].count(ACKED)
                self.read[path] = count, size
        return sum(count for count, _ in self.read.values())

    def _say(self, text: str) -> None:
        self.log.append(f"{time.monotonic():.3f} {text}")
        if self.aloud:
            print(self.log[-1], file=sys.stderr, flush=True)

    # ------------------------------------------------------------------ many points

    def run(self, names: list[str], number: int) -> None:
        """Run all points, in one world where that is possible."""
        ordinary = [name for name in names if name not in FRESH]
        if ordinary:
            with self._started(FAMILIES) as world:
                for name in ordinary:
                    self.pass_point(world, name, number)
                    self.go_on(world, name)
        for name in names:
            if name in FRESH:
                self.number += 2
                self.trigger.arm(name, role_of(points()[name]), number)
                with self._started({"recycled": [self.number + 10, self.number + 11]}, wait=False) as world:
                    self._await(world, name, number)
                    self.go_on(world, name)

    @contextlib.contextmanager
    def _started(self, families: dict[str, list[int]], wait: bool = True) -> Iterator[World]:
        world = self.world(families)
        try:
            world.start(wait)
            yield world
            world.finish()
        finally:
            self.trigger.disarm()
            world.abort()
            self.defects += world.defects

    def check(self) -> Report:
        """Compare the journals with the topic."""
        report, _ = check(self.directory / "journals", self.cluster.bootstrap_servers, self.topic, self.falls)
        for defect in self.defects:
            report.add("left or broken", 1, defect)
        return report


def reachable() -> list[str]:
    """Return the points that this world reaches."""
    return [name for name in points() if name not in AFTER_LOST_ANSWERS]


def run_all(
    cluster: KafkaCluster, directory: Path, trigger: Trigger, names: list[str], number: int, aloud: bool = False
) -> Report:
    """Send the signal at each of the points, and return the results."""
    topic = cluster.create_topic(f"crash-{signal.Signals(number).name}", PARTITIONS, 1)
    rig = Rig(cluster, directory, trigger, topic, aloud)
    rig.run(names, number)
    return rig.check()


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return False
