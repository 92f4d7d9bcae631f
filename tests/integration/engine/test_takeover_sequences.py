"""Tests an engine that dies while it settles what is in the log, at each step of idempotence.pyx.

A debug build is killed at the step; a release build has no crash points and runs through it.
"""

import signal
from collections import deque

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.build import is_debug
from support.crashpoints import IN_SEQUENCES
from support.fault_rig import INVALID_RECORD, POISON
from support.front_end import run_until
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.codes import OUT_OF_ORDER_SEQUENCE_NUMBER, REQUEST_TIMED_OUT

BROKER = {"partitions": 1, "nodes": 1}


@pytest.fixture
def rig(broker, crashing_nursery):
    with TakeoverRig(broker, crashing_nursery, request_timeout_ms=60_000) as rig:
        yield rig


def send(rig: TakeoverRig, records: int = 2, poison: bool = False) -> None:
    """Send a batch in a request of its own and wait until it has gone out."""
    slot = rig.free[0][0][0]
    generation = rig.free[0][0][1]
    rig.send(0, 0, records=records, poison=poison)
    run_until(rig.engine, lambda: rig.front_ends[0].sent_word(slot) == generation + 1)


def lose(rig: TakeoverRig, broker: ScriptedBroker, *batches: tuple[int, bool]) -> None:
    """Send batches (records, spoiled) without waiting for answers. None of them arrives."""
    before = broker.produce_requests
    broker.swallow = broker.lose = True
    for records, spoiled in batches:
        send(rig, records, spoiled)
    run_until(rig.engine, lambda: broker.produce_requests >= before + len(batches))
    broker.swallow = broker.lose = False


def prove_a_predecessor(rig: TakeoverRig, broker: ScriptedBroker) -> set[int]:
    broker.results[b"0/1/0"] = deque([(REQUEST_TIMED_OUT, True)])
    broker.faults.append(Fault(delay=0.3))
    send(rig)
    send(rig)
    return {0}


def exclude_a_predecessor(rig: TakeoverRig, broker: ScriptedBroker) -> set[int]:
    lose(rig, broker, (2, False), (2, False), (2, False))
    broker.results[b"0/1/0"] = deque([(OUT_OF_ORDER_SEQUENCE_NUMBER, False)])
    broker.drop_connections()
    return {0}


def seek_a_place(rig: TakeoverRig, broker: ScriptedBroker) -> set[int]:
    # The first and the last are refused for their records and given up: there is a gap, and no unsure batch to ask
    # about.
    lose(rig, broker, (2, True), (3, False), (2, True))
    broker.drop_connections()
    return {0, INVALID_RECORD, errors.OUTCOME_UNKNOWN}


STEPS = {
    "complete.predecessor-proven": prove_a_predecessor,
    "epoch.predecessor-excluded": exclude_a_predecessor,
    "epoch.place-sought": seek_a_place,
}


@pytest.mark.parametrize("name", IN_SEQUENCES)
def test_killed_while_it_settles_what_is_in_the_log(rig, broker, trigger, name):
    """The next engine settles it as well: nothing is in the log twice, and good batches are there."""
    rig.begin(delivery_timeout_ms=60_000)
    if is_debug():
        trigger.arm(name, "sender", signal.SIGKILL)
    allowed = STEPS[name](rig, broker)
    if is_debug():
        trigger.wait()
        trigger.disarm()
        rig.engine.wait()
        rig.engine.take_over()
    rig.finish()
    assert set(rig.errors(0)) <= allowed
    for (_, values), error in zip(rig.sent[0], rig.errors(0), strict=True):
        assert values[-1].endswith(POISON) or error == 0
