"""Tests that one front-end or one sick broker does not delay others: table shares, round-robin, bytes in flight."""

from collections.abc import Collection

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import Rig
from support.front_end import run_until
from support.successor import succeed

from cyproducer.codes import NOT_ENOUGH_REPLICAS

ENTRIES = 8192
MANY = ENTRIES + 512  # more partitions than there are entries
WIRES_PER_REQUEST = 512
WINDOW_MIN_BYTES = 524_288
BUSY, QUIET = 0, 1
#: The scripted broker handles one request at a time: further connections only lengthen its queue.
ONE_CONNECTION = {"request_timeout_ms": 60_000, "connections_per_broker": 1}


class SickBroker(ScriptedBroker):
    """`frozen` nodes never answer Produce requests; partitions that are `short` have too few replicas."""

    def __init__(self, **settings) -> None:
        super().__init__(**settings)
        self.frozen: Collection[int] = ()
        self.short: Collection[int] = ()

    def take_fault(self, node: int) -> Fault:
        if node in self.frozen:
            return Fault(hang="lost")
        if self.short:
            return Fault(code=NOT_ENOUGH_REPLICAS, partitions=self.short)
        return super().take_fault(node)


def warm_up(rig: Rig, partitions: Collection[int], index: int = BUSY) -> None:
    """Have one batch for each partition acknowledged: from then on up to five may be in flight."""
    for partition in partitions:
        rig.send(index, partition, records=1)
    rig.settle(60)


def run_for(rig: Rig, turns: int) -> None:
    for _ in range(turns):
        rig.engine.run(2)
        rig.listen()


def turn(rig: Rig) -> None:
    """Run one loop iteration: it handles at most one answer of a broker with one request in flight."""
    rig.engine.run(0)
    rig.listen()


def use_up(rig: Rig, least: int) -> int:
    """Run until at least so many entries are in use, and no more come into use; return how many."""
    before = 0
    run_until(rig.engine, lambda: rig.listen() or rig.engine.tables_in_use()["entries"] >= least, 60)
    while rig.engine.tables_in_use()["entries"] > before:
        before = rig.engine.tables_in_use()["entries"]
        run_for(rig, 200)
    return before


def send_to_short_partitions(rig: Rig) -> None:
    """Take replicas from all partitions but the first; the front-end with the backlog sends to each of these."""
    rig.attach(slots=MANY)
    rig.attach()
    rig.broker.short = range(1, MANY)
    for partition in rig.broker.short:
        rig.send(BUSY, partition, records=1)


def get_well(rig: Rig) -> None:
    """Give the partitions their replicas back; everything arrives."""
    rig.broker.short = ()
    rig.finish(120)


def heard(rig: Rig, index: int, timeout: float = 20) -> None:
    """Return whether the front-end's last batch has a result."""
    run_until(rig.engine, lambda: rig.listen() or len(rig.heard[index]) == len(rig.sent[index]), timeout)


def test_brokers_that_do_not_answer_leave_entries_for_one_that_does() -> None:
    """Four of five brokers are frozen with as many batches as they take; then all leaders move to the healthy one."""
    partitions = 5 * WIRES_PER_REQUEST
    with SickBroker(partitions=partitions, nodes=5) as broker, Rig(broker, request_timeout_ms=60_000) as rig:
        rig.attach(slots=6 * partitions)
        rig.attach()
        warm_up(rig, range(partitions))
        warm_up(rig, [4], QUIET)
        broker.frozen = (1, 2, 3, 4)
        for _ in range(5):
            for partition in range(partitions):
                if partition % 5 != 4:
                    rig.send(BUSY, partition, records=1)
            run_for(rig, 1)
        assert use_up(rig, ENTRIES // 2) <= ENTRIES - ENTRIES // (2 * 6)
        for index in (QUIET, BUSY):  # a front-end with a backlog for the others is served here too
            rig.send(index, 4, records=1)
            run_until(rig.engine, lambda i=index: rig.listen() or len(rig.sent[i]) - 1 in rig.heard[i])
        with broker.lock:
            broker.frozen = ()
            for partition in broker.partitions:
                partition.leader, partition.leader_epoch = 5, partition.leader_epoch + 1
        broker.drop_connections()
        rig.finish(120)


@pytest.mark.long
def test_partitions_that_are_short_of_replicas_leave_entries_for_others_of_their_broker() -> None:
    with SickBroker(partitions=MANY, nodes=1) as broker, Rig(broker, **ONE_CONNECTION) as rig:
        send_to_short_partitions(rig)
        assert use_up(rig, 5 * WIRES_PER_REQUEST) <= ENTRIES * 3 // 4
        rig.send(QUIET, 0, records=1)
        heard(rig, QUIET)
        get_well(rig)


@pytest.mark.long
def test_the_reserve_holds_after_takeovers() -> None:
    """A successor does not know which entries came from the reserve. It counts the same number as taken from it."""
    with SickBroker(partitions=MANY, nodes=1) as broker, Rig(broker, **ONE_CONNECTION) as rig:
        send_to_short_partitions(rig)
        most = use_up(rig, ENTRIES // 2 + 1)
        assert most <= ENTRIES * 3 // 4
        for _ in range(3):
            succeed(rig)
            rig.send(QUIET, 0, records=1)
            heard(rig, QUIET)
            assert use_up(rig, 1) <= most
        get_well(rig)


@pytest.mark.long
def test_a_broker_that_has_used_the_most_has_entries_left_for_another_front_end() -> None:
    """All five are short of replicas. The other front-end's broker takes entries first, while the table is empty."""
    partitions = 5 * 1800
    with SickBroker(partitions=partitions, nodes=5) as broker, Rig(broker, request_timeout_ms=60_000) as rig:
        rig.attach(slots=partitions)
        rig.attach()
        broker.short = frozenset(range(partitions)) - {4}
        for nodes, least in (((4,), 1), ((0, 1, 2, 3), ENTRIES // 2 + 1)):
            for partition in range(5, partitions):
                if partition % 5 in nodes:
                    rig.send(BUSY, partition, records=1)
            use_up(rig, least)
        rig.send(QUIET, 4, records=1)
        heard(rig, QUIET)
        get_well(rig)


def test_a_backlog_in_many_partitions_is_passed_by_a_single_batch() -> None:
    settings = {"max_request_size": 100_000, "max_in_flight_requests_per_connection": 1}
    partitions = 1000
    with ScriptedBroker(partitions=partitions, nodes=1) as broker, Rig(broker, **settings) as rig:
        rig.attach(slots=3 * partitions)
        rig.attach()
        warm_up(rig, [0], QUIET)
        for _ in range(2):
            for partition in range(1, partitions):
                rig.send(BUSY, partition, records=1, size=3_500)
        while len(rig.heard[BUSY]) < 100:
            turn(rig)
        before = len(rig.heard[BUSY])
        rig.send(QUIET, 0, records=1, size=3_500)  # too large for the space that other batches leave in a request
        while len(rig.heard[QUIET]) < 2:
            turn(rig)
        assert len(rig.heard[BUSY]) - before <= 4 * 100_000 // 3_500, "it waited for more than the next requests"
        rig.finish(60)


def test_two_backlogs_share_a_broker_by_bytes_and_not_by_partitions() -> None:
    settings = {"max_request_size": 120_000, "max_in_flight_requests_per_connection": 1}
    with ScriptedBroker(partitions=340, nodes=1) as broker, Rig(broker, **settings) as rig:
        rig.attach_many(2, slots=1024)
        warm_up(rig, range(340))
        for number in range(640):
            rig.send(BUSY, 20 + number % 320, records=1, size=3_500)
            rig.send(QUIET, number % 20, records=1, size=3_500)
        before = len(rig.heard[BUSY])
        while len(rig.heard[QUIET]) < 200:
            turn(rig)
        served = len(rig.heard[BUSY]) - before
        assert 100 <= served <= 400, served
        rig.finish(60)


@pytest.mark.parametrize("shared", [False, True])
def test_bytes_in_flight_are_limited_when_another_front_end_uses_the_broker(shared: bool) -> None:
    partitions = 1500
    with SickBroker(partitions=partitions, nodes=1) as broker, Rig(broker, request_timeout_ms=60_000) as rig:
        rig.attach(slots=3 * partitions)
        rig.attach()
        warm_up(rig, range(partitions))
        if shared:
            warm_up(rig, [0], QUIET)
        broker.frozen = (1,)
        for partition in range(partitions):
            rig.send(BUSY, partition, records=1, size=3_500)
        if shared:
            assert use_up(rig, WINDOW_MIN_BYTES // 2 // 3_500) * 3_500 <= WINDOW_MIN_BYTES
        else:
            use_up(rig, 4 * WINDOW_MIN_BYTES // 3_500 + 1)
        broker.frozen = ()
        broker.drop_connections()
        rig.finish(60)
