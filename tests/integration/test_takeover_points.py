"""An engine is killed at every crash point that it comes past, and the next one goes on (debug builds).

A release build has no points: there the engine is killed after a drawn time instead.
"""

import random
import signal
import time
from collections import Counter

import pytest
from support.build import is_debug
from support.crashpoints import Trigger, points
from support.engine_host import EngineEndedError, Nursery
from support.fault_rig import INVALID_RECORD, POISON
from support.scripted_broker import NOT_ENOUGH_REPLICAS, OUT_OF_ORDER, Fault, ScriptedBroker
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.shm.vitals import read_vitals

#: Points that this traffic does not lead past: attaching, ending, a socket that is full, compression.
ELSEWHERE = ("attach.", "reclaim.", "write.blocked", "build.packed")
#: Points of a takeover that are come past if the former engine died at another one.
AFTER = {
    "adopt.part-kept": "split.committed", "adopt.entry-taken": "write.unsure",
    "adopt.batch-queued": "accumulate.admitted",
}
#: Of a hit that kills: the first, and later ones, where more has been done of what takes several steps.
HITS = (1, 2, 5)
TRIES, TRY_S = 12, 0.3


def engine_points() -> list[str]:
    """The points in the native code of the sender."""
    return sorted(
        name for name, file in points().items()
        if file.startswith("sender/") and file.endswith((".pyx", ".pxd")) and not name.startswith(ELSEWHERE)
    )


@pytest.fixture
def trigger(tmp_path):
    trigger = Trigger(tmp_path)
    yield trigger
    trigger.close()


@pytest.fixture
def nursery(trigger):
    nursery = Nursery(trigger.environment)
    yield nursery
    nursery.close()


class Traffic:
    """Four front-ends whose batches are merged, with bad records now and then; one is impatient."""

    def __init__(self, broker: ScriptedBroker, nursery: Nursery, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.rig = TakeoverRig(broker, nursery, places=24)
        for _ in range(3):
            self.rig.attach(linger_ms=2)
        self.rig.attach(linger_ms=2, delivery_timeout_ms=60)
        self.sleeps = 1

    def burst(self, poison: float | None = None) -> None:
        """What leads past most points: retries, a gap, a broker that hangs, small and large batches.

        poison: the share of batches with a bad record; None: few, most of the time.
        """
        chance = self.chance
        faults = [
            Fault(code=INVALID_RECORD, partitions=(0,)), Fault(code=NOT_ENOUGH_REPLICAS), Fault(hang="appended"),
            Fault(close="after"), Fault(code=OUT_OF_ORDER, partitions=(1,)), Fault(hang="lost", delay=0.1), Fault(),
        ]
        with self.broker.lock:
            self.broker.names_records = chance.random() < 0.5
            if len(self.broker.faults) < 3 and chance.random() < 0.4:
                self.broker.faults.extend(chance.sample(faults, 2))
        if poison is None:
            poison = chance.choice([0, 0, 0, 0, 0.1, 1])
        for index in range(4):
            self.sleeps += 2
            self.rig.front_ends[index].put("I", 128, self.sleeps)
            for _ in range(chance.randint(0, 2)):
                self.rig.send(
                    index, chance.randrange(3), seal=chance.random() < 0.4, size=chance.choice([0, 0, 12_000]),
                    poison=chance.random() < poison,
                )
        self.rig.listen()

    def end(self) -> None:
        with self.broker.lock:
            self.broker.faults.clear()
        self.rig.settle()
        self.rig.check()
        for index in range(3):
            for (_, values), error in zip(self.rig.sent[index], self.rig.errors(index), strict=True):
                # this broker lies about sequences and contents: what is not poisoned may fail, but never expire
                assert error in (0, errors.OUTCOME_UNKNOWN, INVALID_RECORD), values[-1].endswith(POISON)


def test_killed_at_every_point(trigger, nursery):
    """Three times at each; the same front-ends live through it all, and at the end every record is accounted for."""
    died: Counter[str] = Counter()
    with ScriptedBroker() as broker:
        traffic = Traffic(broker, nursery, seed=1)
        try:
            for name in engine_points():
                for hit in HITS:
                    died[name] += kill_at(traffic, trigger, name, hit)
            traffic.end()
        finally:
            trigger.disarm()
            traffic.rig.close()
    missed = [name for name in engine_points() if not died[name]]
    assert not is_debug() or not missed, f"never come past: {missed}"


def kill_at(traffic: Traffic, trigger: Trigger, name: str, hit: int) -> bool:
    """One engine dies, at the point if it is come past; another one lives. True if it was at the point."""
    rig = traffic.rig
    adopting = name.startswith("adopt.")
    trigger.arm(AFTER[name] if adopting else name, "sender", signal.SIGKILL, 1 if adopting else hit)
    for _ in range(TRIES if is_debug() else 1):
        until = time.monotonic() + (TRY_S if is_debug() else traffic.chance.random() / 20)
        while not trigger.fired and time.monotonic() < until:
            traffic.burst(traffic.chance.choice([0.3, 1]) if "split" in AFTER.get(name, name) else None)
            time.sleep(0.002)
        if trigger.fired or not is_debug():
            break
        replace(rig)  # who sends bad records is treated like others again, and merged
    if trigger.fired and name.startswith("seal."):
        attach_ids = [front_end.attach_id for front_end in rig.front_ends]
        assert read_vitals(rig.engine.state_fd).breadcrumb_attach in attach_ids
    if not adopting:
        fired = trigger.fired != 0
        replace(rig)
        fired = fired or trigger.fired != 0     # some are come past in a takeover, too
        trigger.disarm()
        return fired
    bury(rig)
    trigger.arm(name, "sender", signal.SIGKILL, hit)
    take_over(rig)
    return trigger.fired != 0


def bury(rig: TakeoverRig) -> None:
    if rig.is_running():
        rig.engine.kill()
    else:
        rig.engine.wait()


def take_over(rig: TakeoverRig) -> None:
    """The armed point may kill the successor while it takes over; then comes the next one."""
    try:
        rig.engine.take_over()
    except EngineEndedError:
        rig.engine.wait()
        rig.engine.take_over()


def replace(rig: TakeoverRig) -> None:
    bury(rig)
    take_over(rig)
