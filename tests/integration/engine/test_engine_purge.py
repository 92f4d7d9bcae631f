"""Tests a purge: what is certain to be in no log ends with PURGED, everything else as it would have without it."""

from contextlib import closing

import pytest
from kfake.scripted_broker import Fault
from support.front_end import PlainFrontEnd, run_until

from cyproducer import errors
from cyproducer.codes import NOT_ENOUGH_REPLICAS

MANY = 100_000
PLAIN = {"acks": 1, "enable_idempotence": False}
BOTH = pytest.mark.parametrize("settings", [{}, PLAIN], ids=["idempotent", "acks=1"])


def stop(rig) -> None:
    """Stop the brokers, and wait until the engine has noticed it: from here on nothing is sent."""
    for node in range(1, 3):
        rig.broker.down.add(node)
    rig.broker.drop_connections()
    run_until(rig.engine, lambda: all(row["state"] != "ready" for row in rig.engine.stats()["connections"]))


def start(broker) -> None:
    broker.down.clear()


def purge(rig, index: int) -> None:
    """Drop what front-end `index` has queued. The outcomes are there when it returns."""
    rig.engine.purge(rig.front_ends[index].attach_id)
    rig.listen()


@BOTH
@pytest.mark.parametrize("seal", [True, False], ids=["closed", "open"])
def test_what_was_not_sent_is_dropped(rig, broker, settings, seal):
    index = rig.begin(linger_ms=5, **settings)
    stop(rig)
    for partition in (0, 1, 0):
        rig.send(index, partition, seal=seal)
    rig.engine.run(1)
    purge(rig, index)
    assert set(rig.heard[index]) == {0, 1, 2, 3}, "batch 0 was acknowledged before"
    start(broker)
    rig.send(index, 0)
    rig.finish()
    assert rig.errors(index)[-4:] == [errors.PURGED, errors.PURGED, errors.PURGED, 0]


def test_batches_that_the_engine_has_not_read_yet_are_dropped(rig, broker):
    index = rig.begin(linger_ms=1000)
    sent = len(rig.sent[index])
    rig.send(index, 0, seal=False)
    purge(rig, index)
    assert rig.heard[index][sent] == (-1, errors.PURGED)
    rig.finish()


def test_more_batches_than_the_engine_reads_at_once_are_dropped(rig, broker):
    rig.begin()
    stop(rig)
    with closing(PlainFrontEnd(rig.engine, slots=17_000, linger_ms=60_000)) as front_end:
        for slot in range(16_500):
            front_end.send(slot, [(1, None, b"x")], topic=rig.number, partition=0)
        rig.engine.purge(front_end.attach_id)
        assert len(front_end.outcomes()) == 16_500
        assert rig.engine.undelivered() == 0


def test_other_front_ends_keep_their_batches(rig, broker):
    index = rig.begin(linger_ms=5)
    other = rig.attach(linger_ms=5)
    stop(rig)
    rig.send(index, 0)
    rig.send(other, 0)
    rig.engine.run(1)
    purge(rig, index)
    assert rig.heard[other] == {}
    start(broker)
    rig.finish()
    assert rig.errors(other) == [0]


@BOTH
@pytest.mark.parametrize("fault", [Fault(hang="appended"), Fault(delay=0.2)], ids=["hangs", "slow"])
def test_a_batch_on_its_way_is_not_dropped(rig, broker, settings, fault):
    index = rig.begin(**settings)
    first = len(rig.sent[index])
    with broker.lock:
        broker.faults.append(fault)
    rig.send_now(index, 0)
    purge(rig, index)
    assert first not in rig.heard[index]
    rig.finish(exactly=not settings)
    assert rig.errors(index)[first] == 0


def test_an_unsure_batch_is_not_dropped_and_stays_in_order(rig, broker):
    index = rig.begin()
    first = len(rig.sent[index])
    with broker.lock:
        broker.faults.append(Fault(close="after"))
    rig.send_now(index, 0)
    run_until(rig.engine, lambda: not broker.faults)
    stop(rig)
    rig.send(index, 0)
    rig.engine.run(20)
    purge(rig, index)
    assert first not in rig.heard[index]
    assert rig.heard[index][first + 1] == (-1, errors.PURGED)
    start(broker)
    rig.send(index, 0)
    rig.finish()
    assert rig.errors(index)[first:] == [0, errors.PURGED, 0]


@BOTH
def test_a_batch_that_was_refused_at_each_attempt_is_dropped(rig, broker, settings):
    """The sequence that it had leaves a gap, which a new epoch closes."""
    index = rig.begin(**settings)
    first = len(rig.sent[index])
    with broker.lock:
        broker.faults.extend([Fault(code=NOT_ENOUGH_REPLICAS)] * MANY)
    rig.send_now(index, 0)
    deadline = 2000
    while first not in rig.heard[index] and deadline:
        rig.engine.run(1)
        purge(rig, index)  # it does nothing while an attempt is in flight
        deadline -= 1
    with broker.lock:
        broker.faults.clear()
    rig.send(index, 0)
    rig.finish()
    assert rig.errors(index)[first:] == [errors.PURGED, 0]


@BOTH
def test_the_others_of_a_merged_batch_go_on_without_it(rig, broker, settings):
    kept = [rig.attach(linger_ms=5, **settings) for _ in range(2)]
    purged = rig.attach(linger_ms=5, **settings)
    everyone = [kept[0], purged, kept[1]]
    for index in everyone:
        rig.send(index, 0)
    rig.settle()
    with broker.lock:
        broker.faults.extend([Fault(code=NOT_ENOUGH_REPLICAS)] * MANY)
    before = rig.engine._loop.totals()["merged"]
    for index in everyone:
        rig.send(index, 0, seal=False)
    run_until(rig.engine, lambda: rig.engine._loop.totals()["merged"] - before == 3)
    run_until(rig.engine, lambda: purge(rig, purged) or 1 in rig.heard[purged])
    with broker.lock:
        broker.faults.clear()
    rig.finish()
    assert [rig.errors(index) for index in everyone] == [[0, 0], [0, errors.PURGED], [0, 0]]


def test_a_batch_in_parts_keeps_its_outcome(rig, broker):
    """Some of its records may be in the log, so it is not dropped."""
    index = rig.begin()
    first = len(rig.sent[index])
    rig.send(index, 0, records=4, poison=True)
    run_until(rig.engine, lambda: purge(rig, index) or first in rig.heard[index], 15)
    rig.finish()
    found = [error for _, error in rig.results(index, first)]
    assert found[:3] in ([0, 0, 0], [errors.PURGED] * 3)
    assert set(found[3:]) <= {87, errors.PURGED}


def test_an_empty_queue_and_a_front_end_that_has_ended(rig, broker):
    index = rig.begin()
    purge(rig, index)
    rig.engine.purge(1 << 40)
    rig.finish()


def test_a_transactional_front_end_is_refused(rig):
    index = rig.attach(transactional_id="orders", transaction_timeout_ms=60_000)
    with pytest.raises(ValueError, match="aborts"):
        rig.engine.purge(rig.front_ends[index].attach_id)
