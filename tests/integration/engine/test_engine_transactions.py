"""Tests the batches of transactional producers in the engine: in which requests they are, when, and how they end.

The test takes the place of the control plane: it stores the states that the coordinator of a broker would lead to.
"""

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.engine_rig import EngineRig
from support.front_end import SUBMIT_OPEN, PlainFrontEnd, run_until, topic_number
from support.transaction_table import leave_transactions_to_the_test

from cyproducer import errors
from cyproducer.codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NOT_LEADER_OR_FOLLOWER,
    PRODUCER_FENCED,
)
from cyproducer.transaction_states import TransactionState

ID = "orders-1"
TRANSACTIONAL = 0x10
NOW = 1_700_000_000_000
UNIT_SLOTS = 16


@pytest.fixture
def broker():
    with ScriptedBroker() as broker:
        yield broker
    assert broker.complaints == []


@pytest.fixture
def rig(broker):
    rig = EngineRig(broker.bootstrap_servers)
    leave_transactions_to_the_test(rig.engine)
    yield rig
    rig.close()


class Producer:
    """A transactional front-end, and its row."""

    def __init__(
        self, rig: EngineRig, topic: str, name: str = ID, *, producer_id: int = 700, v2: bool = True, slots: int = 256
    ) -> None:
        self.rig = rig
        self.front_end: PlainFrontEnd = rig.attach(slots=slots, transactional_id=name, transaction_timeout_ms=60_000)
        self.table = rig.engine._transaction_table
        self.row = self.table.row_of(self.front_end.attach_id)
        self.topic = topic_number(rig.engine, self.front_end, topic)
        self.slot = 0
        self.v2 = v2
        self.producer_id = producer_id
        self.epoch = 0

    def ready(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.store(TransactionState.READY)

    def store(self, state: TransactionState) -> None:
        self.table.store(self.row, state, self.producer_id, self.epoch, 1, 0, self.v2)

    def send(self, value: bytes, partition: int = 0) -> int:
        self.slot += UNIT_SLOTS
        self.front_end.send(self.slot, [(NOW, None, value)], topic=self.topic, partition=partition)
        return self.slot

    def results(self, count: int) -> list[tuple[int, int]]:
        """Return (slot, error) of the next outcomes."""
        return [(outcome[0], outcome[5]) for outcome in self.rig.outcomes(self.front_end, count)]

    def result_of(self, value: bytes, partition: int = 0) -> int:
        """Send a record. Return the error of its outcome, which is the only one."""
        slot = self.send(value, partition)
        ((found, error),) = self.results(1)
        assert found == slot
        return error

    def state(self) -> tuple[str, int, bool]:
        found = self.table.read(self.row)._asdict()
        return found["state"], found["failed"], found["needs_epoch"]


@pytest.fixture
def producer(rig, broker):
    return Producer(rig, broker.topic)


def test_what_was_submitted_is_taken_at_once(producer, broker):
    producer.ready()
    producer.send(b"a")
    producer.send(b"b", 1)
    assert not producer.table.is_busy(producer.row)
    assert producer.table.read_submissions(producer.row)
    assert producer.table.is_busy(producer.row)
    assert [error for _, error in producer.results(2)] == [0, 0]
    assert producer.table.read_submissions(producer.row)
    assert not producer.table.is_busy(producer.row)
    assert broker.partitions[0].values == [b"a"]


def test_a_part_of_what_was_submitted_is_not_all(rig, broker):
    """A front-end with very many hints cannot hold up the loop."""
    producer = Producer(rig, broker.topic, slots=8192)
    producer.ready()
    for _ in range(16_385):
        producer.front_end.submit(SUBMIT_OPEN, 0, 77)  # a batch that has ended before
    assert not producer.table.read_submissions(producer.row)
    assert producer.table.read_submissions(producer.row)


def test_what_a_front_end_has_submitted_is_never_all_after_a_violation(rig, producer):
    producer.ready()
    producer.front_end.submit(7, 0)
    assert not producer.table.read_submissions(producer.row)
    assert not producer.table.read_submissions(producer.row)
    rig.engine.detach(producer.front_end.attach_id)
    assert not producer.table.read_submissions(producer.row)


def test_a_new_row_says_what_it_is(producer):
    assert producer.table.read(producer.row)._asdict() == {
        "transactional_id": ID,
        "attach_id": producer.front_end.attach_id,
        "timeout_ms": 60_000,
        "state": TransactionState.UNINITIALIZED,
        "producer_id": -1,
        "epoch": -1,
        "failed": errors.TRANSACTION_ABORTED,
        "needs_epoch": False,
        "v2": False,
        "number": 0,
        "result": 0,
        "orphaned": False,
        "shared": False,
        "participants": 0,
        "held": False,
        "holds_up": False,
    }
    assert producer.table.rows() == [producer.row]


def test_records_go_out_with_the_id_the_bit_and_the_epoch_of_the_transaction(producer, broker):
    producer.ready(epoch=3)
    slots = [producer.send(b"a"), producer.send(b"b", partition=1)]
    assert sorted(producer.results(2)) == [(slot, 0) for slot in slots]
    assert producer.state() == (TransactionState.IN_TRANSACTION, 0, False)
    assert {name for name, _ in broker.produced} == {ID}
    assert {bits for _, attributes in broker.produced for bits in attributes} == {TRANSACTIONAL}
    assert [part.producers[700].epoch for part in broker.partitions[:2]] == [3, 3]


def test_a_request_is_of_one_transaction_or_of_none(rig, broker):
    producers = [Producer(rig, broker.topic, f"id-{at}", producer_id=700 + at) for at in range(3)]
    plain = rig.attach()
    number = topic_number(rig.engine, plain, broker.topic)
    for producer in producers:
        producer.ready()
    for at in range(40):
        for producer in producers:
            if at < 15:
                producer.send(b"%d" % at, partition=at % 3)
        if at < 15:
            plain.send(at * UNIT_SLOTS, [(NOW, None, b"plain")], topic=number, partition=at % 3)
    for producer in producers:
        assert all(error == 0 for _, error in producer.results(15))
    assert all(outcome[5] == 0 for outcome in rig.outcomes(plain, 15))
    assert {name for name, _ in broker.produced} == {"id-0", "id-1", "id-2", None}
    for name, attributes in broker.produced:
        assert set(attributes) == {0 if name is None else TRANSACTIONAL}
    for partition in broker.partitions:
        of_each = [[record for record in partition.values if record == b"plain"]]
        assert [len(records) for records in of_each] == [5]


def test_sequences_begin_again_with_each_epoch(producer, broker):
    for epoch in range(3):
        producer.ready(epoch)
        for _ in range(4):
            producer.send(b"v")
        assert all(error == 0 for _, error in producer.results(4))
        producer.store(TransactionState.COMMITTING_TRANSACTION)
    assert broker.partitions[0].producers[700].epoch == 2
    assert len(broker.partitions[0].values) == 12


def test_without_a_new_epoch_sequences_continue(rig, broker):
    producer = Producer(rig, broker.topic, v2=False)
    for _ in range(3):
        producer.ready()
        producer.send(b"v")
        run_until(rig.engine, lambda: producer.table.partitions_to_add(producer.row))
        producer.table.on_partitions_added(producer.row, producer.table.partitions_to_add(producer.row))
        assert [error for _, error in producer.results(1)] == [0]
    assert len(broker.partitions[0].values) == 3


def test_before_kip_890_nothing_is_sent_before_the_partition_is_added(rig, broker):
    producer = Producer(rig, broker.topic, v2=False)
    producer.ready()
    sent = [producer.send(b"a", 0), producer.send(b"b", 2)]
    run_until(rig.engine, lambda: len(producer.table.partitions_to_add(producer.row)) == 2)
    for _ in range(5):
        rig.engine.run(20)
    assert broker.produced == []
    assert sorted(producer.table.partitions_to_add(producer.row)) == [(broker.topic, 0), (broker.topic, 2)]
    producer.table.on_partitions_added(producer.row, [(broker.topic, 2)])
    assert producer.results(1) == [(sent[1], 0)]
    assert producer.table.partitions_to_add(producer.row) == [(broker.topic, 0)]
    producer.table.on_partitions_added(producer.row, [(broker.topic, 0)])
    assert producer.results(1) == [(sent[0], 0)]
    assert max(broker.versions[0]) == 11
    producer.ready()
    producer.send(b"c", 0)
    run_until(rig.engine, lambda: producer.table.partitions_to_add(producer.row) == [(broker.topic, 0)])


def test_a_held_transaction_sends_nothing_and_says_when_a_batch_waits(rig, broker, producer):
    told = []
    rig.engine._transactions.on_event = lambda index: told.append(index)
    producer.ready()
    producer.table.hold(producer.row)
    rig.engine.run(20)
    found = producer.table.read(producer.row)._asdict()
    assert (found["held"], found["holds_up"], told) == (True, False, [])
    slots = [producer.send(b"a"), producer.send(b"b", partition=1)]
    run_until(rig.engine, lambda: producer.table.read(producer.row)._asdict()["holds_up"])
    for _ in range(5):
        rig.engine.run(20)
    assert told == [producer.row]
    assert broker.produced == []
    assert producer.table.read(producer.row)._asdict()["state"] == TransactionState.READY
    producer.table.release(producer.row)
    assert sorted(producer.results(2)) == [(slot, 0) for slot in slots]
    assert not producer.table.read(producer.row)._asdict()["held"]


def test_a_held_transaction_that_fails_sends_nothing(broker, producer):
    producer.ready()
    producer.table.hold(producer.row)
    slot = producer.send(b"a")
    producer.table.fail(producer.row, PRODUCER_FENCED)
    assert producer.results(1) == [(slot, errors.TRANSACTION_ABORTED)]
    assert broker.produced == []


def test_without_a_producer_id_records_end_at_once(producer, broker):
    assert producer.result_of(b"early") == errors.TRANSACTION_ABORTED
    producer.ready()
    assert producer.result_of(b"later") == 0
    assert broker.partitions[0].values == [b"later"]


def test_a_failed_transaction_sends_nothing_more(rig, producer, broker):
    producer.ready()
    first = producer.send(b"first")
    assert producer.results(1) == [(first, 0)]
    broker.faults.append(Fault(delay=0.5))
    flying = producer.send(b"in flight", 0)
    run_until(rig.engine, lambda: len(broker.produced) == 2)
    waiting = [producer.send(b"waiting", 0), producer.send(b"other", 1)]
    rig.engine._transaction_table.fail(producer.row, errors.TRANSACTION_ABORTED)
    later = producer.send(b"later", 2)
    got = dict(producer.results(4))
    assert got.pop(flying) == 0
    assert set(got.values()) <= {0, errors.TRANSACTION_ABORTED}
    assert got[later] == errors.TRANSACTION_ABORTED
    assert set(got) == {*waiting, later}
    assert not producer.table.is_busy(producer.row)
    assert producer.state()[:2] == (TransactionState.IN_TRANSACTION, errors.TRANSACTION_ABORTED)
    assert b"later" not in broker.partitions[2].values
    producer.ready(epoch=1)
    assert producer.state() == (TransactionState.READY, 0, False)
    assert producer.result_of(b"next", 2) == 0


def test_a_batch_that_is_too_large_for_a_failed_transaction_is_not_sent_in_parts(rig, producer, broker):
    producer.ready()
    broker.faults.append(Fault(code=MESSAGE_TOO_LARGE, delay=0.5))
    producer.slot += UNIT_SLOTS
    producer.front_end.send(producer.slot, [(NOW, None, b"v")] * 4, topic=producer.topic, partition=0)
    run_until(rig.engine, lambda: broker.produced)
    producer.table.fail(producer.row, errors.TRANSACTION_ABORTED)
    assert producer.results(1) == [(producer.slot, MESSAGE_TOO_LARGE)]
    assert not producer.table.is_busy(producer.row)


@pytest.mark.parametrize("code", [INVALID_RECORD, PRODUCER_FENCED, INVALID_PRODUCER_EPOCH, 48, 120, 29])
def test_a_refused_record_fails_the_transaction(producer, broker, code):
    producer.ready()
    broker.faults.append(Fault(code=code))
    assert producer.result_of(b"bad") == code
    state, failed, _ = producer.state()
    assert (state, failed) == (TransactionState.IN_TRANSACTION, code)
    assert producer.result_of(b"after") == errors.TRANSACTION_ABORTED
    assert producer.state()[1] == code, "the first error is kept"


def test_a_batch_that_waits_for_its_retry_ends_with_the_transaction(rig, producer, broker):
    producer.ready()
    broker.faults.extend(Fault(code=NOT_LEADER_OR_FOLLOWER) for _ in range(100))
    slot = producer.send(b"v")
    run_until(rig.engine, lambda: len(broker.produced) >= 2)
    producer.table.fail(producer.row, errors.TRANSACTION_ABORTED)
    assert producer.results(1) == [(slot, errors.TRANSACTION_ABORTED)]
    assert producer.state() == (TransactionState.IN_TRANSACTION, errors.TRANSACTION_ABORTED, True)
    assert not producer.table.is_busy(producer.row)


def test_an_expired_batch_fails_the_transaction(rig, broker):
    producer = Producer(rig, broker.topic)
    slow = rig.attach(transactional_id="slow", transaction_timeout_ms=60_000, delivery_timeout_ms=100)
    row = rig.engine._transaction_table.row_of(slow.attach_id)
    rig.engine._transaction_table.store(row, TransactionState.READY, 900, 0, 1, 0, True)
    number = topic_number(rig.engine, slow, broker.topic)
    broker.faults.append(Fault(hang="appended"))
    slow.send(0, [(NOW, None, b"v")], topic=number, partition=0)
    assert rig.outcomes(slow, 1)[0][5] == errors.OUTCOME_UNKNOWN
    assert rig.engine._transaction_table.read(row)._asdict()["failed"] == errors.OUTCOME_UNKNOWN
    assert rig.engine._transaction_table.is_busy(row)
    assert producer.state()[0] == TransactionState.UNINITIALIZED


def test_the_end_of_the_front_end_fails_its_transaction(rig, producer, broker):
    producer.ready()
    assert producer.result_of(b"v") == 0
    assert not producer.table.remove(producer.row), "its front-end is attached"
    rig.engine.detach(producer.front_end.attach_id)
    found = producer.table.read(producer.row)._asdict()
    assert found["orphaned"] and found["failed"] == errors.TRANSACTION_ABORTED
    run_until(rig.engine, lambda: producer.table.remove(producer.row))
    assert producer.table.rows() == []
    again = Producer(rig, broker.topic)
    again.ready(epoch=1)
    assert again.result_of(b"next") == 0
    assert broker.partitions[0].values == [b"v", b"next"]


def test_the_end_of_a_front_end_in_a_commit_does_not_fail_it(rig, producer):
    producer.ready()
    assert producer.result_of(b"v") == 0
    producer.store(TransactionState.COMMITTING_TRANSACTION)
    rig.engine.detach(producer.front_end.attach_id)
    assert producer.state()[:2] == (TransactionState.COMMITTING_TRANSACTION, 0)


def test_a_full_table_refuses_further_producers(rig):
    """A row stays in use until the control plane has removed it, also when its front-end has ended."""
    for at in range(1024):
        front_end = rig.attach(slots=256, transactional_id=f"id-{at}", transaction_timeout_ms=1)
        rig.engine.detach(front_end.attach_id)
        front_end.close()
        rig.front_ends.remove(front_end)
    with pytest.raises(OverflowError, match="1024"):
        rig.attach(slots=256, transactional_id="one more", transaction_timeout_ms=1)
    run_until(rig.engine, lambda: rig.engine._transaction_table.remove(500))
    rig.attach(slots=256, transactional_id="one more", transaction_timeout_ms=1)


@pytest.mark.parametrize(
    "settings", [{"transactional_id": ""}, {"transactional_id": "x" * 256}, {"transactional_id": "x", "acks": 1}]
)
def test_invalid_settings_are_refused(rig, settings):
    with pytest.raises(ValueError):
        rig.attach(transaction_timeout_ms=1, **settings)
    assert rig.engine._transaction_table.rows() == []


# ---------------------------------------------------------------- several front-ends in one transaction


class Participant(Producer):
    """A front-end that takes part in a transaction of another process."""

    def __init__(self, rig: EngineRig, topic: str, epoch: int, **settings) -> None:
        self.rig = rig
        self.front_end = rig.attach(
            transactional_id=ID, transaction_timeout_ms=1, joined_transaction=[700, epoch, True], **settings
        )
        self.table = rig.engine._transaction_table
        self.topic = topic_number(rig.engine, self.front_end, topic)
        self.slot = 0
        (self.row,) = [row for row in self.table.rows() if self.table.read(row)._asdict()["epoch"] == epoch]


def test_participants_continue_the_same_sequences(rig, broker):
    first = Participant(rig, broker.topic, 5)
    second = Participant(rig, broker.topic, 5)
    assert first.row == second.row
    for at in range(5):
        first.send(b"1/%d" % at)
        second.send(b"2/%d" % at)
    assert {error for producer in (first, second) for _, error in producer.results(5)} == {0}
    rig.engine.detach(first.front_end.attach_id)
    rig.engine.detach(second.front_end.attach_id)
    found = first.table.read(first.row)._asdict()
    assert (found["state"], found["failed"], found["participants"]) == (TransactionState.IN_TRANSACTION, 0, 0)
    third = Participant(rig, broker.topic, 5)
    assert third.result_of(b"3/0") == 0
    assert len(broker.partitions[0].values) == 11
    assert broker.partitions[0].producers[700].last == 10


def test_each_epoch_has_its_own_row(rig, broker):
    former = Participant(rig, broker.topic, 5)
    assert former.result_of(b"former") == 0
    later = Participant(rig, broker.topic, 6)
    assert later.row != former.row
    assert later.result_of(b"later") == 0
    assert not former.table.remove(former.row), "its front-end is attached"
    rig.engine.detach(former.front_end.attach_id)
    run_until(rig.engine, lambda: former.table.remove(former.row))


def test_a_failed_record_fails_the_transaction_for_all_participants(rig, broker):
    first, second = Participant(rig, broker.topic, 5), Participant(rig, broker.topic, 5)
    broker.faults.append(Fault(code=INVALID_RECORD))
    assert first.result_of(b"bad") == INVALID_RECORD
    assert second.result_of(b"good", 1) == errors.TRANSACTION_ABORTED
