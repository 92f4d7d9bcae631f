"""Tests refused records and of records changed after the commit, on a scripted cluster: others are not affected."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kfake.partition_log import LogBatch
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import INVALID_RECORD, POISON, Rig, send_merged
from support.front_end import run_until

from cyproducer import errors
from cyproducer.codes import (
    CORRUPT_MESSAGE,
    INVALID_PRODUCER_EPOCH,
    MESSAGE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    REQUEST_TIMED_OUT,
)

# batches that an isolated front-end has to send without refusal before it leaves the isolation lane (isolation_batches)
ISOLATION_BATCHES = 16


BROKER = {"partitions": 1, "nodes": 1}


def lanes(broker) -> dict[int, list[LogBatch]]:
    """Return the log's batches by producer id."""
    found: dict[int, list[LogBatch]] = {}
    for batch in broker.partitions[0].batches:
        found.setdefault(batch.producer_id, []).append(batch)
    return found


# ---------------------------------------------------------------- whose batch fails


@pytest.mark.parametrize("version", [12, 9, 8, 7, 3])
@pytest.mark.parametrize("poisoned", [(0,), (2,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_only_front_ends_with_bad_records_in_a_merged_batch_fail(version, poisoned):
    """Versions below 8 do not say which record was refused: each contributor is tried alone."""
    with ScriptedBroker(partitions=1, nodes=1, produce_version=version) as broker, Rig(broker) as rig:
        rig.attach_many(4, linger_ms=30)
        send_merged(rig, 4, poisoned)
        rig.check()
        assert [rig.errors(index) for index in range(4)] == [
            [INVALID_RECORD if index in poisoned else 0] for index in range(4)
        ]


def test_a_named_record_costs_one_refusal_and_the_others_stay_together(rig, broker):
    rig.attach_many(5, linger_ms=30)
    send_merged(rig, 5, (1, 3))
    rig.check()
    assert broker.refused == 1
    assert [batch.count for batch in lanes(broker)[1001]] == [6, 1, 1], (
        "the three others in one batch, then the good records"
    )


def test_batch_left_alone_after_a_refusal_is_sent_from_its_own_memory(rig, broker):
    rig.attach_many(2, linger_ms=30)
    send_merged(rig, 2, (0,))
    rig.check()
    assert rig.errors(1) == [0]


@pytest.mark.parametrize("acks", [-1, 1])
def test_without_idempotence_too(rig, broker, acks):
    rig.attach_many(3, linger_ms=30, acks=acks, enable_idempotence=False)
    send_merged(rig, 3, (2,))
    for number in range(5):  # the isolated front-end sends alone from here on
        for index in range(3):
            rig.send(index, 0, poison=index == 2 and number % 2 == 1)
        rig.settle()
    rig.check()
    assert rig.errors(2) == [INVALID_RECORD, 0] * 3
    assert rig.errors(0) == rig.errors(1) == [0] * 6


def test_batches_that_are_too_large_once_merged_become_smaller(broker, rig):
    """The engine learns the limit: after a few refusals merged batches fit, and all records arrive."""
    broker.largest = 1500
    rig.attach_many(8, linger_ms=5)
    for _ in range(12):
        for index in range(8):
            rig.send(index, 0, records=1, size=400, seal=False)
        rig.settle()
    rig.check()
    assert all(set(rig.errors(index)) == {0} for index in range(8))
    assert 0 < broker.refused <= 3
    assert len(lanes(broker)) == 1, "no front-end is isolated for what others added"


def test_one_front_end_whose_own_batches_are_too_large(broker, rig):
    broker.largest = 1500
    rig.attach()
    rig.attach()
    for _ in range(6):
        rig.send(0, 0, size=2000)
        rig.deliver(1, 0)
    rig.check()
    assert rig.errors(0) == [MESSAGE_TOO_LARGE] * 6
    assert rig.errors(1) == [0] * 6


# ---------------------------------------------------------------- the isolation lane


def test_an_isolated_front_end_does_not_bump_the_epoch_of_the_others(rig, broker):
    """One front-end pipelines bad records only; two others go on in one epoch."""
    isolated, *others = [rig.attach(linger_ms=2) for _ in range(3)]
    for round_number in range(25):
        for _ in range(4):
            rig.send(isolated, 0, seal=False, poison=True)
        for index in others:
            rig.send(index, 0, seal=False)
        rig.engine.run(1)
        if round_number % 5 == 4:
            rig.settle()
    rig.finish()
    assert set(rig.errors(isolated)) == {INVALID_RECORD}
    assert all(set(rig.errors(index)) == {0} for index in others)
    ordinary = lanes(broker)[1001]
    assert ordinary[-1].epoch <= 1, "the epoch of the others was raised again and again"


def test_batches_in_flight_of_an_isolated_front_end_cost_no_further_epoch(rig, broker):
    """Five batches with a bad record each are in flight before the first is refused: the others go on in one epoch."""
    isolated, *others = [rig.attach(linger_ms=5) for _ in range(3)]
    for index in (isolated, *others):
        rig.send(index, 0)
    rig.settle()
    broker.faults.append(Fault(delay=0.1))
    for slot in range(1, 6):
        for index in (isolated, *others):
            rig.send(index, 0, seal=False, poison=index == isolated)
        run_until(rig.engine, lambda slot=slot: rig.front_ends[isolated].sent_word(slot))
    rig.finish()
    assert rig.errors(isolated) == [0] + [INVALID_RECORD] * 5
    assert lanes(broker)[1001][-1].epoch == 1
    assert broker.refused == 5


def test_the_isolation_lane_is_unmerged_one_in_flight_and_ends_after_isolation_batches(rig, broker):
    isolated, other = rig.attach(linger_ms=2), rig.attach(linger_ms=2)
    send_merged(rig, 2, (isolated,))
    for _ in range(ISOLATION_BATCHES + 6):
        rig.send(isolated, 0)
        rig.send(other, 0)
    rig.finish()
    found = lanes(broker)
    assert list(found) == [1001, 1002]
    isolation_lane = found[1002]
    assert [batch.count for batch in isolation_lane] == [2] * ISOLATION_BATCHES, "unmerged, and no more than that"
    assert {batch.epoch for batch in isolation_lane} == {0}
    last = [value for value in broker.values(0) if value.startswith(b"%d/" % isolated)][-12:]
    assert last == [value for _, values in rig.sent[isolated] for value in values][-12:]


def test_a_second_isolation_is_longer(rig, broker):
    isolated, other = rig.attach(linger_ms=2, slots=512), rig.attach(linger_ms=2, slots=512)
    for expected in (ISOLATION_BATCHES, 3 * ISOLATION_BATCHES):
        rig.send(isolated, 0, poison=True)
        rig.deliver(other, 0)
        for _ in range(3 * ISOLATION_BATCHES):
            rig.send(isolated, 0)
            rig.send(other, 0)
        rig.finish()
        assert len(lanes(broker)[1002]) == expected


def test_bad_records_in_the_isolation_lane_restart_the_isolation(rig, broker):
    isolated, other = rig.attach(linger_ms=2), rig.attach(linger_ms=2)
    for _ in range(5):
        rig.send(isolated, 0, poison=True)
        rig.send(other, 0)
        for _ in range(10):
            rig.send(isolated, 0)
            rig.send(other, 0)
    rig.finish()
    assert len(lanes(broker)[1002]) == 50 + 4, "and the good record of each refused batch that was sent there"
    assert lanes(broker)[1001][-1].epoch == 1


def test_a_front_end_that_is_alone_stays_in_the_ordinary_lane(rig, broker):
    rig.attach()
    for number in range(6):
        rig.send(0, 0, poison=number == 2)
    rig.finish()
    assert rig.errors(0) == [0, 0, INVALID_RECORD, 0, 0, 0]
    assert list(lanes(broker)) == [1001]


def test_both_lanes_are_served_by_a_broker_with_one_request_at_a_time():
    """A request carries one batch of the partition: neither lane starves the other."""
    with ScriptedBroker(partitions=1, nodes=1) as broker, Rig(broker, max_in_flight_requests_per_connection=1) as rig:
        isolated, *others = [rig.attach(slots=512) for _ in range(3)]
        rig.send(isolated, 0, poison=True)
        for index in others:
            rig.send(index, 0)
        rig.settle()
        for _ in range(100):
            for index in (isolated, *others):
                rig.send(index, 0, records=1, size=3000)
        rig.finish()
        # In the order of the log, which does not depend on when the test looks.
        came = [int(value.split(b"/")[0]) for value in broker.values(0)]
        tenth = [place for place, index in enumerate(came) if index == isolated][9]
        assert came[:tenth].count(others[0]) < 60


def test_records_of_an_isolated_front_end_that_ends_are_delivered(rig, broker):
    isolated, other = rig.attach(linger_ms=2), rig.attach(linger_ms=2)
    send_merged(rig, 2, (isolated,))
    for _ in range(5):
        rig.send(isolated, 0)
        rig.send(other, 0)
    rig.engine.run(1)
    rig.engine.detach(rig.front_ends[isolated].attach_id)
    run_until(rig.engine, lambda: rig.listen() or rig.engine.undelivered() == 0, 15)
    mine = [value for value in broker.values(0) if value.startswith(b"%d/" % isolated)]
    sent = [value for _, values in rig.sent[isolated] for value in values]
    assert mine == [value for value in sent if not value.endswith(POISON)]
    assert set(rig.engine.tables_in_use().values()) == {0}
    assert rig.errors(other) == [0] * 6


# ---------------------------------------------------------------- CORRUPT_MESSAGE


def slow_retries(broker) -> Rig:
    return Rig(broker, retry_backoff_ms=150, retry_backoff_max_ms=150)


def change(rig, index: int, slot: int) -> None:
    """Overwrite a byte of a value that the front-end has committed."""
    front_end = rig.front_ends[index]
    front_end.memory[front_end.chunks_at + slot * 4096 + 8] ^= 0xFF


def test_batch_corrupted_in_transit_is_sent_again_from_a_copy(broker):
    """Changes of the front-end's chunk after the broker's refusal have no effect."""
    with slow_retries(broker) as rig:
        rig.attach()
        broker.faults.append(Fault(code=CORRUPT_MESSAGE))
        rig.send(0, 0)
        run_until(rig.engine, lambda: rig.engine._loop.totals()["retries"] == 1)
        change(rig, 0, 0)
        rig.finish()
        assert rig.errors(0) == [0]
        assert broker.values(0) == rig.sent[0][0][1]


@pytest.mark.breaks_protocol
def test_bytes_that_are_changed_while_in_flight(rig, broker):
    """The broker answers CORRUPT_MESSAGE and the copy differs: the front-end is detached, the other one served."""
    hostile, other = rig.attach(), rig.attach()
    rig.send(other, 0)
    rig.deliver(hostile, 0)
    broker.faults.append(Fault(code=CORRUPT_MESSAGE, delay=0.05))
    rig.send(hostile, 0)
    run_until(rig.engine, lambda: not broker.faults)
    change(rig, hostile, 1)
    for _ in range(4):
        rig.send(other, 0)
    run_until(rig.engine, lambda: rig.listen() or rig.engine.undelivered() == 0)
    assert rig.errors(hostile) == [0, errors.INVALID_BATCH]
    assert rig.errors(other) == [0] * 5
    assert rig.engine.take_violators() == [rig.front_ends[hostile].attach_id]
    assert broker.complaints == []


@pytest.mark.breaks_protocol
def test_bytes_that_are_changed_are_found_in_a_new_epoch_too(broker):
    """Another front-end's bad record raises the epoch: the header is another one, the records must be the same."""
    with slow_retries(broker) as rig:
        hostile, isolated = rig.attach(), rig.attach()
        rig.deliver(hostile, 0)
        broker.faults.extend([Fault(delay=0.05), Fault(code=OUT_OF_ORDER_SEQUENCE_NUMBER)])
        rig.send(isolated, 0, poison=True)
        run_until(rig.engine, lambda: broker.produce_requests == 2)
        rig.send(hostile, 0)
        run_until(rig.engine, lambda: broker.produce_requests == 3)
        change(rig, hostile, 1)
        run_until(rig.engine, lambda: rig.listen() or rig.engine.undelivered() == 0)
        assert rig.errors(hostile) == [0, errors.INVALID_BATCH]
        assert rig.errors(isolated) == [INVALID_RECORD]
        assert broker.complaints == []


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_a_broker_that_calls_bad_records_corrupt(rig, broker, merged):
    """As brokers before 2.4 do for a null key in a compacted topic: a few attempts, then the owner's error."""
    broker.refusal, broker.names_records = CORRUPT_MESSAGE, False
    rig.attach_many(3, linger_ms=20 if merged else 0)
    if merged:
        send_merged(rig, 3, (1,))
    else:
        for index in range(3):
            rig.send(index, 0, poison=index == 1)
        rig.settle()
    rig.check()
    assert [rig.errors(index) for index in range(3)] == [[0], [CORRUPT_MESSAGE], [0]]
    assert broker.refused <= 8


# ---------------------------------------------------------------- raising the epoch


def test_an_unsure_batch_never_goes_before_an_earlier_one(rig, broker):
    """One is refused, the next is out of order, the third unsure; then the broker loses its state of the producer.

    A broker without state takes any first sequence: the third batch must not be the first that it sees.
    """
    rig.begin()
    broker.faults.extend(
        [
            Fault(code=INVALID_RECORD, delay=0.05),
            Fault(),
            Fault(close="before"),
            Fault(forget=True),
        ]
    )
    for _ in range(3):
        rig.send(0, 0)
    rig.finish()
    assert rig.errors(0) == [0, INVALID_RECORD, 0, 0]
    assert not broker.faults


def test_an_unsure_batch_that_is_there_is_found_behind_an_earlier_one(rig, broker):
    """The broker loses its state and takes the third batch first: the engine asks about it and sends it once."""
    rig.begin()
    broker.faults.extend(
        [
            Fault(code=NOT_ENOUGH_REPLICAS, delay=0.05),
            Fault(code=NOT_ENOUGH_REPLICAS),
            Fault(forget=True, close="after"),
        ]
    )
    for _ in range(3):
        rig.send(0, 0)
    rig.finish(exactly=False)
    log = broker.values(0)
    assert len(log) == len(set(log)) == 8


@pytest.mark.parametrize("unsure", [False, True])
def test_an_epoch_that_the_broker_calls_old(rig, broker, unsure):
    """Nothing of the refused attempt is in the log. The answer says nothing about an earlier attempt."""
    rig.begin()
    if unsure:
        broker.faults.append(Fault(code=REQUEST_TIMED_OUT))
    broker.faults.append(Fault(code=INVALID_PRODUCER_EPOCH))
    for _ in range(2):
        rig.deliver(0, 0)
    rig.check()
    assert rig.errors(0) == [0, errors.OUTCOME_UNKNOWN if unsure else 0, 0]
    assert lanes(broker)[1001][-1].epoch == 1


def test_a_broker_that_refuses_every_sequence_is_asked_with_pauses(broker):
    with Rig(broker, retry_backoff_ms=50, retry_backoff_max_ms=50) as rig:
        rig.attach(delivery_timeout_ms=400)
        broker.faults.extend([Fault(code=OUT_OF_ORDER_SEQUENCE_NUMBER)] * 1000)
        rig.deliver(0, 0)
        assert broker.produce_requests < 20
        assert rig.errors(0) == [errors.DELIVERY_TIMEOUT], "every attempt was refused, so it is not in the log"
        rig.check()


# ---------------------------------------------------------------- everything at once


FAULTS = st.one_of(
    st.builds(Fault),
    st.builds(
        Fault,
        code=st.sampled_from([NOT_ENOUGH_REPLICAS, OUT_OF_ORDER_SEQUENCE_NUMBER, REQUEST_TIMED_OUT, CORRUPT_MESSAGE]),
    ),
    st.builds(Fault, code=st.just(REQUEST_TIMED_OUT), after_append=st.just(True)),
    st.builds(Fault, close=st.sampled_from(["before", "after"])),
    st.builds(Fault, delay=st.just(0.01)),
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    faults=st.lists(FAULTS, max_size=10),
    poisoned=st.lists(st.sets(st.integers(0, 3), max_size=2), min_size=12, max_size=12),
    linger_ms=st.sampled_from([0, 3]),
    names=st.booleans(),
)
def test_any_mixture_of_bad_records_and_faults(faults, poisoned, linger_ms, names):
    """Only the owner of a bad record gets its error; the log has each record once and in its owner's order.

    At most, a broker that wrongly reports a sequence as out of order makes outcomes of others unknown.
    """
    false_errors = any(fault.code == OUT_OF_ORDER_SEQUENCE_NUMBER for fault in faults)
    with ScriptedBroker(partitions=2, nodes=1) as broker:
        broker.names_records = names
        broker.faults.extend(faults)
        with Rig(broker) as rig:
            rig.attach_many(4, linger_ms=linger_ms)
            for number, bad in enumerate(poisoned):
                for index in range(4):
                    rig.send(index, number % 2, seal=not linger_ms, poison=index in bad)
                rig.engine.run(1)
            rig.finish()
            for index in range(4):
                for (_, values), error in zip(rig.sent[index], rig.errors(index), strict=True):
                    spoiled = values[-1].endswith(POISON)
                    allowed = (INVALID_RECORD, errors.OUTCOME_UNKNOWN) if spoiled else (0, errors.OUTCOME_UNKNOWN)
                    assert error in allowed
                    assert spoiled or error == 0 or false_errors or not names, "an error without a bad record"
