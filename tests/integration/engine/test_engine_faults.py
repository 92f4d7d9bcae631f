"""Tests the engine against a simulated cluster that fails on command: nothing lost, duplicated, reordered or leaked.

After every sequence of faults each front-end's records are in the log once and in order, or have their error.
"""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kfake.scripted_broker import Fault, ScriptedBroker
from probe.native import RecordBatchBuilder
from support.fault_rig import NOW, Rig, next_outcomes, stream
from support.front_end import CONT, HEAD, OPEN, READY, SUBMIT_FULL, run_until, word

from cyproducer import errors
from cyproducer.codes import (
    INVALID_RECORD,
    NOT_ENOUGH_REPLICAS,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    REQUEST_TIMED_OUT,
)

DUPLICATE_SEQUENCE, UNKNOWN_PRODUCER_ID = 46, 59


FAULTS = {
    "retriable errors": [Fault(code=code) for code in (NOT_ENOUGH_REPLICAS, 2, 3, 5, 56, 89)],
    "appended, then an error": [
        Fault(code=REQUEST_TIMED_OUT, after_append=True),
        Fault(code=NOT_ENOUGH_REPLICAS_AFTER_APPEND, after_append=True),
    ]
    * 3,
    "one partition of several": [Fault(code=NOT_ENOUGH_REPLICAS, partitions=(0,))] * 5,
    "closed before": [Fault(close="before")] * 3,
    "closed after": [Fault(close="after")] * 3,
    "closed before and after in turn": [Fault(close="before"), Fault(close="after"), Fault(), Fault(close="after")],
    "half an answer": [Fault(partial=7), Fault(partial=3), Fault(partial=20)],
    "answers in pieces": [Fault(split=1)] * 6,
    "late answers": [Fault(delay=0.03)] * 4,
    "throttled": [Fault(throttle_ms=30)] * 3,
    "hangs, appended": [Fault(hang="appended")],
    "hangs, lost": [Fault(hang="lost")],
    "the leader moves": [Fault(), Fault(move=True), Fault(), Fault(move=True), Fault(move=True)],
    "the leader moves after a hang": [Fault(hang="lost"), Fault(move=True)],
    "an answer leaves partitions out": [Fault(omit=True, partitions=(1,))] * 3,
    "sequence errors": [Fault(code=OUT_OF_ORDER_SEQUENCE_NUMBER), Fault(), Fault(code=UNKNOWN_PRODUCER_ID)],
    "out of order after an unsure attempt": [Fault(close="before"), Fault(code=OUT_OF_ORDER_SEQUENCE_NUMBER)],
    "a definite error": [Fault(), Fault(code=INVALID_RECORD, partitions=(0,)), Fault()],
    "a definite error after an unsure attempt": [Fault(), Fault(code=REQUEST_TIMED_OUT), Fault(code=INVALID_RECORD)],
    "the broker forgets its producers": [Fault(), Fault(), Fault(forget=True)],
}


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("merging", [False, True], ids=["alone", "merged"])
def test_after_a_fault_every_record_is_there_once_or_has_its_error(rig, broker, faults, merging):
    broker.faults.extend(faults)
    stream(rig, front_ends=4 if merging else 1, linger_ms=5 if merging else 0, seal=not merging)
    rig.check()
    assert not broker.faults, "the faults were not met"


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    faults=st.lists(
        st.one_of(
            st.sampled_from([fault for faults in FAULTS.values() for fault in faults if not fault.forget]),
            st.builds(
                Fault,
                code=st.sampled_from(
                    [0, NOT_LEADER_OR_FOLLOWER, OUT_OF_ORDER_SEQUENCE_NUMBER, REQUEST_TIMED_OUT, INVALID_RECORD]
                ),
                partitions=st.sampled_from([None, (0,), (1, 2)]),
                move=st.booleans(),
            ),
        ),
        max_size=12,
    ),
    front_ends=st.integers(1, 4),
    linger_ms=st.sampled_from([0, 3]),
)
def test_any_sequence_of_faults(faults, front_ends, linger_ms):
    with ScriptedBroker() as broker:
        broker.faults.extend(faults)
        with Rig(broker) as rig:
            stream(rig, front_ends, batches=10, linger_ms=linger_ms)
            rig.check()


def test_a_duplicate_whose_offset_the_broker_forgot(rig, broker):
    rig.attach()
    broker.faults.extend([Fault(close="after"), Fault(code=DUPLICATE_SEQUENCE)])
    rig.send(0, 0)
    rig.send(0, 0)
    rig.finish()
    assert [rig.heard[0][slot] for slot in range(2)] == [(-1, 0), (2, 0)]


# ---------------------------------------------------------------- acks and idempotence mixed


def test_acks_of_all_kinds_in_one_partition(rig, broker):
    """acks=0, 1 and all, idempotent and not, share a partition: each gets its outcomes, and acks=0 is sent once."""
    rig.attach()
    rig.attach(acks=1, enable_idempotence=False)
    rig.attach(acks=0, enable_idempotence=False)
    rig.attach(acks=-1, enable_idempotence=False)
    for _ in range(20):
        for index in range(4):
            rig.send(index, 0)
        rig.engine.run(1)
    rig.finish()
    assert {error for index in range(4) for error in rig.errors(index)} == {0}
    assert set(broker.acks_seen) == {-1, 1}, "a refused acks=0 batch would close the connection that all share"
    assert {offset for offset, _ in rig.heard[2].values()} == {-1}


def test_acks_zero_batch_is_not_sent_again_when_its_connection_breaks(rig, broker):
    """Four front-ends with acks=0 share a batch that is larger than the socket takes at once."""
    settings = {"acks": 0, "enable_idempotence": False, "linger_ms": 5}
    rig.attach_many(4, **settings)
    for index in range(4):
        rig.send(index, 0, seal=False)
    rig.settle()
    broker.drop_connections()
    for index in range(4):
        rig.send(index, 0, seal=False)
    rig.settle()
    assert len(set(broker.values(0))) == len(broker.values(0))


def test_a_first_idempotent_batch_is_not_starved_by_others_without_idempotence(rig, broker):
    """Answers are slow and another front-end keeps the partition busy: the limit of one is for idempotent batches."""
    other = rig.attach(acks=-1, enable_idempotence=False)
    late = rig.attach()
    broker.faults.extend([Fault(delay=0.01)] * 300)
    for _ in range(200):
        rig.send(other, 0)
    run_until(rig.engine, lambda: rig.listen() or len(rig.heard[other]) > 10)
    rig.send(late, 0)
    run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[late]))
    assert rig.errors(late) == [0]
    assert len(rig.heard[other]) < 100
    broker.clear_faults()
    rig.finish(exactly=False)


def test_acks_one_is_served_beside_a_backlog_of_acks_all(rig, broker):
    rig.attach_many(3, slots=256)
    modest = rig.attach(acks=1, enable_idempotence=False)
    broker.faults.extend([Fault(delay=0.005)] * 1000)
    for _ in range(100):
        for index in range(3):
            rig.send(index, 0, records=1, size=3000)
    run_until(rig.engine, lambda: rig.listen() or sum(len(heard) for heard in rig.heard) > 50)
    rig.send(modest, 0)
    run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[modest]))
    assert sum(len(heard) for heard in rig.heard) < 200
    broker.clear_faults()
    rig.settle()


def test_a_batch_is_taken_once_into_a_request_with_lingering_batches(rig, broker):
    """Both passes reach the partition: it has a batch in the request already, and another front-end's batch lingers."""
    rig.attach(retries=5)
    rig.attach(linger_ms=100, retries=7)  # different retries: they are never merged
    rig.deliver(0, 0)
    for _ in range(3):
        rig.send(1, 0, seal=False)
        rig.deliver(0, 0)
    rig.check()  # the broker would refuse a partition that is twice in a request
    assert rig.errors(0) + rig.errors(1) == [0] * 7, "its count of batches in flight returns to zero"


# ---------------------------------------------------------------- limits


def test_memory_for_large_requests_and_responses_is_given_back():
    """A request with 500 partitions of a long name, and a response that names thousands of records."""
    with ScriptedBroker(topic="t" * 200, partitions=500, nodes=1) as broker:
        with Rig(broker, request_timeout_ms=10_000) as rig:
            rig.attach(slots=1024)
            for partition in range(500):
                rig.send(0, partition, records=1)
            rig.settle()
            for _ in range(2):
                front_end = rig.front_ends[rig.attach()]
                broker.refuses = lambda record: True
                front_end.send(0, [(NOW, None, b"%d" % value) for value in range(5000)], topic=rig.number, partition=0)
                assert [outcome[5] for outcome in next_outcomes(rig.engine, front_end)] == [INVALID_RECORD]
                broker.refuses = None
            kept = rig.engine._loop.spare_memory()
            assert 0 < kept["requests"] <= 16
            assert kept["request_bytes"] <= kept["requests"] * (65_536 + 16_384)
            assert kept["input_bytes"] <= 2 * 131_072


@pytest.mark.parametrize("unsure", [False, True])
def test_retries_run_out(rig, broker, unsure):
    """Three attempts and no more, merged or not; unsure batches end as unknown."""
    index = rig.attach(retries=2)
    broker.faults.extend([Fault(code=NOT_ENOUGH_REPLICAS_AFTER_APPEND if unsure else NOT_ENOUGH_REPLICAS)] * 3)
    rig.deliver(index, 0)
    assert rig.errors(index) == [errors.OUTCOME_UNKNOWN if unsure else NOT_ENOUGH_REPLICAS]
    assert broker.produce_requests == 3
    rig.deliver(index, 0)
    assert rig.errors(index)[1] == 0


def test_retries_of_a_merged_batch_run_out_for_all(rig, broker):
    rig.attach_many(3, retries=1, linger_ms=20)
    broker.faults.extend([Fault(code=NOT_ENOUGH_REPLICAS)] * 2)
    for index in range(3):
        rig.send(index, 0, seal=False)
    rig.settle()
    assert [rig.errors(index) for index in range(3)] == [[NOT_ENOUGH_REPLICAS]] * 3
    assert broker.produce_requests == 2
    rig.check()


def test_front_ends_with_different_retries_do_not_share_a_batch(rig, broker):
    rig.attach(retries=0, linger_ms=20)
    rig.attach(retries=5, linger_ms=20)
    broker.faults.extend([Fault(code=NOT_ENOUGH_REPLICAS)])
    for index in range(2):
        rig.send(index, 0, seal=False)
    rig.settle()
    assert rig.errors(1) == [0]
    rig.check()


def test_the_last_epoch_is_followed_by_another_producer_id():
    with ScriptedBroker() as broker, Rig(broker) as rig:
        broker.producer_epoch = 32766
        rig.attach()
        for _ in range(4):
            broker.faults.extend([Fault(), Fault(code=INVALID_RECORD)])
            rig.deliver(0, 0)
            rig.send(0, 0)
            rig.deliver(0, 0)
        rig.check()
        assert rig.errors(0) == [0, INVALID_RECORD, 0] * 4
        assert broker.producer_ids >= 2


# ---------------------------------------------------------------- time and leaders


def test_a_partition_without_leader_waits_and_goes_on(rig, broker):
    rig.attach()
    broker.without_leader = 4
    broker.faults.append(Fault(code=NOT_LEADER_OR_FOLLOWER))
    for _ in range(6):
        rig.send(0, 0)
        rig.engine.run(1)
    rig.finish()
    assert set(rig.errors(0)) == {0}


def test_nothing_is_sent_to_the_bootstrap_address_for_a_partition_without_leader():
    """The bootstrap address is not that of any broker in the metadata, as behind a load balancer."""
    with ScriptedBroker(partitions=1, bootstrap_apart=True) as broker, Rig(broker) as rig:
        rig.begin()
        with broker.lock:
            broker.without_leader = 1000
            broker.faults.append(Fault(code=NOT_LEADER_OR_FOLLOWER))
            before = broker.produce_requests
        rig.send(0, 0)
        while broker.without_leader > 997:
            rig.engine.run(5)
        for _ in range(20):
            rig.engine.run(5)
        assert broker.produce_requests <= before + 2  # until the metadata named a leader
        assert broker.complaints == []
        broker.without_leader = 0
        rig.finish()


def test_peer_that_does_not_speak_kafka_is_tried_with_pauses():
    """A peer with a malformed ApiVersions answer gets one connection per backoff, not one per loop iteration."""
    with ScriptedBroker() as broker, Rig(broker, reconnect_backoff_ms=100, reconnect_backoff_max_ms=100) as rig:
        rig.attach()
        with broker.lock:
            broker.nonsense = True
            before = broker.accepted
        broker.drop_connections()
        rig.send(0, 0)
        rig.send(0, 1)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            rig.engine.run(5)
        assert before < broker.accepted <= before + 24  # two brokers, 80 ms apart at the least (100 ms less a fifth)
        with broker.lock:
            broker.nonsense = False
        rig.finish()


@pytest.mark.parametrize("refusal", [False, True], ids=["closed", "an older version is requested, then closed"])
def test_a_broker_that_closes_after_its_first_answer(refusal):
    """The answer and the end of the connection arrive together: the sender does not end and no batch is lost."""
    with ScriptedBroker() as broker, Rig(broker) as rig:
        rig.attach()
        with broker.lock:
            broker.close_after_versions, broker.refuse_versions = 6, refusal
        broker.drop_connections()
        for slot in range(6):
            rig.send(0, slot % 3)
        rig.finish()


def test_batches_that_expire_while_they_are_assigned(rig, broker):
    """The broker hangs beyond the delivery timeout; another front-end's batches of the partition go on afterwards."""
    rig.attach(delivery_timeout_ms=150)
    rig.begin()
    broker.faults.append(Fault(hang="appended"))
    for _ in range(8):
        rig.send(0, 0)
        rig.send(1, 0)
        rig.engine.run(1)
    rig.finish()
    assert set(rig.errors(1)) == {0}
    assert set(rig.errors(0)) <= {0, errors.OUTCOME_UNKNOWN, errors.DELIVERY_TIMEOUT}


def test_everything_expires_and_the_next_batch_begins_an_epoch(rig, broker):
    rig.begin(delivery_timeout_ms=100)
    broker.faults.extend([Fault(hang="lost")] * 3)
    for _ in range(8):
        rig.send(0, 0)
    rig.settle()
    assert set(rig.errors(0)[1:]) <= {errors.OUTCOME_UNKNOWN, errors.DELIVERY_TIMEOUT}
    broker.clear_faults()
    rig.deliver(0, 0)
    assert rig.errors(0)[-1] == 0
    rig.check()


def test_an_expired_batch_that_need_not_fill_a_gap_is_not_sent_again(rig, broker):
    """Without idempotence no sequence depends on it: it waits behind another one's batch in backoff, and is sent."""
    rig.attach(acks=1, enable_idempotence=False, delivery_timeout_ms=100)
    rig.attach(acks=1, enable_idempotence=False)
    with broker.lock:
        broker.without_leader = 40
        broker.faults.extend([Fault(code=NOT_LEADER_OR_FOLLOWER)] * 2)
    rig.send(0, 0)
    rig.engine.run(1)
    rig.send(1, 0)
    run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[0]), 10)
    if broker.without_leader:
        broker.without_leader = 0
    rig.finish(exactly=False)
    assert rig.heard[0][0][1] in (errors.DELIVERY_TIMEOUT, NOT_LEADER_OR_FOLLOWER, errors.OUTCOME_UNKNOWN)
    assert not any(value.startswith(b"0/") for value in broker.values(0))


def test_partitions_that_are_added_are_used(rig, broker):
    rig.attach()
    rig.deliver(0, 2)
    broker.grow(6)
    broker.faults.append(Fault(code=NOT_LEADER_OR_FOLLOWER))
    rig.send(0, 2)
    deadline = time.monotonic() + 10
    front_end = rig.front_ends[0]
    while len(front_end.snapshot.read()[3][broker.topic][2]) < 6:
        assert time.monotonic() < deadline
        rig.engine.run(5)
    for partition in range(6):
        rig.send(0, partition)
    rig.finish()
    assert set(rig.errors(0)) == {0}


def test_a_front_end_that_ends_in_mid_flight_is_delivered(rig, broker):
    rig.attach_many(3, linger_ms=3)
    broker.faults.extend([Fault(close="after"), Fault(code=NOT_ENOUGH_REPLICAS), Fault(close="before")])
    for _ in range(6):
        for index in range(3):
            rig.send(index, 0, seal=index != 1)
    rig.engine.run(1)
    rig.engine.detach(rig.front_ends[1].attach_id)
    for index in (0, 2):
        rig.send(index, 0)
    run_until(rig.engine, lambda: rig.listen() or rig.engine.undelivered() == 0, 15)
    log = broker.values(0)
    assert len(log) == len(set(log)) == 2 * (7 + 6 + 7)
    for index in range(3):
        mine = [value for value in log if value.startswith(b"%d/" % index)]
        assert mine == [value for _, values in rig.sent[index] for value in values]
    assert rig.engine.attached() == 2
    assert set(rig.engine.tables_in_use().values()) == {0}


# ---------------------------------------------------------------- front-ends that break the protocol


@pytest.mark.breaks_protocol
def test_two_batches_that_share_a_chunk(rig, broker):
    """The second batch would change the sizes of the first one while it waits: a violation; other front-ends go on."""
    rig.attach()
    hostile = rig.front_ends[rig.attach()]
    rig.deliver(0, 0)
    builder = RecordBatchBuilder(4096)
    builder.append(NOW, None, b"hostile")
    records = builder.records()
    row = {"topic": rig.number, "partition": 1, "base": NOW, "highest": NOW}
    broker.faults.extend([Fault(delay=0.1), Fault(code=NOT_ENOUGH_REPLICAS)])
    hostile.write_chunk(0, records, 1, **row, flags=HEAD | CONT, next_slot=5)
    hostile.write_chunk(5, records, 1, **row, flags=CONT, next_slot=7)
    hostile.write_chunk(7, records, 1, **row, flags=0)
    hostile.submit(SUBMIT_FULL, 0)
    rig.engine.run(1)
    hostile.write_chunk(7, records, 1, **row, flags=HEAD | CONT, next_slot=5)
    hostile.submit(SUBMIT_FULL, 7)
    rig.send(0, 1)
    run_until(rig.engine, lambda: rig.engine.undelivered() == 0 and rig.engine.attached() == 1)
    assert rig.engine.take_violators() == [hostile.attach_id]
    assert broker.complaints == []
    assert rig.front_ends[0].outcomes()[-1][5] == 0


@pytest.mark.breaks_protocol
@pytest.mark.parametrize("wrong", ["more bytes than the arena has", "a next chunk that the arena has not"])
def test_a_chunk_that_leads_out_of_its_arena(rig, broker, wrong):
    hostile = rig.front_ends[rig.attach()]
    builder = RecordBatchBuilder(4096)
    builder.append(NOW, None, b"x")
    row = {"topic": rig.number, "partition": 0, "base": NOW, "highest": NOW}
    if wrong == "more bytes than the arena has":
        slot = hostile.slot_count - 1
        hostile.write_chunk(slot, builder.records(), 1, **row)
        hostile.set_row(slot, word=word(READY, 0, 1, 5000, HEAD))
    else:
        slot = 0
        hostile.write_chunk(slot, builder.records(), 1, **row, flags=HEAD | CONT, next_slot=1 << 31)
    hostile.submit(SUBMIT_FULL, slot)
    run_until(rig.engine, lambda: rig.engine.attached() == 0)
    assert rig.engine.take_violators() == [hostile.attach_id]
    assert rig.engine.undelivered() == 0


@pytest.mark.breaks_protocol
def test_a_front_end_that_changes_what_it_committed(rig, broker):
    """The bytes change between two attempts: the front-end gets its error and is detached; others are served."""
    rig.attach()
    hostile_index = rig.attach()
    hostile = rig.front_ends[hostile_index]
    broker.faults.append(Fault(code=NOT_ENOUGH_REPLICAS, delay=0.05))
    rig.send(hostile_index, 0)
    run_until(rig.engine, lambda: broker.produce_requests == 1)
    at = hostile.chunks_at + 8
    hostile.memory[at] ^= 0xFF
    rig.send(0, 0)
    run_until(rig.engine, lambda: rig.engine.undelivered() == 0)
    rig.listen()
    assert rig.errors(0) == [0]
    assert rig.errors(hostile_index) == [errors.INVALID_BATCH]
    assert rig.engine.take_violators() == [hostile.attach_id]


def test_acks_zero_with_idempotence_counts_as_without(rig, broker):
    """Without an answer there is no acknowledgement: the front-end's sequences would break those of others."""
    rig.attach(acks=0, enable_idempotence=True)
    rig.attach()
    for _ in range(5):
        rig.send(0, 0)
        rig.send(1, 0)
    rig.finish()
    assert {batch.producer_id for batch in broker.partitions[0].batches} == {-1, 1001}


@pytest.mark.breaks_protocol
def test_an_open_chunk_of_a_hostile_front_end_does_not_hold_the_sender(rig, broker):
    """A chain that leads back into itself is a violation."""
    hostile = rig.front_ends[rig.attach()]
    builder = RecordBatchBuilder(4096)
    builder.append(NOW, None, b"x")
    row = {"topic": rig.number, "partition": 0, "base": NOW, "highest": NOW}
    hostile.write_chunk(0, builder.records(), 1, **row, flags=HEAD | CONT, next_slot=1)
    hostile.write_chunk(1, b"", 0, **row, flags=CONT, next_slot=2, state=READY)
    hostile.write_chunk(2, b"", 0, **row, flags=CONT, next_slot=1, state=OPEN)
    hostile.submit(SUBMIT_FULL, 0)
    run_until(rig.engine, lambda: rig.engine.attached() == 0)
    assert rig.engine.take_violators() == [hostile.attach_id]
    assert rig.engine.undelivered() == 0
