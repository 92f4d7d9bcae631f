"""An engine that is killed and one that takes over: nothing lost, doubled, reordered, at whatever moment."""

import pytest
from support.engine_host import RemoteEngine
from support.fault_rig import Rig
from support.scripted_broker import Fault, ScriptedBroker


@pytest.fixture
def broker():
    with ScriptedBroker() as broker:
        yield broker


@pytest.fixture
def rig(broker):
    rig = Rig(broker, RemoteEngine)
    yield rig
    rig.close()


def test_an_engine_that_was_killed_with_an_answer_outstanding(rig, broker):
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    broker.faults.append(Fault(hang="appended"))
    rig.send(0, 0)
    rig.send(0, 1)
    rig.engine.run(50)
    rig.engine.kill()
    rig.send(0, 0)
    rig.engine.take_over()
    rig.settle()
    rig.check()
