"""Tests what the sender has counted when an engine dies and another takes over.

A debug build is killed at the crash points of state/metrics.pyx that test_takeover_points does not reach; a release
build has no crash points and runs through them.
"""

import array
import contextlib
import signal

import pytest
from support import layout
from support.build import is_debug
from support.engine_host import EngineEndedError
from support.front_end import PlainFrontEnd, run_until
from support.takeover_rig import TakeoverRig

from cyproducer import metric_table

SENSORS, TIMES = len(metric_table.OWN) - len(metric_table.TIMES), len(metric_table.TIMES)
TOPIC_RECORDS = metric_table.TOPIC.index("records")
NODE_REQUESTS, REQUESTS = metric_table.NODE.index("requests"), metric_table.NETWORK.index("requests")


@pytest.fixture
def rig(broker, crashing_nursery):
    with TakeoverRig(broker, crashing_nursery) as rig:
        yield rig


def own_totals(rig: TakeoverRig) -> list[list[int]]:
    """Return (total, events) of each sensor that front-ends count themselves: of all that are or were attached."""
    return [reading[:2] for reading in rig.engine.look()["counts"]["own"]]


def attach_counting(rig: TakeoverRig) -> int:
    """Attach a front-end that has counted something in each of its own sensors."""
    index = rig.attach()
    memory = rig.front_ends[index].memory
    metrics_at = layout.offset("cyp_arena_header", "metrics")
    for sensor in range(SENSORS):
        at = metrics_at + layout.offset("cyp_own_metrics", "sensors") + sensor * layout.size("cyp_sensor")
        layout.write(memory, "cyp_sensor", at, total=1000 * (index + 1) + sensor, count=10 * (index + 1) + sensor)
    times = array.array("Q", (100 * (index + 1) + time for time in range(TIMES)))
    layout.write(memory, "cyp_own_metrics", metrics_at, times=times.tobytes())
    return index


def expected_totals(front_ends: int) -> list[list[int]]:
    """Of a time there is no number of events."""
    sensors = [
        [
            sum(1000 * (index + 1) + sensor for index in range(front_ends)),
            sum(10 * (index + 1) + sensor for index in range(front_ends)),
        ]
        for sensor in range(SENSORS)
    ]
    return sensors + [[sum(100 * (index + 1) + time for index in range(front_ends)), 0] for time in range(TIMES)]


def successors_agree(rig: TakeoverRig, expected: list[list[int]]) -> None:
    """Check that the totals are these, and that they stay so over more takeovers."""
    for _ in range(2):
        assert own_totals(rig) == expected
        rig.replace()
    assert own_totals(rig) == expected


def test_a_front_end_that_ended_without_a_sender_leaves_its_totals(rig):
    """The supervisor knows that it has ended; no engine has detached it."""
    ended, _ = attach_counting(rig), attach_counting(rig)
    assert own_totals(rig) == expected_totals(2)
    rig.engine.kill()
    rig.end(ended)
    rig.engine.take_over()
    successors_agree(rig, expected_totals(2))


def test_a_front_end_that_ended_with_batches_on_their_way_leaves_its_totals_once(rig, broker):
    """Detached by one engine, ended in the next ones, which deliver its batches."""
    ended, _ = attach_counting(rig), attach_counting(rig)
    broker.swallow = broker.lose = True
    rig.send(ended, 0)
    run_until(rig.engine, lambda: broker.produce_requests >= 1)
    rig.ended.add(ended)
    rig.engine.detach(rig.front_ends[ended].attach_id)
    successors_agree(rig, expected_totals(2))
    broker.swallow = broker.lose = False
    rig.finish()
    assert own_totals(rig) == expected_totals(2)


@pytest.mark.parametrize("in_takeover", [False, True], ids=["at its end", "in a takeover"])
@pytest.mark.parametrize("hit", [1, 2, len(metric_table.OWN)])
def test_killed_while_it_keeps_the_totals_of_a_front_end(rig, trigger, hit, in_takeover):
    """The next engine keeps the rest of them: nothing is missing, and nothing counts twice."""
    ended, _ = attach_counting(rig), attach_counting(rig)
    rig.ended.add(ended)
    attach_id = rig.front_ends[ended].attach_id
    if in_takeover:
        rig.engine.kill()
        rig.engine.mark_ended(attach_id)
    trigger.arm("metrics.totals-kept", "sender", signal.SIGKILL, hit)
    with contextlib.suppress(EngineEndedError):
        if in_takeover:
            rig.engine.take_over()
        else:
            rig.engine.detach(attach_id)
    assert bool(trigger.fired) == is_debug()
    trigger.disarm()
    rig.replace()
    successors_agree(rig, expected_totals(2))


@pytest.mark.parametrize("hit", [1, 2], ids=["of the sender", "of the front-end"])
def test_killed_when_it_has_entered_a_topic(rig, trigger, hit):
    """The next engine goes on in the same row: the topic is counted under its name."""
    index = rig.attach()
    trigger.arm("metrics.topic-entered", "sender", signal.SIGKILL, hit)
    rig.send(index, 0, records=3)
    if is_debug():
        trigger.wait()
        trigger.disarm()
        rig.engine.wait()
        rig.engine.take_over()
    rig.finish()
    topics = rig.engine.look()["counts"]["topics"]
    assert set(topics) == {rig.broker.topic}
    # the former engine has counted the batch for the sender before it entered the topic for the front-end
    assert topics[rig.broker.topic][TOPIC_RECORDS][0] == (6 if is_debug() and hit == 2 else 3)


@pytest.mark.parametrize("hit", [1, 2, 3], ids=["a bootstrap address", "its broker", "another broker"])
def test_killed_when_it_has_entered_a_node(broker, crashing_nursery, trigger, hit):
    """The next engine goes on in the same row: requests of all nodes add up."""
    trigger.arm("metrics.node-entered", "sender", signal.SIGKILL, hit)
    rig = TakeoverRig(broker, crashing_nursery)
    waiting = PlainFrontEnd(rig.engine)
    try:
        rig.engine.want_topic(waiting.attach_id, broker.topic)
        if is_debug():
            trigger.wait()
            trigger.disarm()
            rig.engine.wait()
            rig.engine.take_over()
        index = rig.attach()
        for partition in range(3):
            rig.send(index, partition)
        rig.finish()
        counts = rig.engine.look()["counts"]
        assert set(counts["nodes"]) >= {"node-1", "node-2"}
        requests = [reading[NODE_REQUESTS][1] for reading in counts["nodes"].values()]
        assert sum(requests) == counts["network"][REQUESTS][1]
    finally:
        rig.close()
        waiting.close()
