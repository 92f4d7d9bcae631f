"""Tests bad records, faults and kills together: the records of others go out without errors."""

import random

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import INVALID_RECORD, POISON
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.codes import NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT

FAULTS = [
    Fault(close="before"),
    Fault(close="after"),
    Fault(delay=0.02),
    Fault(code=NOT_ENOUGH_REPLICAS),
    Fault(code=REQUEST_TIMED_OUT, after_append=True),
]


@pytest.mark.parametrize("seed", range(12))
def test_bad_records_harm_their_owner_alone_across_takeovers(nursery, seed):
    """Four front-ends, merged, one batch in eight is spoiled; an engine dies in about every seventh loop iteration."""
    chance = random.Random(seed)
    with ScriptedBroker(partitions=2, nodes=1) as broker:
        with TakeoverRig(broker, nursery, places=48) as rig:
            rig.attach_many(4, linger_ms=3)
            for number in range(40):
                for index in range(4):
                    assert rig.send(index, number % 2, seal=False, poison=chance.random() < 0.12)
                rig.engine.run(chance.choice([1, 2]))
                if chance.random() < 0.3:
                    broker.faults.append(chance.choice(FAULTS))
                if chance.random() < 0.15:
                    rig.engine.kill()
                    rig.engine.take_over()
            rig.finish()
            for index, sent in enumerate(rig.sent):
                for (_, values), error in zip(sent, rig.errors(index), strict=True):
                    spoiled = values[-1].endswith(POISON)
                    assert error in ((INVALID_RECORD, errors.OUTCOME_UNKNOWN) if spoiled else (0,))
