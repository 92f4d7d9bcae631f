"""Tests that the sender does not look at idle front-ends, and looks at them at once when they become active."""

import time

import pytest
from kfake.scripted_broker import ScriptedBroker
from support import layout
from support.fault_rig import Rig
from support.front_end import PlainFrontEnd, run_until
from support.process import wait_until
from support.takeover_rig import TakeoverRig

from cyproducer import KafkaProducer


def idle_word(memory: memoryview) -> int:
    return layout.read(memory, "cyp_outcomes_header", 0, "idle")


def is_idle(front_end: PlainFrontEnd) -> bool:
    return bool(idle_word(front_end.outcomes_region.memory()) & 1)


def test_idle_front_ends_are_not_looked_at(rig):
    """A loop iteration looks only at the busy front-end, however many there are."""
    for _ in range(60):
        rig.attach()
    busy = rig.attach()
    for index in range(60):
        rig.send(index, 0)
    rig.settle()
    run_until(rig.engine, lambda: all(map(is_idle, rig.front_ends[:60])), 30)
    before = rig.engine._loop.totals()
    for _ in range(100):
        rig.send(busy, 0)
        rig.engine.run(5)
    rig.settle()
    after = rig.engine._loop.totals()
    turns, looks = (after[name] - before[name] for name in ("turns", "looks"))
    assert turns >= 100
    assert looks <= turns, "no more than one look in a loop iteration"
    rig.check()


def test_an_idle_front_end_is_looked_at_again_when_it_writes_its_eventfd(rig):
    """Each time that it becomes idle is another epoch."""
    index, other = rig.attach(), rig.attach()
    words = set()
    for _ in range(3):
        run_until(rig.engine, lambda: is_idle(rig.front_ends[index]), 30)
        words.add(idle_word(rig.front_ends[index].outcomes_region.memory()))
        rig.send(other, 1)
        rig.send(index, 0)
        run_until(rig.engine, lambda: not is_idle(rig.front_ends[index]), 30)
        rig.settle()
    assert len(words) == 3
    rig.check()


def test_submission_without_wake_up_is_found_at_the_end_of_its_front_end(rig):
    """The process is killed between its submission and the write of the eventfd."""
    index, other = rig.attach(), rig.attach()
    front_end = rig.front_ends[index]
    run_until(rig.engine, lambda: is_idle(front_end), 30)
    front_end.wake_sender = lambda: None
    rig.send(index, 0)
    rig.send(other, 1)
    run_until(rig.engine, lambda: rig.listen() or rig.heard[other], 30)
    rig.engine.detach(front_end.attach_id)
    run_until(rig.engine, lambda: rig.broker.values(0), 30)
    assert rig.broker.values(0) == rig.sent[index][0][1]


def test_a_successor_looks_at_front_ends_that_were_idle(broker, nursery):
    rig = TakeoverRig(broker, nursery)
    try:
        index, other = rig.attach(), rig.attach()
        front_end = rig.front_ends[index]
        while not is_idle(front_end):  # the sender checks for idle front-ends in its loop iterations
            rig.send(other, 1)
            rig.settle()
        rig.engine.kill()
        before = idle_word(front_end.outcomes_region.memory())
        rig.send(index, 0)
        rig.engine.take_over()
        rig.settle()
        assert idle_word(front_end.outcomes_region.memory()) > before
        rig.check()
    finally:
        rig.close()


@pytest.mark.parametrize("linger_ms", [0, 30])
def test_a_real_front_end_is_heard_after_it_was_idle(runtime_dir, linger_ms):
    """Once beside a front-end that keeps the sender awake, and once alone."""
    with (
        ScriptedBroker(nodes=1) as broker,
        KafkaProducer(
            bootstrap_servers=broker.bootstrap_servers, linger_ms=linger_ms, sender_idle_timeout_ms=200
        ) as producer,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0, sender_idle_timeout_ms=200) as other,
    ):
        assert producer.send("t", b"first").result(30).offset >= 0
        outcomes = producer._channel().session.attachment.outcomes
        for round_number in range(3):
            # the sender checks for idle front-ends in its loop iterations: the other front-end causes some
            wait_until(lambda: other.send("t", b"n").result(30) and idle_word(outcomes.memory()) & 1, 30, "idle")
            began = time.monotonic()
            if round_number:
                for _ in range(20):
                    other.send("t", b"n")
            assert producer.send("t", b"again").result(30).offset >= 0
            assert time.monotonic() - began < 20, "its own wake-up was noticed"


def test_deadlines_of_many_front_ends_are_kept(broker):
    """Linger times of all lengths, and delivery timeouts that end while the broker does not answer."""
    with Rig(broker, request_timeout_ms=60_000) as rig:
        lingering = [rig.attach(linger_ms=10 * (1 + index * 7 % 20)) for index in range(20)]
        for index in lingering:
            rig.send(index, index % 3, seal=False)
        rig.settle()
        rig.check()
        with broker.lock:
            broker.mute.update((1, 2))
        expiring = [rig.attach(delivery_timeout_ms=100 * (1 + index * 3 % 10)) for index in range(10)]
        for index in expiring:
            rig.send(index, index % 3)
        heard: list[int] = []

        def all_heard() -> bool:
            rig.listen()
            heard.extend(index for index in expiring if rig.heard[index] and index not in heard)
            return len(heard) == len(expiring)

        run_until(rig.engine, all_heard, 30)
        timeouts = [100 * (1 + (index - expiring[0]) * 3 % 10) for index in heard]
        assert timeouts == sorted(timeouts)
