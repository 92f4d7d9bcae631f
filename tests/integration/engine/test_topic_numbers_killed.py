"""Tests an engine that is killed while it gives a topic's number back or gives it to a name (debug builds)."""

import contextlib
import signal
import time

import pytest
from kfake.scripted_broker import ScriptedBroker
from support.build import is_debug
from support.crashpoints import Trigger, points
from support.engine_host import EngineEndedError, Nursery
from support.front_end import run_until
from support.takeover_rig import TakeoverRig

POINTS = sorted(name for name in points() if name.startswith("topics.") or name == "metrics.topic-cleared")
NAMING = ("attach.topic-named", "attach.topic-used", "attach.row-filled", "attach.partition-filled",
          "publish.topic-named", "publish.topic-entered", "publish.leaders-moved")  # fmt: skip
HITS = (1, 2, 3)

pytestmark = pytest.mark.skipif(not is_debug(), reason="a release build has no crash points")


@pytest.fixture
def rig(broker: ScriptedBroker, crashing_nursery: Nursery):
    made = TakeoverRig(broker, crashing_nursery)
    try:
        for _ in range(2):
            made.attach()
        yield made
    finally:
        made.close()


def send_all(rig: TakeoverRig) -> None:
    for index in range(2):
        for partition in range(3):
            rig.send(index, partition)
    rig.settle()


def come_back(rig: TakeoverRig, trigger: Trigger) -> None:
    """Look the topic up again. Raise EngineEndedError if the engine dies meanwhile."""
    front_end, name = rig.front_ends[0], rig.broker.topic

    def is_over() -> bool:
        if trigger.fired and not rig.is_running():
            raise EngineEndedError
        return len(front_end.snapshot.read()[3].get(name, (0, 0, b""))[2]) == 3

    rig.engine.want_topic(front_end.attach_id, name)
    run_until(rig.engine, is_over)
    rig.number = front_end.snapshot.read()[3][name][0]


def use_and_give_back(rig: TakeoverRig, trigger: Trigger, seconds: float = 20) -> None:
    """Use the topic and give its number back, again and again, until the engine dies."""
    until = time.monotonic() + seconds
    with contextlib.suppress(EngineEndedError):
        while not trigger.fired and time.monotonic() < until:
            while not rig.engine.give_back(rig.broker.topic) and not trigger.fired and time.monotonic() < until:
                time.sleep(0.01)
            come_back(rig, trigger)
            send_all(rig)


def replace(rig: TakeoverRig) -> None:
    if rig.is_running():
        rig.engine.kill()
    else:
        rig.engine.wait()
    try:
        rig.engine.take_over()
    except EngineEndedError:
        rig.engine.wait()
        rig.engine.take_over()


def go_on(rig: TakeoverRig, trigger: Trigger) -> None:
    """Check that every record of both lives of the name is in the log once."""
    for _ in range(2):
        come_back(rig, trigger)
        send_all(rig)
        while not rig.engine.give_back(rig.broker.topic):
            time.sleep(0.01)
    rig.check()


@pytest.mark.parametrize("hit", HITS)
@pytest.mark.parametrize("name", [*POINTS, *NAMING])
def test_killed_at_a_store(rig: TakeoverRig, trigger: Trigger, name: str, hit: int) -> None:
    send_all(rig)
    trigger.arm(name, "sender", signal.SIGKILL, hit)
    use_and_give_back(rig, trigger)
    assert trigger.fired
    trigger.disarm()
    replace(rig)
    go_on(rig, trigger)


@pytest.mark.parametrize("hit", HITS)
@pytest.mark.parametrize("name", ["recover.row-freed", "topics.cleared", "topics.freed", "recover.index-cleared"])
def test_killed_while_a_successor_goes_on(rig: TakeoverRig, trigger: Trigger, name: str, hit: int) -> None:
    """The first engine dies when it has decided, the second one in the middle of the rest."""
    send_all(rig)
    trigger.arm("topics.decided", "sender", signal.SIGKILL)
    use_and_give_back(rig, trigger)
    assert trigger.fired
    trigger.arm(name, "sender", signal.SIGKILL, hit if name == "recover.row-freed" else 1)
    replace(rig)
    assert trigger.fired
    trigger.disarm()
    go_on(rig, trigger)
