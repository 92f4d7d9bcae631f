"""Tests that a partition that is slow to acknowledge goes by a second connection, and the others need not wait."""

import os
import random
import time

import pytest
from kfake.scripted_broker import ScriptedBroker
from support import layout
from support.fault_rig import Rig
from support.front_end import run_until, topic_number
from support.slow_lanes import FIRST, SLOW, acknowledged, one_round, until_apart, warm_up
from support.successor import succeed
from support.transaction_table import leave_transactions_to_the_test

from cyproducer.sender.cluster import engine as engine_module
from cyproducer.transaction_states import TransactionState

PARTITIONS = 4
OTHERS = range(1, PARTITIONS)
LONG_S = 120
"""Longer than any test."""
IDLE_MS = 60_000
TRANSACTIONAL_PRODUCERS = 3
NOT_LATE_NS = 100_000_000
"""Longer than the time after which an answer is late."""


BROKER = {"partitions": PARTITIONS, "nodes": 1}


@pytest.fixture
def rig(broker):
    with Rig(broker, request_timeout_ms=30_000) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        yield rig


def end(rig: Rig) -> None:
    rig.broker.recover()
    rig.finish(60)


def hang(rig: Rig, *partitions: int) -> list[int]:
    """Send a batch to each of these partitions that is not answered any more. Return their slots."""
    rig.broker.slow = dict.fromkeys(partitions, LONG_S)
    first = len(rig.sent[0])
    for partition in partitions:
        rig.broker.arrived.clear()
        rig.send(0, partition, records=1)
        run_until(rig.engine, lambda p=partition: any(p in each for _, each in list(rig.broker.arrived)))
    return list(range(first, len(rig.sent[0])))


def test_other_partitions_are_acknowledged_while_one_is_not(rig) -> None:
    until_apart(rig, 0, OTHERS)
    [slot] = hang(rig, 0)
    for _ in range(20):
        for partition in OTHERS:
            rig.send(0, partition, records=1)
        last = len(rig.sent[0]) - 1
        run_until(rig.engine, lambda last=last: acknowledged(rig, 0, last))
    assert slot not in rig.heard[0]
    end(rig)


def test_only_the_slow_partition_stays_on_the_slow_connection(rig) -> None:
    until_apart(rig, 0, OTHERS)
    for _ in range(10):
        one_round(rig, range(PARTITIONS))
        assert rig.broker.connection_of(0) == SLOW
    assert all(number == FIRST for number, partitions in list(rig.broker.arrived)[-20:] if 0 not in partitions)
    end(rig)


def test_two_slow_partitions_are_found(rig) -> None:
    rig.broker.slow = {0: 0.15, 1: 0.15}

    def apart() -> bool:
        one_round(rig, range(PARTITIONS))
        return [rig.broker.connection_of(partition) for partition in range(PARTITIONS)] == [SLOW, SLOW, FIRST, FIRST]

    run_until(rig.engine, lambda: apart() and apart(), 60)
    end(rig)


def test_others_that_are_doubted_do_not_wait_behind_a_slow_partition(rig) -> None:
    """They are doubted because of a pause of the broker, while the slow connection waits for an answer."""
    until_apart(rig, 0, OTHERS)

    def passed() -> bool:
        """Return whether the others were answered first, and had trials after that."""
        rig.broker.slow = {0: 0.4}
        rig.send(0, 0, records=1)
        slot = len(rig.sent[0]) - 1
        run_until(rig.engine, lambda: rig.broker.arrived[-1] == (SLOW, [0]))
        for every in (0.1, 0.0):  # the first one is late, and causes doubts
            rig.broker.every = (every, every)
            for partition in OTHERS:
                rig.send(0, partition, records=1)
            last = len(rig.sent[0]) - 1
            run_until(rig.engine, lambda last=last: acknowledged(rig, 0, last))
        was_first = slot not in rig.heard[0]
        run_until(rig.engine, lambda: acknowledged(rig, 0, slot))
        rig.broker.arrived.clear()
        one_round(rig, OTHERS)
        return was_first and any(number == SLOW for number, _ in rig.broker.arrived)

    run_until(rig.engine, passed, 60)
    end(rig)


@pytest.fixture
def woken(rig):
    """Let the engine wake up at once, whenever it is about to sleep."""
    reads, writes = os.pipe()
    os.write(writes, b"x")
    rig.engine.watch(reads)
    yield
    rig.engine.unwatch(reads)
    os.close(reads)
    os.close(writes)


@pytest.mark.usefixtures("woken")
def test_the_sender_sleeps_until_slow_partitions_need_not_wait_for_trials_any_more(rig) -> None:
    """It does so in each iteration of its loop, not only in the one in which a partition was doubted."""

    def sleeps_twice_until_the_same_time() -> bool:
        rig.broker.arrived.clear()
        hang(rig, 0, 1)
        ends_of_sleeps: list[int] = []
        until = time.monotonic() + 1
        with rig.front_ends[0].snapshot.region.memory() as memory:
            while time.monotonic() < until and len(set(ends_of_sleeps)) == len(ends_of_sleeps):
                sleeps = layout.read(memory, "cyp_snapshot_header", 0, "sleep")
                rig.engine.run(IDLE_MS)
                header = layout.read_all(memory, "cyp_snapshot_header", 0)
                now_sleeps, ends_ns = header["sleep"], header["next_wake_ns"]
                if now_sleeps != sleeps and ends_ns > time.monotonic_ns() + NOT_LATE_NS:
                    ends_of_sleeps.append(ends_ns)
        rig.broker.recover()
        rig.settle(60)
        return len(set(ends_of_sleeps)) < len(ends_of_sleeps)

    run_until(rig.engine, sleeps_twice_until_the_same_time, 60)
    end(rig)


def test_a_partition_that_recovers_returns_to_the_first_connection(rig) -> None:
    until_apart(rig, 0, OTHERS)
    rig.broker.recover()
    run_until(rig.engine, lambda: one_round(rig, range(PARTITIONS)) or rig.broker.connection_of(0) == FIRST, 60)
    end(rig)


def test_a_partition_of_which_others_wait_for_nothing_is_not_doubted(rig) -> None:
    """Several of its batches may be in flight, unanswered."""
    accepted = rig.broker.accepted
    rig.broker.slow = {0: LONG_S}
    for _ in range(5):
        rig.send(0, 0, records=1)
        before = rig.broker.produce_requests
        run_until(rig.engine, lambda n=before: rig.broker.produce_requests > n)
        rig.engine.run(50)
    assert rig.broker.accepted == accepted
    end(rig)


def test_requests_are_sent_behind_a_late_one(rig) -> None:
    """A late request is no reason to send nothing: a batch that waits here would not arrive earlier."""
    rig.broker.refuses_more = True
    hang(rig, 0)
    rig.engine.run(100)
    for partition in (1, 2):
        before = rig.broker.produce_requests
        rig.send(0, partition, records=1)
        run_until(rig.engine, lambda n=before: rig.broker.produce_requests > n)
    end(rig)


def test_a_broker_that_hangs_for_a_moment_causes_no_doubt(rig) -> None:
    """It does not answer by another connection either. Then it answers that one before the late request."""
    rig.broker.every = (0.01, 0.01)
    for _ in range(5):
        with rig.broker.lock:
            for partition in range(PARTITIONS):
                rig.send(0, partition, records=1)
            ends = time.monotonic() + 0.15
            while time.monotonic() < ends:
                rig.engine.run(10)
        rig.settle(30)
        one_round(rig, range(PARTITIONS))
    assert rig.broker.accepted > 1, "the sender did not ask by a second connection"
    assert {number for number, _ in rig.broker.arrived} == {FIRST}
    end(rig)


@pytest.mark.parametrize("every", [(0.1, 0.1), (0.001, 0.2)])
def test_a_broker_that_is_slow_as_a_whole_gets_everything_by_one_connection(broker, every) -> None:
    broker.every = every
    with Rig(broker, request_timeout_ms=30_000) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        for _ in range(20):
            one_round(rig, range(PARTITIONS))
        assert len(broker.carriers) == 1
        end(rig)


def test_a_broker_that_becomes_slow_gets_everything_by_one_connection_again(rig) -> None:
    rig.broker.every = (0.06, 0.06)

    def together() -> bool:
        one_round(rig, range(PARTITIONS))
        return all(rig.broker.connection_of(partition) == FIRST for partition in range(PARTITIONS))

    run_until(rig.engine, lambda: all(together() for _ in range(10)), 120)
    end(rig)


def test_everything_goes_by_the_first_connection_if_the_second_one_is_refused(rig) -> None:
    rig.broker.refuses_more = True
    rig.broker.slow = {0: 0.1}
    for _ in range(10):
        one_round(rig, range(PARTITIONS))
    assert len(rig.broker.carriers) == 1
    rig.broker.refuses_more = False
    until_apart(rig, 0, OTHERS)
    end(rig)


@pytest.mark.parametrize("number", [FIRST, SLOW])
def test_a_broken_connection_loses_nothing(rig, number: int) -> None:
    until_apart(rig, 0, OTHERS)
    [slot] = hang(rig, 0)
    if number == FIRST:
        slot = hang(rig, *OTHERS)[-1]
    rig.broker.slow = {}
    rig.broker.drop(number)
    run_until(rig.engine, lambda: acknowledged(rig, 0, slot))
    end(rig)


@pytest.mark.parametrize("number", [FIRST, SLOW])
def test_a_request_that_times_out_is_sent_again(broker, number: int) -> None:
    with Rig(broker, request_timeout_ms=1000) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        until_apart(rig, 0, OTHERS)
        partition = 0 if number == SLOW else 1
        [slot] = hang(rig, partition)
        broker.slow = {}
        run_until(rig.engine, lambda: acknowledged(rig, 0, slot), 20)
        end(rig)


def test_a_successor_doubts_nothing(rig) -> None:
    until_apart(rig, 0, OTHERS)
    hang(rig, 0)
    rig.broker.slow = {}
    rig.broker.carriers.clear()
    succeed(rig)
    for _ in range(3):
        one_round(rig, range(PARTITIONS))
    assert len(rig.broker.carriers) == 1
    end(rig)


def test_a_new_leader_ends_a_doubt() -> None:
    with ScriptedBroker(partitions=PARTITIONS, nodes=2) as broker, Rig(broker, request_timeout_ms=30_000) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        until_apart(rig, 0, [2])
        for _ in range(4):  # also back to a broker with which the partition was slow
            broker.slow = {}
            broker.move_leaders()
            one_round(rig, range(PARTITIONS))
            assert broker.connection_of(0) == FIRST
            until_apart(rig, 0, [2])
        end(rig)


def test_the_slow_connection_is_closed_when_it_is_idle(broker) -> None:
    with Rig(broker, request_timeout_ms=30_000, connections_max_idle_ms=1000) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        until_apart(rig, 0, OTHERS)
        broker.slow = {}
        accepted = broker.accepted
        run_until(rig.engine, lambda: one_round(rig, OTHERS) or len(broker._connections) == 1, 30)
        one_round(rig, [0])
        assert broker.connection_of(0) == FIRST
        assert broker.accepted == accepted
        end(rig)


def test_the_number_of_a_slow_partition_is_given_back(broker, monkeypatch) -> None:
    """Nothing refers to its lane after that: other partitions are doubted and found as before."""
    ahead, now_ms = [0], engine_module._now_ms
    monkeypatch.setattr(engine_module, "_now_ms", lambda: now_ms() + ahead[0])
    with Rig(broker, request_timeout_ms=30_000, metadata_max_idle_ms=IDLE_MS) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        for slow in (0, 1):
            until_apart(rig, slow, [other for other in range(PARTITIONS) if other != slow])
            broker.slow = {}
            while broker.topic in rig.engine._loop.topics():
                ahead[0] += IDLE_MS + 1
                answered = broker.metadata_requests
                rig.engine._cluster.request_update()
                rig.engine.want_topic(rig.front_ends[0].attach_id, "another")
                run_until(rig.engine, lambda before=answered: broker.metadata_requests > before)
                for _ in range(20):
                    rig.engine.run(0)
            rig.number = topic_number(rig.engine, rig.front_ends[0], broker.topic)
        end(rig)


@pytest.mark.parametrize("v2", [False, True])
def test_the_lanes_of_transactional_producers_become_slow_and_end(rig, v2: bool) -> None:
    """Each producer has lanes and sequences of its own. They are freed while one of them is slow."""
    leave_transactions_to_the_test(rig.engine)
    table = rig.engine.transactions
    everywhere = [(rig.broker.topic, partition) for partition in range(PARTITIONS)]
    for producer in range(TRANSACTIONAL_PRODUCERS):
        index = rig.attach(slots=8192, transactional_id=f"id-{producer}", transaction_timeout_ms=60_000)
        attach_id = rig.front_ends[index].attach_id
        row = table.row_of(attach_id)
        rig.broker.slow = {0: 0.15}

        def apart(index=index, row=row) -> bool:
            for partition in range(PARTITIONS):
                rig.send(index, partition, records=1)
            rig.engine.run(0)
            table.note_added(row, everywhere)
            rig.settle(30)
            return [rig.broker.connection_of(partition) for partition in range(PARTITIONS)] == [SLOW, *[FIRST] * 3]

        for epoch in range(2):
            table.store(row, TransactionState.READY, 700 + producer, epoch, epoch + 1, 0, v2)
            run_until(rig.engine, lambda apart=apart: apart() and apart(), 60)
            assert not table.is_busy(row)
        rig.engine.detach(attach_id)
        run_until(rig.engine, lambda row=row: table.remove(row))
        assert rig.errors(index) == [0] * len(rig.sent[index])
    until_apart(rig, 0, OTHERS)
    end(rig)


@pytest.mark.parametrize("idempotent", [True, pytest.param(False, marks=pytest.mark.long)])
def test_nothing_is_lost_doubled_or_reordered_while_partitions_become_slow_and_connections_break(idempotent) -> None:
    chance = random.Random(7)
    with ScriptedBroker(partitions=8, nodes=2) as broker, Rig(broker, request_timeout_ms=30_000) as rig:
        rig.attach_many(3, slots=8192, idempotent=idempotent)
        warm_up(rig, 8)
        ends = time.monotonic() + 12
        number = 0
        while time.monotonic() < ends:
            number += 1
            for index in range(3):
                rig.send(index, chance.randrange(8), records=1, poison=chance.random() < 0.02)
            rig.engine.run(3)
            rig.listen()
            if number % 60 == 0:
                broker.slow = {chance.randrange(8): chance.choice((0.04, 0.1, 0.3)) for _ in range(chance.randrange(4))}
            if idempotent and number % 200 == 0:
                broker.drop_connections()
            if rig.engine.undelivered() > 2000:
                broker.recover()
                rig.settle(60)
        broker.recover()
        rig.finish(60, exactly=idempotent)
        assert any(connection != FIRST for connection, _ in broker.arrived) or len(broker.carriers) > 2
