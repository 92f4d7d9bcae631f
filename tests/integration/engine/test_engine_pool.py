"""Tests that requests that would wait for each other go by further connections to the broker."""

import random
import time

import pytest
from kfake.scripted_broker import ScriptedBroker
from support.apart import FIRST, acknowledged, are_apart, one_round, until_apart, warm_up
from support.fault_rig import Rig
from support.front_end import run_until, topic_number
from support.successor import succeed
from support.transaction_table import leave_transactions_to_the_test

from cyproducer.sender.cluster import connections as connections_module
from cyproducer.sender.cluster import engine as engine_module
from cyproducer.transaction_states import TransactionState

PARTITIONS = 4
OTHERS = range(1, PARTITIONS)
LONG_S = 120
"""Longer than any test."""
IDLE_MS = 60_000
LATE_S = 0.025
"""No answer is late before (pool.pyx, LATE_MIN_NS)."""
ATTEMPTS = 20
TRANSACTIONAL_PRODUCERS = 3


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


def test_a_slow_partition_and_the_others_stay_apart(rig) -> None:
    until_apart(rig, 0, OTHERS)
    for _ in range(10):
        one_round(rig, range(PARTITIONS))
        assert are_apart(rig, [0], OTHERS)
    assert len({rig.broker.connection_of(partition) for partition in OTHERS}) == 1, "the others share their requests"
    end(rig)


def test_others_that_share_each_request_with_a_slow_partition_leave_it(rig) -> None:
    """Several batches of each are in flight all the time, so none of them is ever free to go by itself."""
    rig.broker.slow = {0: 0.15}

    def apart() -> bool:
        for partition in range(PARTITIONS):
            rig.send(0, partition, records=1)
        rig.engine.run(20)
        rig.listen()
        return are_apart(rig, [0], OTHERS)

    for _ in range(3):
        run_until(rig.engine, apart, 60)
    end(rig)


def test_two_slow_partitions_are_apart_from_the_others(rig) -> None:
    rig.broker.slow = {0: 0.15, 1: 0.15}

    def apart() -> bool:
        one_round(rig, range(PARTITIONS))
        return are_apart(rig, [0, 1], [2, 3])

    run_until(rig.engine, lambda: all(apart() for _ in range(3)), 60)
    end(rig)


def test_the_lanes_return_when_the_partition_has_recovered(rig, monkeypatch) -> None:
    """Nothing was late for 10 s by then. After some more time the further connections are closed."""
    monkeypatch.setattr(connections_module, "FURTHER_IDLE_MS", 1000)
    until_apart(rig, 0, OTHERS)
    rig.broker.recover()

    def all_by_first() -> bool:
        rig.engine.run(50)
        one_round(rig, range(PARTITIONS))
        return not any(map(rig.broker.connection_of, range(PARTITIONS)))

    run_until(rig.engine, all_by_first, 60)
    run_until(rig.engine, lambda: all_by_first() and len(rig.broker._connections) == 1, 30)
    accepted = rig.broker.accepted
    one_round(rig, range(PARTITIONS))
    assert {rig.broker.connection_of(partition) for partition in range(PARTITIONS)} == {FIRST}
    assert rig.broker.accepted == accepted
    end(rig)


def test_a_partition_of_which_others_wait_for_nothing_has_one_connection(rig) -> None:
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


def hang_for_moments(rig: Rig) -> float:
    """Hang some times, with three rounds of answers after each time. Return the seconds of the longest of those."""
    longest = 0.0
    for _ in range(5):
        with rig.broker.lock:
            for partition in range(PARTITIONS):
                rig.send(0, partition, records=1)
                rig.engine.run(10)
            ends = time.monotonic() + 0.15
            while time.monotonic() < ends:
                rig.engine.run(10)
        rig.settle(30)
        for _ in range(3):
            begins = time.monotonic()
            one_round(rig, range(PARTITIONS))
            longest = max(longest, time.monotonic() - begins)
    return longest


def test_a_broker_that_hangs_for_a_moment_gets_no_further_connection() -> None:
    """Each lane is late once in a row only. If a busy machine makes it late again, that is another attempt."""
    for _ in range(ATTEMPTS):
        with ScriptedBroker(**BROKER) as broker, Rig(broker, request_timeout_ms=30_000) as rig:
            rig.attach(slots=8192)
            warm_up(rig, PARTITIONS)
            broker.every = (0.01, 0.01)
            longest = hang_for_moments(rig)
            end(rig)
        if len(broker.carriers) == 1:
            return
        assert longest > LATE_S, f"{len(broker.carriers)} connections, and each round took at most {longest:.3f} s"
    raise AssertionError(f"this machine answers later than {LATE_S} s all the time")


def test_a_broker_that_was_slow_from_the_start_has_one_connection(broker) -> None:
    broker.every = (0.1, 0.1)
    with Rig(broker, request_timeout_ms=30_000) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        for _ in range(20):
            one_round(rig, range(PARTITIONS))
        assert len(broker.carriers) == 1
        end(rig)


def test_a_broker_that_becomes_slow_has_one_connection_again(rig) -> None:
    """When it was late on all connections that it may have, its usual time is a longer one."""
    rig.broker.every = (0.06, 0.06)

    def together() -> bool:
        one_round(rig, range(PARTITIONS))
        return all(rig.broker.connection_of(partition) == FIRST for partition in range(PARTITIONS))

    run_until(rig.engine, lambda: all(together() for _ in range(10)), 120)
    end(rig)


@pytest.mark.parametrize("most", [1, 2])
def test_a_broker_has_no_more_connections_than_it_may_have(broker, most: int) -> None:
    with Rig(broker, request_timeout_ms=30_000, connections_per_broker=most) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        broker.slow = {0: 0.1, 1: 0.1, 2: 0.1}
        for _ in range(20):
            one_round(rig, range(PARTITIONS))
        assert len(broker.carriers) == most
        end(rig)


def test_everything_goes_by_the_first_connection_if_a_further_one_is_refused(rig) -> None:
    rig.broker.refuses_more = True
    rig.broker.slow = {0: 0.1}
    for _ in range(10):
        one_round(rig, range(PARTITIONS))
    assert len(rig.broker.carriers) == 1
    rig.broker.refuses_more = False
    until_apart(rig, 0, OTHERS)
    end(rig)


@pytest.mark.parametrize("slow_one", [True, False])
def test_a_broken_connection_loses_nothing(rig, slow_one: bool) -> None:
    until_apart(rig, 0, OTHERS)
    slots = hang(rig, 0) if slow_one else hang(rig, *OTHERS)
    number = rig.broker.connection_of(0 if slow_one else OTHERS[-1])
    rig.broker.slow = {}
    rig.broker.drop(number)
    run_until(rig.engine, lambda: acknowledged(rig, 0, slots[-1]))
    end(rig)


@pytest.mark.parametrize("slow_one", [True, False])
def test_a_request_that_times_out_is_sent_again(broker, slow_one: bool) -> None:
    with Rig(broker, request_timeout_ms=1000) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        until_apart(rig, 0, OTHERS)
        [slot] = hang(rig, 0 if slow_one else 1)
        broker.slow = {}
        run_until(rig.engine, lambda: acknowledged(rig, 0, slot), 20)
        end(rig)


def test_a_successor_begins_with_one_connection(rig) -> None:
    until_apart(rig, 0, OTHERS)
    hang(rig, 0)
    rig.broker.slow = {}
    rig.broker.carriers.clear()
    succeed(rig)
    for _ in range(3):
        one_round(rig, range(PARTITIONS))
    assert len(rig.broker.carriers) == 1
    end(rig)


def test_a_throttle_time_counts_for_all_connections(rig) -> None:
    until_apart(rig, 0, OTHERS)
    rig.broker.slow = {}
    first = rig.engine._connections.get(1)
    everyone = [first, *rig.engine._connections._further[first.node]]
    rig.engine._loop.throttle(everyone[-1].node, 60_000)
    assert all(each.throttled_ms > 50_000 for each in everyone)


def test_partitions_are_apart_at_each_new_leader() -> None:
    with ScriptedBroker(partitions=PARTITIONS, nodes=2) as broker, Rig(broker, request_timeout_ms=30_000) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        until_apart(rig, 0, [2])
        for _ in range(4):  # also back to a broker at which the partition was slow
            broker.slow = {}
            broker.move_leaders()
            one_round(rig, range(PARTITIONS))
            until_apart(rig, 0, [2])
        end(rig)


def test_a_leader_that_changes_and_returns_gets_the_batches_by_the_same_connection() -> None:
    """One of them is in flight on a further connection meanwhile. Its partition must not overtake it."""
    with ScriptedBroker(partitions=PARTITIONS, nodes=2) as broker, Rig(broker, request_timeout_ms=30_000) as rig:
        rig.attach(slots=8192)
        warm_up(rig, PARTITIONS)
        until_apart(rig, 0, [2])
        partition = next(each for each in (0, 2) if broker.connection_of(each) == 1)
        hang(rig, partition)
        names, number = rig.engine._connections, rig.engine._loop.add_topic(broker.topic)
        nodes = [names.node_of(1), names.node_of(2)]
        leaders = [nodes[0] if each.leader == 1 else nodes[1] for each in broker.partitions]
        for _ in range(2):  # to the other one and back
            leaders = [nodes[1 - nodes.index(each)] for each in leaders]
            rig.engine._loop.set_leaders(number, leaders, [-1] * PARTITIONS)
        before = broker.produce_requests
        rig.send(0, partition, records=1)
        run_until(rig.engine, lambda: broker.produce_requests > before)
        assert broker.connection_of(partition) == 1
        end(rig)


def test_the_number_of_a_slow_partition_is_given_back(broker, monkeypatch) -> None:
    """Nothing refers to its lane after that: other partitions are found as before."""
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
def test_a_transaction_does_not_wait_for_the_batches_of_another_one(rig, v2: bool) -> None:
    """Each producer has lanes and sequences of its own. They are freed while a batch of another one is unanswered."""
    leave_transactions_to_the_test(rig.engine)
    table = rig.engine._transaction_table
    everywhere = [(rig.broker.topic, partition) for partition in range(PARTITIONS)]
    indexes = [
        rig.attach(slots=8192, transactional_id=f"id-{number}", transaction_timeout_ms=60_000)
        for number in range(TRANSACTIONAL_PRODUCERS)
    ]
    rows = [table.row_of(rig.front_ends[index].attach_id) for index in indexes]
    for number, row in enumerate(rows):
        table.store(row, TransactionState.READY, 700 + number, 0, 1, 0, v2)
    rig.broker.slow = {0: 0.4}

    def passed() -> bool:
        """Return whether the batches of all other transactions are acknowledged before that of the first one."""
        rig.send(indexes[0], 0, records=1)
        for index in indexes[1:]:
            rig.engine.run(10)
            for partition in OTHERS:
                rig.send(index, partition, records=1)
        last = {index: len(rig.sent[index]) - 1 for index in indexes}

        def others_acknowledged() -> bool:
            for row in rows:
                table.on_partitions_added(row, everywhere)  # those whose batches the engine has found until now
            return all(acknowledged(rig, index, last[index]) for index in indexes[1:])

        run_until(rig.engine, others_acknowledged)
        was_first = last[indexes[0]] not in rig.heard[indexes[0]]
        run_until(rig.engine, lambda: acknowledged(rig, indexes[0], last[indexes[0]]))
        return was_first

    run_until(rig.engine, lambda: all(passed() for _ in range(3)), 60)
    for index, row in zip(indexes[1:], rows[1:], strict=True):
        rig.engine.detach(rig.front_ends[index].attach_id)
        run_until(rig.engine, lambda row=row: table.remove(row))
    end(rig)
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
        assert len(broker.carriers) > 2
