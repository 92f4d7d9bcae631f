"""Tests takeovers: an engine is killed at any moment and another continues; nothing lost, duplicated or reordered.

The front-ends are in this process, each engine is in a process of its own. The broker is a scripted one, which also
checks the sequences, or a real one.
"""

import contextlib
import random
import select
import signal
import time
from types import SimpleNamespace

import pytest
from kfake.scripted_broker import Fault
from probe.native import RecordBatchBuilder
from support import layout
from support.build import is_debug
from support.consumer import read_topic
from support.crashpoints import Trigger
from support.engine_host import EngineEndedError, Nursery
from support.fault_rig import INVALID_RECORD
from support.front_end import CONT, DONE, HEAD, OPEN, READY, REVOKED, SUBMIT_FULL, PlainFrontEnd, run_until
from support.process import wait_until
from support.takeover_rig import TakeoverRig

from cyproducer import errors
from cyproducer.codes import (
    NOT_ENOUGH_REPLICAS,
    NOT_LEADER_OR_FOLLOWER,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    REQUEST_TIMED_OUT,
)
from cyproducer.shm.native import read_liveness

DETACHED = 2  # CYP_CONTROL_DETACHED


@pytest.fixture
def rig(broker, nursery):
    with TakeoverRig(broker, nursery) as rig:
        yield rig


def attach(rig: TakeoverRig, count: int, **settings) -> list[int]:
    """Attach front-ends, each with a batch that was acknowledged: their partitions are past the first batch."""
    indexes = [rig.attach(**settings) for _ in range(count)]
    for index in indexes:
        for partition in range(len(rig.broker.partitions)):
            rig.send(index, partition)
    rig.settle()
    return indexes


# ---------------------------------------------------------------- chosen moments

MOMENTS = {
    "not written": [Fault(code=NOT_LEADER_OR_FOLLOWER)] * 200,
    "appended, not answered": [Fault(hang="appended")] * 2,
    "lost, not answered": [Fault(hang="lost")] * 2,
    "half an answer": [Fault(partial=9)] * 2,
    "some answered, some not": [Fault(), Fault(hang="appended"), Fault(), Fault(hang="lost")],
    "refused for a while": [Fault(code=NOT_ENOUGH_REPLICAS, partitions=(0,))] * 4,
    "appended, with an error": [Fault(code=REQUEST_TIMED_OUT, after_append=True)] * 4,
    "out of order": [
        Fault(hang="appended"),
        Fault(code=OUT_OF_ORDER_SEQUENCE_NUMBER),
        Fault(code=OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
}


@pytest.mark.parametrize("merging", [False, True], ids=["alone", "merged"])
@pytest.mark.parametrize("faults", MOMENTS.values(), ids=MOMENTS.keys())
def test_killed_with_batches_in_flight(rig, broker, faults, merging):
    """Two engines are killed while the broker owes answers; the third one finishes."""
    indexes = attach(rig, 4 if merging else 1, linger_ms=3 if merging else 0)
    for _ in range(2):
        before = broker.produce_requests
        with broker.lock:
            broker.faults.extend(faults)
        for number in range(6):
            for index in indexes:
                rig.send(index, number % 3, seal=not merging)
        rig.stop_after(before + 2)
        for index in indexes:
            rig.send(index, 0, seal=not merging)  # no engine is running
        broker.clear_faults()
        rig.engine.take_over()
    rig.finish()
    # a broker that answers "out of order" for batches that it has in order may leave outcomes unknown
    allowed = {0, errors.OUTCOME_UNKNOWN} if Fault(code=OUT_OF_ORDER_SEQUENCE_NUMBER) in faults else {0}
    assert {error for index in indexes for error in rig.errors(index)} <= allowed
    assert broker.producer_ids == 1, "the successor has another identity"


def test_sequences_go_on_where_they_were(rig, broker):
    """There is no new epoch and no gap: the log of the partition is one series of sequences."""
    (index,) = attach(rig, 1)
    for _ in range(3):
        broker.faults.append(Fault(hang="appended"))
        before = broker.produce_requests
        for _ in range(8):
            rig.send(index, 0)
        rig.stop_after(before + 1)
        rig.engine.take_over()
    rig.finish()
    batches = broker.partitions[0].batches
    assert {(batch.producer_id, batch.epoch) for batch in batches} == {(1001, 0)}
    assert [batch.first for batch in batches] == [batch.offset for batch in batches]


def test_killed_again_and_again_before_anything_is_done(rig, broker):
    """Every successor dies at once; open, sealed, assigned and unsure batches are still there."""
    indexes = attach(rig, 3, linger_ms=2)
    with broker.lock:
        broker.faults.extend([Fault(hang="appended"), *[Fault(hang="lost")] * 20])
    before = broker.produce_requests
    for number in range(9):
        for index in indexes:
            rig.send(index, number % 3, seal=number % 2 == 0)
    rig.stop_after(before + 1)
    for _ in range(6):
        rig.engine.take_over()
        rig.engine.kill()
    broker.clear_faults()
    rig.engine.take_over()
    rig.finish()


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_random_in_a_stream(broker, nursery, seed):
    """Faults of all kinds, bad records, merged and not, and a kill every few loop iterations."""
    chance = random.Random(seed)
    with TakeoverRig(broker, nursery, places=12) as rig:
        for _ in range(4):
            rig.attach(linger_ms=chance.choice([0, 2]))
        pool = [fault for faults in MOMENTS.values() for fault in faults[:1]]
        for kill in range(15):
            with broker.lock:
                if chance.random() < 0.5:
                    broker.faults.extend(chance.sample(pool, 2))
            rounds = chance.randint(1, 25)
            # A slow machine needs more rounds: while all places are in use, nothing is sent.
            while rounds > 0 or sum(map(len, rig.sent)) <= 7 * kill:
                rounds -= 1
                for index in range(4):
                    rig.send(
                        index,
                        chance.randrange(3),
                        records=chance.randint(1, 4),
                        seal=chance.random() < 0.5,
                        size=chance.choice([0, 0, 0, 9000]),
                        poison=chance.random() < 0.02,
                    )
                rig.listen()
                time.sleep(chance.choice([0, 0, 0.001, 0.003]))
            rig.replace()
        broker.clear_faults()
        rig.finish()
        assert rig.engine.starts == 16


# ---------------------------------------------------------------- states of a batch when its sender dies


def test_open_batch_lingers_on_and_closed_batch_goes_out(rig):
    """One batch lingers beyond the test, until its owner closes it after the takeover; another was closed before."""
    index = rig.attach(linger_ms=600_000)
    front_end = rig.front_ends[index]
    rig.send(index, 0, seal=False)
    rig.engine.kill()
    rig.send(index, 1, seal=True)
    rig.send(index, 2, seal=False)
    rig.engine.take_over()
    wait_until(lambda: rig.listen() or rig.heard[index])
    assert set(rig.heard[index]) == {1}
    for number in (0, 2):
        slot = next(place for place, n in rig.numbers[index].items() if n == number)[0]
        front_end.set_row(slot, word=front_end.row_field(slot, "word") ^ 1 << 60 ^ READY << 60)
        front_end.submit(2, slot)
    rig.finish()


def test_records_committed_while_there_is_no_engine(rig, broker):
    """The front-end commits without an announcement while there is no engine: the slot table shows it, in order."""
    index = rig.attach()
    front_end = rig.front_ends[index]
    rig.engine.kill()
    for slot, value in ((5, b"first"), (2, b"second"), (9, b"third")):
        builder = RecordBatchBuilder(4096)
        builder.append(1, None, value)
        front_end.write_chunk(slot, builder.records(), 1, topic=rig.number, partition=0, base=1, highest=1)
    rig.engine.take_over()
    wait_until(lambda: len(broker.values(0)) == 3)
    assert broker.values(0) == [b"first", b"second", b"third"]


def test_a_batch_whose_release_was_published_is_not_queued_again(rig, broker):
    """The sender dies before it has given the slot back, and the front-end has not read the outcome."""
    index = rig.attach()
    front_end = rig.front_ends[index]
    for slot, value in ((0, b"once"), (16, b"next")):
        builder = RecordBatchBuilder(4096)
        builder.append(1, None, value)
        front_end.write_chunk(slot, builder.records(), 1, topic=rig.number, partition=0, base=1, highest=1)
        committed = front_end.row_field(slot, "word")
        front_end.submit(SUBMIT_FULL, slot)
        wait_until(lambda slot=slot: front_end.row_field(slot, "word") >> 60 == DONE)
        if slot == 0:
            rig.engine.kill()
            front_end.set_row(slot, word=committed)
            rig.engine.take_over()
    assert broker.values(0) == [b"once", b"next"]


def test_a_chain_that_was_being_filled(rig, broker):
    """The head is closed and continues in an open chunk: the whole chain lingers on."""
    index = rig.attach(linger_ms=100)
    front_end = rig.front_ends[index]
    builder = RecordBatchBuilder(4096)
    builder.append(1, None, b"a")
    size = len(builder.records())
    builder.append(1, None, b"b")
    row = {"topic": rig.number, "partition": 0, "base": 1, "highest": 1}
    front_end.write_chunk(0, builder.records()[:size], 1, **row, flags=HEAD | CONT, next_slot=4)
    front_end.write_chunk(4, builder.records()[size:], 1, **row, flags=0, state=OPEN)
    front_end.submit(1, 0)
    rig.engine.kill()
    rig.engine.take_over()
    found: list[tuple] = []
    wait_until(lambda: found.extend(front_end.outcomes()) or found)
    assert [outcome[:4] for outcome in found] == [(0, 0, 2, 0)]
    assert broker.values(0) == [b"a", b"b"]


def test_acks_one_is_sent_again_and_acks_zero_is_not(broker, nursery):
    """Unanswered batches: acks=1 may be there twice, acks=0 once at most; each gets one outcome."""
    with TakeoverRig(broker, nursery) as rig:
        one = rig.attach(acks=1, enable_idempotence=False)
        zero = rig.attach(acks=0, enable_idempotence=False)
        for index in (one, zero):
            rig.send(index, 0)
        rig.settle()
        broker.faults.append(Fault(hang="appended", node=1))
        before = broker.produce_requests
        for number in range(4):
            rig.send(one, number % 3)
            rig.send(zero, number % 3)
        rig.stop_after(before + 1)
        rig.engine.take_over()
        rig.settle()
        assert broker.complaints == []
        assert set(rig.errors(one)) == {0}
        assert set(rig.errors(zero)) <= {0, errors.OUTCOME_UNKNOWN}
        for partition in range(3):
            sent = [value for where, values in rig.sent[one] if where == partition for value in values]
            assert set(sent) <= set(broker.values(partition))
            mine = [value for value in broker.values(partition) if value.startswith(b"%d/" % zero)]
            assert len(mine) == len(set(mine))


def test_without_retries_an_unsure_batch_is_unknown(rig, broker):
    """retries=0: with idempotence the successor asks once more, without it does not send twice."""
    idempotent = rig.attach(retries=0)
    plain = rig.attach(retries=0, acks=1, enable_idempotence=False)
    rig.deliver(idempotent, 0)
    with broker.lock:
        broker.faults.extend([Fault(hang="appended", node=1), Fault(hang="appended", node=2)])
    before = broker.produce_requests
    rig.send(idempotent, 0)
    rig.send(plain, 1)
    rig.stop_after(before + 2)
    rig.engine.take_over()
    rig.finish()
    assert rig.errors(idempotent) == [0, 0]
    assert rig.errors(plain) == [errors.OUTCOME_UNKNOWN]


def test_an_isolation_lane_fences_what_its_predecessor_has_sent(rig, broker):
    """Its producer id is new after a takeover. First the old one gets an epoch that refuses a late attempt."""
    isolated, _ = rig.attach(delivery_timeout_ms=2000), rig.attach()
    rig.send(isolated, 0, poison=True)
    rig.settle()
    rig.send(isolated, 0)
    rig.settle()
    with broker.lock:
        broker.faults.extend([Fault(hang="lost")] * 50)
    before = broker.produce_requests
    rig.send(isolated, 0)
    rig.stop_after(before + 1)
    rig.engine.take_over()
    wait_until(lambda: rig.listen() or len(rig.heard[isolated]) == 3, 30, "the end of the delivery timeout")
    broker.clear_faults()
    for _ in range(2):
        rig.send(isolated, 0)
        rig.settle()
    assert rig.errors(isolated) == [INVALID_RECORD, 0, errors.OUTCOME_UNKNOWN, 0, 0]
    _, before_kill, fence, after = broker.partitions[0].batches
    assert (before_kill.producer_id, before_kill.epoch) == (fence.producer_id, fence.epoch - 1)
    assert after.producer_id != fence.producer_id


def test_a_delivery_timeout_goes_on_over_takeovers(rig, broker):
    """Each engine lives for less than the timeout; the batch still expires."""
    index = rig.attach(delivery_timeout_ms=1000)
    broker.without_leader = 100_000
    broker.faults.extend([Fault(code=NOT_LEADER_OR_FOLLOWER)] * 1000)
    rig.send(index, 0)
    for _ in range(40):
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            rig.listen()
            time.sleep(0.01)
        if rig.heard[index]:
            break
        rig.replace()
    assert rig.errors(index)[0] in (errors.DELIVERY_TIMEOUT, errors.OUTCOME_UNKNOWN)
    with broker.lock:
        broker.without_leader = 0
        broker.faults.clear()
    rig.send(index, 1)
    rig.finish()


def test_a_batch_that_was_reported_is_released_once_and_not_reported_again(rig, broker):
    """It expired while its answer was outstanding: RESULT came from the first engine, RELEASE from the third."""
    long_timeout = rig.attach(linger_ms=5)
    short_timeout = rig.attach(delivery_timeout_ms=300, linger_ms=5)
    for index in (long_timeout, short_timeout):
        rig.send(index, 0)
    rig.settle()
    with broker.lock:
        broker.faults.extend([Fault(hang="appended"), *[Fault(hang="lost")] * 50])
    rig.send(long_timeout, 0, seal=False)
    rig.send(short_timeout, 0, seal=False)
    wait_until(lambda: rig.listen() or rig.heard[short_timeout].get(1))
    assert rig.heard[short_timeout][1] == (-1, errors.OUTCOME_UNKNOWN)
    for _ in range(2):
        rig.replace()
    assert 1 not in rig.released[short_timeout]
    broker.clear_faults()
    rig.replace()
    rig.finish()
    assert rig.errors(long_timeout) == [0, 0]


def test_a_gap_is_remembered(rig, broker):
    """A batch that was given up may be in the log: the next batch, which looks like it, must not get its sequence."""
    index = rig.attach(delivery_timeout_ms=1000)
    rig.deliver(index, 0)
    with broker.lock:
        broker.faults.extend([Fault(hang="appended"), *[Fault(hang="lost")] * 20])
    rig.send(index, 0)
    wait_until(lambda: rig.listen() or 1 in rig.released[index])
    assert rig.errors(index)[1] == errors.OUTCOME_UNKNOWN
    broker.clear_faults()
    rig.replace()
    rig.send(index, 0)
    rig.finish()
    assert rig.heard[index][2] == (4, 0)


def test_a_bad_record_in_a_merged_batch(rig, broker):
    """The engine is killed while the broker's refusal is in flight, and again while the rest is."""
    indexes = attach(rig, 4, linger_ms=5)
    for delay in (0.05, 0.0):
        with broker.lock:
            broker.faults.extend([Fault(delay=delay), Fault(hang="appended")])
        before = broker.produce_requests
        for index in indexes:
            rig.send(index, 0, seal=False, poison=index == 2)
        rig.stop_after(before + 1 + (delay == 0))
        rig.engine.take_over()
    rig.finish()
    for index in indexes:
        allowed = {0, INVALID_RECORD, errors.OUTCOME_UNKNOWN} if index == 2 else {0}
        assert set(rig.errors(index)) <= allowed


def test_a_merged_batch_that_is_too_large(rig, broker):
    """The engine is killed while the refusal is in flight: the fragments are appended, though an attempt was unsure."""
    indexes = attach(rig, 4, linger_ms=200)
    before = broker.produce_requests
    with broker.lock:
        broker.largest = 600
        broker.faults.append(Fault(delay=0.1))
    for index in indexes:
        rig.send(index, 0, size=100, seal=False)
    rig.stop_after(before + 1)
    rig.engine.take_over()
    rig.finish()
    assert broker.refused == 2
    assert {error for index in indexes for error in rig.errors(index)} == {0}


# ---------------------------------------------------------------- front-ends


def test_a_front_end_that_ended_before_the_takeover_is_delivered(rig, broker):
    """One was detached by the first engine, one ended while there was no engine; another front-end goes on."""
    detached, unnoticed, living = attach(rig, 3, linger_ms=2)
    with broker.lock:
        broker.faults.extend([Fault(hang="appended")] + [Fault(hang="lost")] * 5)
    before = broker.produce_requests
    for index in (detached, unnoticed, living):
        for number in range(6):
            rig.send(index, number % 3, seal=number % 2 == 0)
    rig.stop_after(before + 1)
    rig.engine.take_over()
    rig.ended.add(detached)
    rig.engine.detach(rig.front_ends[detached].attach_id)
    rig.send(unnoticed, 0)
    rig.engine.kill()
    rig.end(unnoticed)
    broker.clear_faults()
    rig.engine.take_over()
    rig.finish()
    look = rig.engine.look()
    assert look["attached"] == 1
    assert look["held"] == [rig.front_ends[living].attach_id]
    found = rig.front_ends[unnoticed].row_field(1, "word")
    assert found >> 60 == REVOKED, "a slot of an ended front-end is revoked, beside one that was used"


@pytest.mark.skipif(not is_debug(), reason="only a debug build has crash points")
def test_an_ended_front_end_is_told_before_its_slots_are_looked_at(broker, tmp_path):
    """Its process may live, and use a slot in a page that the scan has passed. The first engine has not told it."""
    trigger = Trigger(tmp_path)
    nursery = Nursery(trigger.environment)
    with contextlib.closing(trigger), contextlib.closing(nursery), TakeoverRig(broker, nursery) as rig:
        (index,) = attach(rig, 1)
        rig.engine.kill()
        rig.end(index)
        trigger.arm("reclaim.scanned", "sender", signal.SIGKILL)
        with pytest.raises(EngineEndedError):
            rig.engine.take_over()
        trigger.disarm()
        memory = rig.front_ends[index].outcomes_region.memory()
        assert layout.read(memory, "cyp_outcomes_header", 0, "control") == DETACHED
        rig.engine.wait()
        rig.engine.take_over()
        rig.finish()


def test_ended_front_end_without_batches_is_let_go(rig):
    first, second = attach(rig, 2)
    rig.end(first)
    rig.replace()
    rig.deliver(second, 0)
    assert rig.engine.look()["held"] == [rig.front_ends[second].attach_id]


def test_front_end_that_cannot_be_taken_over_costs_others_no_record(rig, broker):
    """Its arena has changed; merged batches that it shares go out, its own batches are counted as failures."""
    lost, *others = attach(rig, 3, linger_ms=200)
    with broker.lock:
        broker.faults.extend([Fault(hang="lost")] * 2)
    before = broker.produce_requests
    for index in (lost, *others):
        rig.send(index, 0, seal=False)  # merged
    rig.send(lost, 1, records=30, size=1200)  # too large to be merged
    rig.stop_after(before + 2)
    rig.ended.add(lost)
    rig.engine.spoil(rig.front_ends[lost].attach_id, slot_count=16)
    broker.clear_faults()
    rig.engine.take_over()
    assert rig.engine.refused == [rig.front_ends[lost].attach_id]
    for index in others:
        rig.send(index, 1)
    rig.settle()
    assert broker.complaints == []
    for index in others:
        assert set(rig.errors(index)) == {0}
    assert len(broker.values(1)) == len(set(broker.values(1)))


def test_front_ends_attach_and_ask_for_topics_after_a_takeover(rig, broker):
    (index,) = attach(rig, 1)
    number = rig.number
    rig.replace()
    newcomer = rig.attach()
    rig.number = -1
    assert rig.front_ends[newcomer].attach_id > rig.front_ends[index].attach_id
    assert rig.front_ends[newcomer].snapshot.read()[3][broker.topic][0] == number
    rig.number = number
    for _ in range(3):
        rig.send(index, 0)
        rig.send(newcomer, 0)
    rig.finish()


def test_a_topic_that_was_asked_for_and_not_found_before_the_takeover(broker, nursery):
    """The front-end that asked sleeps until a snapshot has the topic, and does not ask again."""
    with broker.lock:
        broker.nonsense = True
    with TakeoverRig(broker, nursery) as rig:
        front_end = PlainFrontEnd(rig.engine, slots=256)
        rig.front_ends.append(front_end)
        rig.engine.want_topic(front_end.attach_id, broker.topic)
        rig.engine.run(0)
        rig.engine.kill()
        with broker.lock:
            broker.nonsense = False
        rig.engine.take_over()
        run_until(rig.engine, lambda: broker.topic in front_end.snapshot.read()[3])


def test_the_snapshot_stays_published_while_no_broker_can_be_reached(broker, nursery):
    """Front-ends continue with the topics that they know, and with the same numbers."""
    with TakeoverRig(broker, nursery) as rig:
        rig.attach()
        version, brokers, _, topics = rig.front_ends[0].snapshot.read()
        with broker.lock:
            broker.nonsense = True
        broker.drop_connections()
        rig.replace()
        rig.send(0, 0)
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            found = rig.front_ends[0].snapshot.read()
            assert found[1] == brokers
            assert found[3] == topics
        assert found[0] >= version
        with broker.lock:
            broker.nonsense = False
        rig.finish()


def test_front_end_that_slept_when_the_sender_died_is_woken(rig, broker):
    """The outcome was published and the wake-up never written: the successor writes it."""
    (index,) = attach(rig, 1)
    front_end = rig.front_ends[index]
    rig.engine.kill()
    front_end.set_header(sleeping=7)  # odd: it sleeps, and has not been signalled for this epoch
    rig.engine.take_over()
    readable, _, _ = select.select([front_end.wake_fd], [], [], 10)
    assert readable


def test_liveness_tick_rises_while_something_is_pending(rig, broker):
    """The tick rises while something is pending, although nothing happens; an idle engine reports that it is idle."""
    (index,) = attach(rig, 1)
    broker.faults.extend([Fault(hang="lost")] * 40)
    rig.send(index, 0)
    wait_until(rig.engine.undelivered)
    first, _, _ = read_liveness(rig.engine.state_fd)
    wait_until(lambda: read_liveness(rig.engine.state_fd)[0] > first)
    _, pending, _ = read_liveness(rig.engine.state_fd)
    assert pending
    broker.clear_faults()
    rig.settle()
    wait_until(lambda: read_liveness(rig.engine.state_fd)[1:] == (0, 0))


# ---------------------------------------------------------------- a real broker


def test_killed_at_random_on_a_real_broker(kafka, new_topic, nursery):
    """Twelve kills: a foreign client finds every record once, in order, where its outcome says.

    The log is one series of sequences of one producer: no epoch had to begin.
    """
    partitions, chance = 4, random.Random(7)
    topic = new_topic(partitions)
    cluster = SimpleNamespace(bootstrap_servers=kafka.bootstrap_servers, topic=topic)
    with TakeoverRig(cluster, nursery, request_timeout_ms=3000) as rig:
        for _ in range(4):
            rig.attach(linger_ms=chance.choice([0, 2]))
        for _ in range(12):
            for _ in range(chance.randint(5, 40)):
                for index in range(4):
                    rig.send(
                        index,
                        chance.randrange(partitions),
                        records=chance.randint(1, 4),
                        seal=chance.random() < 0.5,
                        size=chance.choice([0, 0, 9000]),
                    )
                rig.listen()
                time.sleep(chance.choice([0, 0.001]))
            rig.replace()
        rig.settle(60)
    assert {error for index in range(4) for error in rig.errors(index)} == {0}
    total = sum(len(values) for sent in rig.sent for _, values in sent)
    found: dict[tuple[int, int], list[bytes]] = {}
    offsets: dict[bytes, int] = {}
    log = read_topic(kafka.bootstrap_servers, topic, total)
    for partition, offset, value in zip(log.partition, log.offset, log.value, strict=True):
        found.setdefault((int(value.split(b"/")[0]), partition), []).append(value)
        offsets[value] = offset
    for index, sent in enumerate(rig.sent):
        for partition in range(partitions):
            expected = [value for where, values in sent if where == partition for value in values]
            assert found.get((index, partition), []) == expected
        for number, (_, values) in enumerate(sent):
            assert offsets[values[0]] == rig.heard[index][number][0]
    for partition in range(partitions):
        batches = kafka.dump_log(topic, partition)
        assert all(batch.crc_valid for batch in batches)
        assert [batch.base_sequence for batch in batches] == [batch.base_offset for batch in batches]
        assert len({(batch.producer_id, batch.epoch) for batch in batches}) == 1
