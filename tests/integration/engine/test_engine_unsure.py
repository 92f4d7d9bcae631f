"""Tests unsure batches that are refused, on a scripted cluster: what settles them, and what does not.

No record is lost, duplicated or acknowledged at a wrong offset, whatever the broker has of the batches.
"""

import pytest
from kfake.scripted_broker import Fault
from support.fault_rig import POISON, Rig, send_merged
from support.front_end import run_until

from cyproducer import errors
from cyproducer.codes import (
    INVALID_RECORD,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    REQUEST_TIMED_OUT,
    TOPIC_AUTHORIZATION_FAILED,
)

TIMED_OUT = {"code": REQUEST_TIMED_OUT, "after_append": True}


BROKER = {"partitions": 1, "nodes": 1}


def hold_unsure(rig, broker, front_ends: int, batches: list[tuple[int, bool]]) -> None:
    """Send an acknowledged batch each, then pipeline batches (front-end, spoiled) whose answers never come."""
    rig.attach_many(front_ends)
    for index in range(front_ends):
        rig.send(index, 0)
    rig.settle()
    broker.faults.append(Fault(hang="lost"))
    for index, spoiled in batches:
        rig.send_now(index, 0, poison=spoiled)
    rig.finish()


def pipeline(rig, broker, faults: list[Fault], *batches: tuple[tuple[int, int], ...]) -> None:
    """Send merged batches of (front-end, records) while none is answered; the broker's rules change afterwards."""
    broker.faults.extend(faults)
    for batch in batches:
        slots = [(index, len(rig.sent[index])) for index, _ in batch]
        for index, records in batch:
            rig.send(index, 0, records=records, seal=False)
        run_until(rig.engine, lambda slots=slots: all(rig.front_ends[i].sent_word(slot) for i, slot in slots))
    run_until(rig.engine, lambda: not broker.faults)


def refuse(broker, *beginnings: bytes) -> None:
    with broker.lock:
        broker.refuses = lambda record: record.value.startswith(beginnings)


def test_a_refused_batch_that_may_be_in_the_log_already_costs_its_owner_alone(rig, broker):
    """The answer to the merged batch was lost, the next attempt is refused: the others' records go out, once."""
    rig.begin(4, linger_ms=30)
    broker.faults.extend([Fault(close="before"), Fault(close="before")])
    send_merged(rig, 4, (2,))
    rig.check()
    assert rig.errors(0) == [0, 0]
    assert [rig.errors(index) for index in (1, 3)] == [[0], [0]]
    assert rig.errors(2) == [errors.OUTCOME_UNKNOWN]


def test_two_refused_batches_that_may_be_in_the_log_already(rig, broker):
    """The fragments of the first batch are appended, which proves that the second is not there: it fails definitely."""
    rig.begin(3, linger_ms=10)
    rig.send(1, 0)
    rig.deliver(2, 0)
    broker.faults.append(Fault(hang="lost"))
    for number in range(1, 4):
        for index in range(3):
            rig.send(index, 0, seal=False, poison=index == number - 1 and number < 3)
        run_until(rig.engine, lambda number=number: all(f.sent_word(number) for f in rig.front_ends))
    rig.finish()
    unknown = errors.OUTCOME_UNKNOWN
    assert [rig.errors(index) for index in range(3)] == [[0, unknown, 0, 0], [0, 0, INVALID_RECORD, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("spoiled", [1, 2, 3])
def test_later_batches_settle_whether_a_bad_batch_is_in_the_log(rig, broker, spoiled):
    """Unsure bad batches are given up; later ones, unsure themselves, go out behind the gap."""
    hold_unsure(rig, broker, 2, [(0, True)] * spoiled + [(1, False)] * (5 - spoiled))
    assert rig.errors(0) == [0] + [errors.OUTCOME_UNKNOWN] * spoiled
    assert rig.errors(1) == [0] * (6 - spoiled)


def test_a_bad_batch_between_two_unsure_ones(rig, broker):
    hold_unsure(rig, broker, 3, [(1, False), (0, True), (1, False), (2, True), (1, False)])
    assert rig.errors(1) == [0] * 4


def test_a_bad_batch_that_had_been_appended_is_no_gap(rig, broker):
    """It is in the log, and the rules have changed since: the next one is in order behind it, nothing is duplicated."""
    for index in range(2):
        rig.attach()
        rig.send(index, 0)
    rig.settle()
    broker.faults.append(Fault(hang="appended"))
    rig.send(0, 0, poison=True)
    broker.refuses = None
    run_until(rig.engine, lambda: len(broker.values(0)) == 6)
    for _ in range(2):
        rig.send_now(1, 0)
    with broker.lock:
        broker.refuses = lambda record: record.value.endswith(POISON)
    rig.finish()
    assert rig.errors(0) == [0, errors.OUTCOME_UNKNOWN]
    assert rig.errors(1) == [0, 0, 0]


def test_a_refused_batch_that_is_in_the_log_already_is_not_sent_again_in_part(rig, broker):
    """Appended, the answer lost, the topic's rules changed: the outcome is unknown, nothing is duplicated."""
    rig.begin(3, linger_ms=30)
    broker.faults.append(Fault(close="after"))
    for index in range(3):
        rig.send(index, 0, seal=False)
    run_until(rig.engine, lambda: broker.produce_requests >= 2)
    with broker.lock:
        broker.refuses = lambda record: record.value.startswith(b"1/")
    rig.finish()
    assert [rig.errors(index)[-1] for index in range(3)] == [errors.OUTCOME_UNKNOWN] * 3
    with broker.lock:
        broker.refuses = None
    rig.send(0, 0)
    rig.finish()


def test_acknowledged_later_batch_proves_an_earlier_one(rig, broker):
    """The batch behind it was acknowledged, which proves that it is in the log: it is acknowledged, not refused."""
    rig.begin(3, linger_ms=20)
    pipeline(rig, broker, [Fault(**TIMED_OUT, delay=0.1), Fault()], ((0, 2), (1, 2), (2, 2)), ((1, 3),))
    refuse(broker, b"2/0/")
    rig.finish()
    assert [rig.errors(index)[-1] for index in range(3)] == [0, 0, 0]
    offsets = [rig.heard[index][len(rig.sent[index]) - 1][0] for index in (0, 2)]
    assert min(offsets) >= 2, "the offset follows from those before and behind it"


def test_a_smaller_batch_is_not_taken_for_the_one_before(rig, broker):
    """Both are in the log and refused on retry: the fragment of the second has as many records as the first."""
    rig.begin(4, linger_ms=20)
    pipeline(
        rig,
        broker,
        [Fault(**TIMED_OUT, delay=0.1), Fault(**TIMED_OUT)],
        ((3, 4),),
        ((0, 2), (1, 2), (2, 2)),
    )
    refuse(broker, b"3/0/", b"2/0/")
    rig.finish()
    assert [rig.errors(index)[-1] for index in range(4)] == [errors.OUTCOME_UNKNOWN] * 4


def test_a_later_batch_is_not_taken_for_one_that_is_there(rig, broker):
    """The first is in the log, its fragment was given up; a later one that was not appended has as many records."""
    rig.begin(4, linger_ms=20)
    pipeline(
        rig,
        broker,
        [Fault(hang="appended")],
        ((0, 2), (1, 2), (2, 2)),
        ((3, 1),),
        ((1, 6),),
        ((0, 2),),
    )
    refuse(broker, b"2/0/", b"3/0/")
    rig.finish()
    assert rig.errors(1)[-1] == 0


@pytest.mark.parametrize("there", [False, True], ids=["lost", "there"])
def test_a_batch_that_is_refused_as_a_whole_and_may_be_in_the_log_already(rig, broker, there):
    """The answer was lost, then the merged batch is too large: the smaller batches in its place settle the outcome."""
    rig.begin(4, linger_ms=30)
    broker.faults.append(Fault(close="after" if there else "before"))
    for index in range(4):
        rig.send(index, 0, size=100, seal=False)
    run_until(rig.engine, lambda: broker.produce_requests >= 2)
    with broker.lock:
        broker.largest = 400
    rig.finish()
    assert broker.refused == 1
    assert [rig.errors(index)[-1] for index in range(4)] == [errors.OUTCOME_UNKNOWN if there else 0] * 4
    for index in range(4):
        rig.send(index, 0, seal=False)
    rig.finish()
    assert [rig.errors(index)[-1] for index in range(4)] == [0] * 4


@pytest.mark.parametrize("poisoned", [0, 1, 3])
def test_unsure_merged_batch_is_refused_without_naming_a_record(rig, broker, poisoned):
    """It was lost in transit. The fragments of the others are appended, which proves that the bad one is not there.

    If the bad one's fragment is sent first, its outcome is unknown.
    """
    rig.begin(4, linger_ms=30)
    broker.faults.append(Fault(close="before"))
    broker.names_records = False
    send_merged(rig, 4, (poisoned,))
    rig.check()
    assert rig.errors(poisoned)[-1] in (INVALID_RECORD, errors.OUTCOME_UNKNOWN)
    assert [rig.errors(index)[-1] for index in range(4) if index != poisoned] == [0] * 3


def test_a_batch_that_is_refused_as_a_whole_without_idempotence(rig, broker):
    """Nothing settles the outcome: records of an unsure batch are not sent again in fragments."""
    rig.attach_many(2, linger_ms=30, enable_idempotence=False)
    broker.faults.append(Fault(close="before"))
    for index in range(2):
        rig.send(index, 0, size=100, seal=False)
    run_until(rig.engine, lambda: broker.produce_requests >= 1)
    with broker.lock:
        broker.largest = 300
    rig.finish()
    assert [rig.errors(index) for index in range(2)] == [[errors.OUTCOME_UNKNOWN]] * 2


# ---------------------------------------------------------------- errors that a broker sends after the append

MAY_BE_APPENDED = (REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND, NOT_LEADER_OR_FOLLOWER, 3, 56, 74)


@pytest.fixture
def patient(broker):
    """Yield a rig whose requests do not time out: each attempt meets the fault that is meant for it."""
    with Rig(broker, request_timeout_ms=60_000) as rig:
        yield rig


@pytest.mark.parametrize("code", MAY_BE_APPENDED)
@pytest.mark.parametrize("idempotent", [True, False])
def test_an_error_that_may_come_after_the_append_leaves_the_outcome_open(patient, broker, code, idempotent):
    """A broker that waits for the other replicas has already appended when it loses the partition."""
    rig = patient
    rig.attach(enable_idempotence=idempotent)
    broker.faults.extend([Fault(code=code, after_append=True), Fault(code=TOPIC_AUTHORIZATION_FAILED)])
    rig.send(0, 0)
    rig.finish()
    assert rig.errors(0) == [errors.OUTCOME_UNKNOWN]


@pytest.mark.parametrize("code", MAY_BE_APPENDED)
def test_batch_that_may_be_appended_is_not_split(patient, broker, code):
    rig = patient
    rig.begin(2, linger_ms=20)
    broker.faults.extend([Fault(code=code, after_append=True), Fault(code=TOPIC_AUTHORIZATION_FAILED)])
    for index in range(2):
        rig.send(index, 0, seal=False)
    rig.finish()
    assert [rig.errors(index)[-1] for index in range(2)] == [errors.OUTCOME_UNKNOWN] * 2


def test_an_error_with_acks_one_comes_before_the_append(rig, broker):
    rig.attach(acks=1, enable_idempotence=False)
    broker.faults.extend([Fault(code=NOT_LEADER_OR_FOLLOWER), Fault(code=TOPIC_AUTHORIZATION_FAILED)])
    rig.send(0, 0)
    rig.finish()
    assert rig.errors(0) == [TOPIC_AUTHORIZATION_FAILED]
