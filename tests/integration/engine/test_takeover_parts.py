"""Kills senders that send batches in parts, and their successors while they take over, on a scripted cluster."""

import random
import signal
import time

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.build import is_debug
from support.crashpoints import Trigger, points
from support.engine_host import EngineEndedError, Nursery
from support.fault_rig import INVALID_RECORD, POISON, _is_poison
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.codes import NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER

LARGEST = 1500
KILLED = ("split.", "parts.", "extent.", "complete.", "epoch.", "write.unsure", "build.sequenced")
KILLED_AGAIN = ("recover.", "extent.", "complete.")
ROUNDS, ROUNDS_MAX, TRY_S = 40, 200, 0.5
DEATHS, SECOND_DEATHS = 15, 3  # at least; a slow machine needs more rounds for them


def names(beginnings: tuple[str, ...]) -> list[str]:
    return sorted(name for name in points() if name.startswith(beginnings))


class Traffic:
    """Three front-ends: one whose batches are too large, two with bad records whose batches are merged."""

    def __init__(self, broker: ScriptedBroker, nursery: Nursery, seed: int) -> None:
        broker.largest = LARGEST
        broker.refuses = _is_poison
        self.broker = broker
        self.chance = random.Random(seed)
        self.rig = TakeoverRig(broker, nursery)
        self.rig.attach()
        for _ in range(2):
            self.rig.attach(linger_ms=2)

    def burst(self) -> None:
        with self.broker.lock:
            if not self.broker.faults and self.chance.random() < 0.1:
                self.broker.faults.append(Fault(code=self.chance.choice([NOT_ENOUGH_REPLICAS, NOT_LEADER_OR_FOLLOWER])))
        self.rig.send(0, 0, records=10, size=350, poison=self.chance.random() < 0.3)
        for index in (1, 2):
            self.rig.send(index, 0, records=self.chance.randint(1, 5), seal=False, poison=self.chance.random() < 0.5)
        self.rig.listen()

    def run_until_killed(self, trigger: Trigger) -> None:
        """Send until a crash point has ended the engine, or for some time; then the engine has ended."""
        rig = self.rig
        until = time.monotonic() + TRY_S
        while not trigger.fired and time.monotonic() < until:
            self.burst()
            time.sleep(0.002)
        if rig.is_running():
            rig.engine.kill()
        else:
            rig.engine.wait()

    def take_over(self) -> None:
        """Let engines take over until one of them survives that."""
        while True:
            try:
                self.rig.engine.take_over()
            except EngineEndedError:
                self.rig.engine.wait()
                continue
            return

    def check(self) -> None:
        """Check that each record has one true outcome. Only records that were in flight may have an unknown one."""
        self.rig.settle()
        self.rig.check()
        for index in range(3):
            for slot, (_, values) in enumerate(self.rig.sent[index]):
                for (_, error), value in zip(self.rig.results(index, slot), values, strict=True):
                    assert error in (INVALID_RECORD if value.endswith(POISON) else 0, errors.OUTCOME_UNKNOWN)


@pytest.mark.skipif(not is_debug(), reason="a release build has no crash points")
@pytest.mark.parametrize("seed", range(6))
def test_killed_between_parts_and_again_in_the_takeover(trigger, crashing_nursery, seed):
    chance = random.Random(seed)
    rounds = died = again = 0
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        traffic = Traffic(broker, crashing_nursery, seed)
        try:
            while rounds < ROUNDS or ((died < DEATHS or again < SECOND_DEATHS) and rounds < ROUNDS_MAX):
                rounds += 1
                trigger.arm(chance.choice(names(KILLED)), "sender", signal.SIGKILL, chance.choice([1, 1, 2, 3, 5]))
                traffic.run_until_killed(trigger)
                died += trigger.fired != 0
                trigger.arm(chance.choice(names(KILLED_AGAIN)), "sender", signal.SIGKILL, chance.choice([1, 1, 2, 3]))
                traffic.take_over()
                again += trigger.fired != 0
                trigger.disarm()
            traffic.check()
        finally:
            trigger.disarm()
            traffic.rig.close()
    assert died >= DEATHS
    assert again >= SECOND_DEATHS
