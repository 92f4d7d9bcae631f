"""Tests that an engine killed at every crash point has a successor that goes on (debug builds).

A release build has no crash points: there the engine is killed after a random time instead.
"""

import contextlib
import random
import signal
import time
from collections import Counter

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.build import is_debug
from support.crashpoints import AFTER_LOST_ANSWERS, IN_SEQUENCES, Trigger, points
from support.engine_host import EngineEndedError, Nursery
from support.fault_rig import INVALID_RECORD, POISON
from support.front_end import PlainFrontEnd, run_until
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.codes import NOT_ENOUGH_REPLICAS, OUT_OF_ORDER_SEQUENCE_NUMBER
from cyproducer.shm.native import read_liveness

#: Points that this traffic does not reach. tests/crash reaches them, except those of test_takeover_sequences.
ELSEWHERE = (
    "attach.", "reclaim.", "release.", "write.blocked", "build.packed", "metrics.node-entered",
    "metrics.topic-entered", "metrics.totals-kept", *IN_SEQUENCES, "parts.", "extent.", "topics.", "transaction.",
    "metrics.topic-cleared", "recover.row-freed",
)  # fmt: skip
#: Points of a takeover that are reached if the former engine died at another point.
AFTER = {
    "recover.part-kept": "split.committed",
    "recover.entry-taken": "write.unsure",
    "recover.entry-ended": "write.unsure",
    "recover.batch-queued": "accumulate.admitted",
}
#: The hit that kills: the first, and later ones, where an operation of several steps is further on.
HITS = (1, 2, 5)
TRIES, TRY_S = 12, 0.3
#: For a point that was not reached yet: how much traffic goes through in a time depends on the machine.
TRIES_UNREACHED = 120


def engine_points() -> list[str]:
    """Return the points in the native code of the sender."""
    return sorted(
        name
        for name, file in points().items()
        if file.startswith("sender/") and file.endswith((".pyx", ".pxd")) and not name.startswith(ELSEWHERE)
    )


def test_the_points_that_a_real_kafka_does_not_reach_are_reached_here():
    assert set(AFTER_LOST_ANSWERS) - set(IN_SEQUENCES) <= set(engine_points())


class Traffic:
    """Four front-ends whose batches are merged, with bad records now and then; one has short timeouts."""

    def __init__(self, broker: ScriptedBroker, nursery: Nursery, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.rig = TakeoverRig(broker, nursery, places=24)
        for _ in range(3):
            self.rig.attach(linger_ms=2)
        self.rig.attach(linger_ms=2, delivery_timeout_ms=60)
        self.sleeps = 1

    def burst(self, poison: float | None = None) -> None:
        """Send traffic that passes most points: retries, a gap, a broker that hangs, small and large batches.

        poison: the share of batches with a bad record; None: few, most of the time.
        """
        chance = self.chance
        faults = [
            Fault(code=INVALID_RECORD, partitions=(0,)),
            Fault(code=NOT_ENOUGH_REPLICAS),
            Fault(hang="appended"),
            Fault(close="after"),
            Fault(code=OUT_OF_ORDER_SEQUENCE_NUMBER, partitions=(1,)),
            Fault(hang="lost", delay=0.1),
            Fault(),
        ]
        with self.broker.lock:
            self.broker.names_records = chance.random() < 0.5
            if len(self.broker.faults) < 3 and chance.random() < 0.4:
                self.broker.faults.extend(chance.sample(faults, 2))
        if poison is None:
            poison = chance.choice([0, 0, 0, 0, 0.1, 1])
        for index in range(4):
            self.sleeps += 2
            self.rig.front_ends[index].set_header(sleeping=self.sleeps)
            for _ in range(chance.randint(0, 2)):
                self.rig.send(
                    index,
                    chance.randrange(3),
                    seal=chance.random() < 0.4,
                    size=chance.choice([0, 0, 12_000]),
                    poison=chance.random() < poison,
                )
        self.rig.listen()

    def end(self) -> None:
        self.broker.clear_faults()
        self.rig.settle()
        self.rig.check()
        for index in range(3):
            for (_, values), error in zip(self.rig.sent[index], self.rig.errors(index), strict=True):
                # this broker gives false answers about sequences and contents: a good batch may fail, but never expire
                assert error in (0, errors.OUTCOME_UNKNOWN, INVALID_RECORD), values[-1].endswith(POISON)


@pytest.mark.long
def test_killed_at_every_point(trigger, crashing_nursery):
    """Three times at each point; the same front-ends survive it all, and at the end every record is accounted for."""
    died: Counter[str] = Counter()
    with ScriptedBroker() as broker:
        traffic = Traffic(broker, crashing_nursery, seed=1)
        try:
            for name in engine_points():
                for hit in HITS:
                    died[name] += kill_at(traffic, trigger, name, hit, TRIES if died[name] else TRIES_UNREACHED)
            traffic.end()
        finally:
            trigger.disarm()
            traffic.rig.close()
    missed = [name for name in engine_points() if not died[name]]
    assert not is_debug() or not missed, f"never reached: {missed}"


def kill_at(traffic: Traffic, trigger: Trigger, name: str, hit: int, tries: int) -> bool:
    """Let one engine die, at the point if it is reached; another one goes on. Return whether it died at the point.

    tries: how often a new engine gets traffic until one dies; 1 in a release build.
    """
    rig = traffic.rig
    recovering = name.startswith("recover.")
    trigger.arm(AFTER[name] if recovering else name, "sender", signal.SIGKILL, 1 if recovering else hit)
    for _ in range(tries if is_debug() else 1):
        until = time.monotonic() + (TRY_S if is_debug() else traffic.chance.random() / 20)
        while not trigger.fired and time.monotonic() < until:
            traffic.burst(traffic.chance.choice([0.3, 1]) if "split" in AFTER.get(name, name) else None)
            time.sleep(0.002)
        if trigger.fired or not is_debug():
            break
        replace(rig)  # front-ends with bad records leave the isolation lane and are merged again
    if trigger.fired and name.startswith("seal."):
        attach_ids = [front_end.attach_id for front_end in rig.front_ends]
        assert read_liveness(rig.engine.state_fd)[2] in attach_ids
    if not recovering:
        fired = trigger.fired != 0
        replace(rig)
        fired = fired or trigger.fired != 0  # some points are reached in a takeover, too
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
    """Replace the engine. The armed point may kill the successor while it takes over; then the next one follows."""
    try:
        rig.engine.take_over()
    except EngineEndedError:
        rig.engine.wait()
        rig.engine.take_over()


def replace(rig: TakeoverRig) -> None:
    bury(rig)
    take_over(rig)


@pytest.mark.skipif(not is_debug(), reason="a release build has no crash points")
@pytest.mark.parametrize(
    "name",
    sorted(name for name, file in points().items() if file == "shm/snapshot.pyx" and name.startswith("publish.")),
)
def test_killed_while_a_topic_is_published(trigger, crashing_nursery, name):
    """A front-end that waits for the topic gets it from the next engine, with the former one's number."""
    with ScriptedBroker() as broker:
        with TakeoverRig(broker, crashing_nursery) as rig:
            front_end = PlainFrontEnd(rig.engine, slots=256)
            rig.front_ends.append(front_end)
            rig.engine.run(0)
            trigger.arm(name, "sender", signal.SIGKILL)
            with contextlib.suppress(EngineEndedError):
                rig.engine.want_topic(front_end.attach_id, broker.topic)
                while not trigger.fired:
                    rig.engine.run(10)
            trigger.disarm()
            bury(rig)
            rig.engine.take_over()
            run_until(rig.engine, lambda: len(front_end.snapshot.read()[3].get(broker.topic, (0, 0, b""))[2]) == 3)
            assert front_end.snapshot.read()[3][broker.topic][0] & 0x3FFF == 0
