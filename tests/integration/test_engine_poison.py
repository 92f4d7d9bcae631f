"""Records that a broker refuses and front-ends that change theirs, on a scripted cluster: they harm their owner alone.

Everybody else's records of the same partition are in the log once and in order, with an offset.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.fault_rig import INVALID_RECORD, POISON, Rig, send_merged
from support.front_end import run_until
from support.scripted_broker import (
    CORRUPT_MESSAGE,
    INVALID_EPOCH,
    MESSAGE_TOO_LARGE,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER,
    REQUEST_TIMED_OUT,
    Fault,
    ScriptedBroker,
)

from cyproducer import errors

SENTENCE = 16  # batches that an offender has to send well before it leaves the penalty lane


@pytest.fixture
def broker():
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        yield broker


def lanes(broker) -> dict[int, list[tuple]]:
    """The log's batches by producer id: (epoch, sequence, count, offset)."""
    found: dict[int, list[tuple]] = {}
    for pid, *batch in broker.partitions[0].batches:
        found.setdefault(pid, []).append(tuple(batch))
    return found


# ---------------------------------------------------------------- who answers for what


@pytest.mark.parametrize("version", [12, 9, 8, 7, 3])
@pytest.mark.parametrize("poisoned", [(0,), (2,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_in_a_merged_batch_only_those_fail_whose_records_are_bad(version, poisoned):
    """Versions below 8 do not say which record it was: each contributor is judged alone."""
    with ScriptedBroker(partitions=1, nodes=1, produce_version=version) as broker, Rig(broker) as rig:
        for _ in range(4):
            rig.attach(linger_ms=30)
        send_merged(rig, 4, poisoned)
        rig.check()
        assert [rig.errors(index) for index in range(4)] == [
            [INVALID_RECORD if index in poisoned else 0] for index in range(4)
        ]


def test_a_named_record_costs_one_refusal_and_the_others_stay_together(rig, broker):
    for _ in range(5):
        rig.attach(linger_ms=30)
    send_merged(rig, 5, (1, 3))
    rig.check()
    assert broker.refused == 1
    assert [batch[2] for batch in lanes(broker)[1001]] == [6], "three innocents, two records each, in one batch"


def test_who_stays_alone_is_sent_from_his_own_memory(rig, broker):
    for _ in range(2):
        rig.attach(linger_ms=30)
    send_merged(rig, 2, (0,))
    rig.check()
    assert rig.errors(1) == [0]


@pytest.mark.parametrize("acks", [-1, 1])
def test_without_idempotence_too(rig, broker, acks):
    for _ in range(3):
        rig.attach(linger_ms=30, acks=acks, enable_idempotence=False)
    send_merged(rig, 3, (2,))
    for number in range(5):  # the offender sends alone from now on
        for index in range(3):
            rig.send(index, 0, poison=index == 2 and number % 2 == 1)
        rig.settle()
    rig.check()
    assert rig.errors(2) == [INVALID_RECORD, 0] * 3
    assert rig.errors(0) == rig.errors(1) == [0] * 6


def test_batches_that_are_too_large_once_merged_become_smaller(broker, rig):
    """The limit is learned: after a few refusals merged batches fit, and everybody's records arrive."""
    broker.largest = 1500
    for _ in range(8):
        rig.attach(linger_ms=5)
    for _ in range(12):
        for index in range(8):
            rig.send(index, 0, records=1, size=400, seal=False)
        rig.settle()
    rig.check()
    assert all(set(rig.errors(index)) == {0} for index in range(8))
    assert 0 < broker.refused <= 3
    assert len(lanes(broker)) == 1, "nobody is an offender for what others added"


def test_one_front_end_whose_own_batches_are_too_large(broker, rig):
    broker.largest = 1500
    rig.attach()
    rig.attach()
    for _ in range(6):
        rig.send(0, 0, size=2000)
        rig.send(1, 0)
        rig.settle()
    rig.check()
    assert rig.errors(0) == [MESSAGE_TOO_LARGE] * 6
    assert rig.errors(1) == [0] * 6


# ---------------------------------------------------------------- the penalty lane


def test_an_offender_never_again_bumps_the_epoch_of_the_others(rig, broker):
    """One front-end sends nothing but bad records, in pipelines; two honest ones go on in one epoch."""
    offender, *honest = [rig.attach(linger_ms=2) for _ in range(3)]
    for round_number in range(25):
        for _ in range(4):
            rig.send(offender, 0, seal=False, poison=True)
        for index in honest:
            rig.send(index, 0, seal=False)
        rig.engine.run(1)
        if round_number % 5 == 4:
            rig.settle()
    rig.settle()
    rig.check()
    assert set(rig.errors(offender)) == {INVALID_RECORD}
    assert all(set(rig.errors(index)) == {0} for index in honest)
    ordinary = lanes(broker)[1001]
    assert ordinary[-1][0] <= 1, "the epoch of the others was raised again and again"


def test_what_an_offender_has_on_the_way_costs_no_further_epoch(rig, broker):
    """Five batches with a bad record each are on the way before the first is refused: the others go on in one epoch."""
    offender, *honest = [rig.attach(linger_ms=5) for _ in range(3)]
    for index in (offender, *honest):
        rig.send(index, 0)
    rig.settle()
    broker.faults.append(Fault(delay=0.1))
    for slot in range(1, 6):
        for index in (offender, *honest):
            rig.send(index, 0, seal=False, poison=index == offender)
        run_until(rig.engine, lambda slot=slot: rig.front_ends[offender].sent_word(slot))
    rig.settle()
    rig.check()
    assert rig.errors(offender) == [0] + [INVALID_RECORD] * 5
    assert lanes(broker)[1001][-1][0] == 1
    assert broker.refused == 5


def test_the_penalty_lane_is_unmerged_and_one_in_flight_and_is_left_after_good_conduct(rig, broker):
    offender, neighbour = rig.attach(linger_ms=2), rig.attach(linger_ms=2)
    send_merged(rig, 2, (offender,))
    for _ in range(SENTENCE + 6):
        rig.send(offender, 0)
        rig.send(neighbour, 0)
    rig.settle()
    rig.check()
    found = lanes(broker)
    assert list(found) == [1001, 1002]
    penal = found[1002]
    assert [batch[2] for batch in penal] == [2] * SENTENCE, "each batch alone, and no more than the sentence"
    assert {batch[0] for batch in penal} == {0}
    last = [value for value in broker.values(0) if value.startswith(b"%d/" % offender)][-12:]
    assert last == [value for _, values in rig.sent[offender] for value in values][-12:]


def test_a_second_sentence_is_longer(rig, broker):
    offender, neighbour = rig.attach(linger_ms=2, slots=512), rig.attach(linger_ms=2, slots=512)
    for expected in (SENTENCE, 3 * SENTENCE):
        rig.send(offender, 0, poison=True)
        rig.send(neighbour, 0)
        rig.settle()
        for _ in range(3 * SENTENCE):
            rig.send(offender, 0)
            rig.send(neighbour, 0)
        rig.settle()
        rig.check()
        assert len(lanes(broker)[1002]) == expected


def test_bad_records_in_the_penalty_lane_begin_the_sentence_anew(rig, broker):
    offender, neighbour = rig.attach(linger_ms=2), rig.attach(linger_ms=2)
    for _ in range(5):
        rig.send(offender, 0, poison=True)
        rig.send(neighbour, 0)
        for _ in range(10):
            rig.send(offender, 0)
            rig.send(neighbour, 0)
    rig.settle()
    rig.check()
    assert len(lanes(broker)[1002]) == 50
    assert lanes(broker)[1001][-1][0] == 1


def test_a_front_end_that_is_alone_stays_in_the_ordinary_lane(rig, broker):
    rig.attach()
    for number in range(6):
        rig.send(0, 0, poison=number == 2)
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0, 0, INVALID_RECORD, 0, 0, 0]
    assert list(lanes(broker)) == [1001]


def test_both_lanes_are_served_by_a_broker_with_one_request_at_a_time():
    """A request carries one batch of the partition: neither lane starves the other."""
    with ScriptedBroker(partitions=1, nodes=1) as broker, Rig(broker, max_in_flight_requests_per_connection=1) as rig:
        offender, *honest = [rig.attach(slots=512) for _ in range(3)]
        rig.send(offender, 0, poison=True)
        for index in honest:
            rig.send(index, 0)
        rig.settle()
        for _ in range(100):
            for index in (offender, *honest):
                rig.send(index, 0, records=1, size=3000)
        rig.settle()
        rig.check()
        # In the log's order, which does not depend on when one looks.
        came = [int(value.split(b"/")[0]) for value in broker.values(0)]
        tenth = [place for place, index in enumerate(came) if index == offender][9]
        assert came[:tenth].count(honest[0]) < 60


def test_an_offender_that_ends_is_delivered_from_the_penalty_lane(rig, broker):
    offender, neighbour = rig.attach(linger_ms=2), rig.attach(linger_ms=2)
    send_merged(rig, 2, (offender,))
    for _ in range(5):
        rig.send(offender, 0)
        rig.send(neighbour, 0)
    rig.engine.run(1)
    rig.engine.detach(rig.front_ends[offender].attach_id)
    run_until(rig.engine, lambda: rig.listen() or rig.engine.undelivered() == 0, 15)
    mine = [value for value in broker.values(0) if value.startswith(b"%d/" % offender)]
    assert mine == [value for _, values in rig.sent[offender][1:] for value in values]
    assert set(rig.engine.tables_in_use().values()) == {0}
    assert rig.errors(neighbour) == [0] * 6


# ---------------------------------------------------------------- CORRUPT_MESSAGE


def slow_retries(broker) -> Rig:
    return Rig(broker, retry_backoff_ms=150, retry_backoff_max_ms=150)


def change(rig, index: int, slot: int) -> None:
    """The front-end overwrites a byte of a value that it has committed."""
    front_end = rig.front_ends[index]
    front_end.memory[front_end.chunks_at + slot * 4096 + 8] ^= 0xFF


def test_what_was_corrupt_on_the_way_is_sent_again_from_a_copy(broker):
    """Nothing that the front-end does to its chunk after the broker's complaint matters."""
    rig = slow_retries(broker)
    try:
        rig.attach()
        broker.faults.append(Fault(code=CORRUPT_MESSAGE))
        rig.send(0, 0)
        run_until(rig.engine, lambda: rig.engine._loop.totals()["retries"] == 1)
        change(rig, 0, 0)
        rig.settle()
        rig.check()
        assert rig.errors(0) == [0]
        assert broker.values(0) == rig.sent[0][0][1]
    finally:
        rig.close()


def test_bytes_that_are_changed_while_they_are_on_the_way(rig, broker):
    """The broker says CORRUPT_MESSAGE, the copy differs: the front-end is given up, its neighbour served."""
    hostile, neighbour = rig.attach(), rig.attach()
    rig.send(neighbour, 0)
    rig.send(hostile, 0)
    rig.settle()
    broker.faults.append(Fault(code=CORRUPT_MESSAGE, delay=0.05))
    rig.send(hostile, 0)
    run_until(rig.engine, lambda: not broker.faults)
    change(rig, hostile, 1)
    for _ in range(4):
        rig.send(neighbour, 0)
    run_until(rig.engine, lambda: rig.listen() or rig.engine.undelivered() == 0)
    assert rig.errors(hostile) == [0, errors.INVALID_BATCH]
    assert rig.errors(neighbour) == [0] * 5
    assert rig.engine.take_condemned() == [rig.front_ends[hostile].attach_id]
    assert broker.complaints == []


def test_bytes_that_are_changed_are_found_in_a_new_epoch_too(broker):
    """The neighbour's bad record raises the epoch: the header is another one, the records must be the same."""
    rig = slow_retries(broker)
    try:
        hostile, offender = rig.attach(), rig.attach()
        rig.send(hostile, 0)
        rig.settle()
        broker.faults.extend([Fault(delay=0.05), Fault(code=OUT_OF_ORDER)])
        rig.send(offender, 0, poison=True)
        run_until(rig.engine, lambda: broker.produce_requests == 2)
        rig.send(hostile, 0)
        run_until(rig.engine, lambda: broker.produce_requests == 3)
        change(rig, hostile, 1)
        run_until(rig.engine, lambda: rig.listen() or rig.engine.undelivered() == 0)
        assert rig.errors(hostile) == [0, errors.INVALID_BATCH]
        assert rig.errors(offender) == [INVALID_RECORD]
        assert broker.complaints == []
    finally:
        rig.close()


@pytest.mark.parametrize("merged", [False, True], ids=["alone", "merged"])
def test_a_broker_that_calls_bad_records_corrupt(rig, broker, merged):
    """As brokers before 2.4 do for a null key in a compacted topic: a few attempts, then the owner's error."""
    broker.refusal, broker.names_records = CORRUPT_MESSAGE, False
    for _ in range(3):
        rig.attach(linger_ms=20 if merged else 0)
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

    A broker without state takes any first sequence: the third one must not be the first that it sees.
    """
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    broker.faults.extend([
        Fault(code=INVALID_RECORD, delay=0.05), Fault(), Fault(close="before"), Fault(forget=True),
    ])
    for _ in range(3):
        rig.send(0, 0)
    rig.settle()
    rig.check()
    assert rig.errors(0) == [0, INVALID_RECORD, 0, 0]
    assert not broker.faults


def test_an_unsure_batch_that_is_there_is_found_behind_an_earlier_one(rig, broker):
    """The broker loses its state and takes the third batch first: it is asked about, not sent twice."""
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    broker.faults.extend([
        Fault(code=NOT_ENOUGH_REPLICAS, delay=0.05), Fault(code=NOT_ENOUGH_REPLICAS), Fault(forget=True, close="after"),
    ])
    for _ in range(3):
        rig.send(0, 0)
    rig.settle()
    rig.check(exactly=False)
    log = broker.values(0)
    assert len(log) == len(set(log)) == 8


@pytest.mark.parametrize("unsure", [False, True])
def test_an_epoch_that_the_broker_calls_old(rig, broker, unsure):
    """Nothing of the refused attempt is in the log. Of an earlier one the broker does not say."""
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    if unsure:
        broker.faults.append(Fault(code=REQUEST_TIMED_OUT))
    broker.faults.append(Fault(code=INVALID_EPOCH))
    for _ in range(2):
        rig.send(0, 0)
        rig.settle()
    rig.check()
    assert rig.errors(0) == [0, errors.OUTCOME_UNKNOWN if unsure else 0, 0]
    assert lanes(broker)[1001][-1][0] == 1


def test_a_broker_that_refuses_every_sequence_is_asked_with_pauses(broker):
    with Rig(broker, retry_backoff_ms=50, retry_backoff_max_ms=50) as rig:
        rig.attach(delivery_timeout_ms=400)
        broker.faults.extend([Fault(code=OUT_OF_ORDER)] * 1000)
        rig.send(0, 0)
        rig.settle()
        assert broker.produce_requests < 20
        assert rig.errors(0) == [errors.OUTCOME_UNKNOWN]


# ---------------------------------------------------------------- everything at once


FAULTS = st.one_of(
    st.builds(Fault),
    st.builds(Fault, code=st.sampled_from([NOT_ENOUGH_REPLICAS, OUT_OF_ORDER, REQUEST_TIMED_OUT, CORRUPT_MESSAGE])),
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
    """Nobody but the owner of a bad record gets its error; the log has each record once and in its owner's order.

    A broker that calls a sequence out of order that is none can make others' outcomes unknown, no more.
    """
    lies = any(fault.code == OUT_OF_ORDER for fault in faults)
    with ScriptedBroker(partitions=2, nodes=1) as broker:
        broker.names_records = names
        broker.faults.extend(faults)
        with Rig(broker) as rig:
            for _ in range(4):
                rig.attach(linger_ms=linger_ms)
            for number, bad in enumerate(poisoned):
                for index in range(4):
                    rig.send(index, number % 2, seal=not linger_ms, poison=index in bad)
                rig.engine.run(1)
            rig.settle()
            rig.check()
            for index in range(4):
                for (_, values), error in zip(rig.sent[index], rig.errors(index), strict=True):
                    spoiled = values[-1].endswith(POISON)
                    allowed = (INVALID_RECORD, errors.OUTCOME_UNKNOWN) if spoiled else (0, errors.OUTCOME_UNKNOWN)
                    assert error in allowed
                    assert spoiled or error == 0 or lies or not names, "an innocent one heard of it"
