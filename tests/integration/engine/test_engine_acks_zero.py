"""Tests acks=0 on a scripted cluster: a batch counts as sent when written, and is never sent again."""

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from support.fault_rig import INVALID_RECORD, Rig
from support.front_end import run_until
from support.process import wait_until
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.codes import CORRUPT_MESSAGE, NOT_LEADER_OR_FOLLOWER, REQUEST_TIMED_OUT

BROKER = {"partitions": 1, "nodes": 1}


def test_with_acks_zero_a_written_batch_counts_as_sent(rig, broker):
    """The broker appends and does not answer: the owner gets its outcome at once, its memory with the answer."""
    rig.attach(acks=0, enable_idempotence=False)
    broker.faults.append(Fault(delay=0.2))
    rig.send(0, 0)
    run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[0]))
    assert rig.heard[0] == {0: (-1, 0)}
    assert rig.released[0] == set()
    rig.finish()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(code=NOT_LEADER_OR_FOLLOWER),
        Fault(code=REQUEST_TIMED_OUT, after_append=True),
        Fault(omit=True),
        Fault(close="before"),
        Fault(close="after"),
        Fault(hang="appended"),
    ],
    ids=repr,
)
def test_with_acks_zero_nothing_is_sent_again_and_the_ledger_counts_it(rig, broker, fault):
    zero = rig.attach(acks=0, enable_idempotence=False)
    broker.faults.append(fault)
    rig.send(zero, 0)
    run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[zero]))
    rig.settle()
    assert rig.heard[zero] == {0: (-1, 0)}
    assert [records for *_, records in rig.failures] == [2]
    rig.deliver(zero, 0)
    log = broker.values(0)
    assert len(set(log)) == len(log)
    assert broker.complaints == []
    assert broker.produce_requests == 2


def test_with_acks_zero_a_batch_that_is_never_answered_is_given_back(rig, broker):
    """The delivery timeout ends before the request timeout."""
    zero = rig.attach(acks=0, enable_idempotence=False, delivery_timeout_ms=50)
    broker.faults.append(Fault(hang="appended"))
    rig.deliver(zero, 0)
    assert rig.heard[zero] == {0: (-1, 0)}
    assert set(rig.engine.tables_in_use().values()) == {0}


@pytest.mark.parametrize("version", [12, 7])
@pytest.mark.parametrize("poisoned", [(0,), (1, 3), (0, 1, 2, 3)], ids=str)
def test_in_a_merged_batch_only_bad_records_are_lost_and_no_connection(version, poisoned):
    """All owners get the outcome "sent". The refused records are in the ledger, under the name of their owner."""
    with ScriptedBroker(partitions=1, nodes=1, produce_version=version) as broker, Rig(broker) as rig:
        rig.attach_many(4, linger_ms=30, acks=0, enable_idempotence=False)
        connections = broker.accepted
        for index in range(4):
            rig.send(index, 0, seal=False, poison=index in poisoned)
        rig.settle()
        assert rig.engine._loop.totals()["merged"] >= 4, "they were not merged"
        assert {outcome for heard in rig.heard for outcome in heard.values()} == {(-1, 0)}
        good = [value for index, sent in enumerate(rig.sent) if index not in poisoned for value in sent[0][1]]
        assert sorted(broker.values(0)) == sorted(good)
        ids = [rig.front_ends[index].attach_id for index in poisoned]
        assert sorted(rig.failures) == [(attach_id, broker.topic, INVALID_RECORD, 2) for attach_id in ids]
        assert broker.accepted == max(connections, 1)
        assert set(rig.engine.tables_in_use().values()) == {0}
        assert broker.complaints == []


@pytest.mark.breaks_protocol
def test_bytes_that_change_with_acks_zero_are_a_violation(broker):
    """The broker finds a wrong CRC because a front-end changed bytes after the CRC was made."""
    with Rig(broker, request_timeout_ms=60_000) as rig:
        rig.attach()
        hostile = rig.attach(acks=0, enable_idempotence=False)
        broker.expects_corruption = True
        broker.faults.append(Fault(code=CORRUPT_MESSAGE, delay=2))  # after the bytes have changed
        rig.send(hostile, 0)
        run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[hostile]))
        rig.front_ends[hostile].memory[rig.front_ends[hostile].chunks_at + 8] ^= 0xFF
        run_until(rig.engine, lambda: rig.listen() or rig.engine.undelivered() == 0, 60)
        assert rig.engine.take_violators() == [rig.front_ends[hostile].attach_id]
        rig.send(0, 0)
        run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[0]))
        assert rig.errors(0) == [0]


@pytest.mark.parametrize("hang", ["appended", "lost"])
def test_a_successor_gives_the_memory_back_and_sends_nothing_again(broker, nursery, hang):
    """Written and reported, but not answered when the sender is killed: the owner gets no second outcome."""
    with TakeoverRig(broker, nursery) as rig:
        zero, other = rig.attach(acks=0, enable_idempotence=False), rig.attach()
        broker.faults.append(Fault(hang=hang))
        rig.send(zero, 0)
        run_until(rig.engine, lambda: rig.listen() or bool(rig.heard[zero]))
        assert rig.released[zero] == set()
        rig.engine.kill()
        rig.send(other, 0)
        rig.engine.take_over()
        rig.settle()
        assert rig.heard[zero] == {0: (-1, 0)}
        assert rig.errors(other) == [0]
        mine = [value for value in broker.values(0) if value.startswith(b"%d/" % zero)]
        assert len(mine) == (2 if hang == "appended" else 0)


def test_a_successor_does_not_send_what_its_predecessor_has_written_in_part(nursery):
    """The rest cannot be sent, and the broker may have got all of it: the outcome is not known."""
    with ScriptedBroker(partitions=1, nodes=1, receive_buffer_bytes=4096) as broker:
        with TakeoverRig(broker, nursery, send_buffer_bytes=4096) as rig:
            zero = rig.attach(acks=0, enable_idempotence=False)
            rig.deliver(zero, 0)
            broker.deaf.add(1)
            rig.send(zero, 0, size=24_000)
            wait_until(lambda: broker.unread(1) > 0)
            rig.engine.kill()
            broker.deaf.clear()
            rig.engine.take_over()
            rig.settle()
            assert rig.errors(zero) == [0, errors.OUTCOME_UNKNOWN]
            assert len(broker.values(0)) == 2
