"""Tests the engine against a real Kafka with a front-end in plain Python: which records arrive, in which batches."""

import time

import pytest
from probe.native import RecordBatchBuilder
from support.consumer import read_topic
from support.engine_rig import EngineRig
from support.front_end import HEAD, OPEN, READY, SUBMIT_FULL, SUBMIT_OPEN, run_until, topic_number, word

from cyproducer import errors

NOW = int(time.time() * 1000)


@pytest.fixture
def rig(kafka):
    with EngineRig(kafka.bootstrap_servers, request_timeout_ms=2000, retry_backoff_ms=20) as rig:
        yield rig


def records(*values: bytes, key: bytes | None = None) -> list[tuple]:
    return [(NOW + index, key, value) for index, value in enumerate(values)]


def test_batches_of_one_front_end_arrive_in_order_with_contiguous_sequences(rig, kafka, topic):
    """Twenty batches of three records each: offsets are dense, sequences are 0, 3, 6, ..., every CRC is valid."""
    front_end = rig.attach()
    number = topic_number(rig.engine, front_end, topic)
    for slot in range(20):
        front_end.send(slot, records(b"a%d" % slot, b"b", b"c"), topic=number, partition=1)
    outcomes = rig.outcomes(front_end, 20)
    assert sorted(outcome[0] for outcome in outcomes) == list(range(20))
    assert {(outcome[5], outcome[6]) for outcome in outcomes} == {(0, 3)}
    by_slot = {outcome[0]: outcome[3] for outcome in outcomes}
    assert [by_slot[slot] for slot in range(20)] == list(range(0, 60, 3))
    batches = kafka.dump_log(topic, 1)
    assert all(batch.crc_valid for batch in batches)
    assert [batch.base_sequence for batch in batches] == [batch.base_offset for batch in batches]
    assert len({(batch.producer_id, batch.epoch) for batch in batches}) == 1


def test_small_batches_of_several_front_ends_become_one(rig, kafka, topic):
    """Eight front-ends with two records each for one partition: one wire batch, each gets its offsets, in order."""
    front_ends = [rig.attach(linger_ms=50) for _ in range(8)]
    number = topic_number(rig.engine, front_ends[0], topic)
    for index, front_end in enumerate(front_ends):
        front_end.send(
            0,
            records(b"%d-first" % index, b"%d-second" % index, key=b"k%d" % index),
            topic=number,
            partition=0,
            seal=False,
        )
    offsets = {}
    for index, front_end in enumerate(front_ends):
        [(slot, _, count, base, _, error, flags)] = rig.outcomes(front_end, 1)
        assert (slot, count, error, flags) == (0, 2, 0, 3)
        offsets[index] = base
    assert sorted(offsets.values()) == list(range(0, 16, 2))
    batches = kafka.dump_log(topic, 0, records=True)
    assert len(batches) == 1
    assert batches[0].count == 16
    assert batches[0].crc_valid
    values = [record.value for record in batches[0].records]
    for index, base in offsets.items():
        assert values[base : base + 2] == [f"{index}-first", f"{index}-second"]


def test_an_open_batch_is_sealed_by_the_sender_after_the_linger_time(rig, topic):
    front_end = rig.attach(linger_ms=30)
    number = topic_number(rig.engine, front_end, topic)
    front_end.send(16, records(b"lingers"), topic=number, partition=2, seal=False)
    [(slot, _, count, base, _, error, flags)] = rig.outcomes(front_end, 1)
    assert (slot, count, base, error, flags) == (16, 1, 0, 0, 3)
    assert front_end.sent_word(16) == 1


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_unannounced_full_batch_is_not_sent_with_a_small_request(rig, topic, codec):
    """A small request takes lingering batches with it, but not a full batch that its owner has not yet announced."""
    front_end = rig.attach(linger_ms=10_000, compression_type=codec)
    number = topic_number(rig.engine, front_end, topic)
    for slot, partition in ((0, 0), (16, 1)):  # the partition's first batch goes alone
        front_end.send(slot, records(b"first"), topic=number, partition=partition)
    rig.outcomes(front_end, 2)
    builder = RecordBatchBuilder(65_536)
    builder.append(NOW, None, b"being compressed")
    front_end.write_chunk(32, builder.records(), 1, topic=number, partition=0, base=NOW, highest=NOW, state=READY)
    front_end.submit(SUBMIT_OPEN, 32)
    front_end.send(48, records(b"complete"), topic=number, partition=1)
    if codec is None:
        assert sorted(outcome[0] for outcome in rig.outcomes(front_end, 2)) == [32, 48]
        return
    assert [outcome[0] for outcome in rig.outcomes(front_end, 1)] == [48]
    with pytest.raises(TimeoutError):
        rig.outcomes(front_end, 1, timeout=0.3)
    front_end.submit(SUBMIT_FULL, 32)
    assert [outcome[0] for outcome in rig.outcomes(front_end, 1)] == [32]


def test_acks_one_and_zero(rig, kafka, topic):
    """acks=0 gets no answer, so no offset. The topic accepts the records: otherwise they would be lost silently."""
    one, zero = rig.attach(acks=1, enable_idempotence=False), rig.attach(acks=0, enable_idempotence=False)
    number = topic_number(rig.engine, one, topic)
    one.send(0, records(b"a", b"b"), topic=number, partition=0)
    [(_, _, count, base, _, error, _)] = rig.outcomes(one, 1)
    assert (count, base, error) == (2, 0, 0)
    zero.send(0, records(b"c", b"d"), topic=number, partition=0)
    [(_, _, count, base, _, error, _)] = rig.outcomes(zero, 1)
    assert (count, base, error) == (2, -1, 0)
    assert read_topic(kafka.bootstrap_servers, topic, 4).value == [b"a", b"b", b"c", b"d"]
    assert {batch.producer_id for batch in kafka.dump_log(topic, 0)} == {-1}


def test_committed_but_unannounced_records_are_delivered_when_their_front_end_ends(rig, kafka, topic):
    """The front-end dies between the commit and the entry in the submission ring: the sender scans the slot table."""
    front_end = rig.attach()
    number = topic_number(rig.engine, front_end, topic)
    for slot, value in ((5, b"second"), (2, b"third")):
        builder = RecordBatchBuilder(4096)
        builder.append(NOW, None, value)
        front_end.write_chunk(slot, builder.records(), 1, topic=number, partition=0, base=NOW, highest=NOW, state=OPEN)
    front_end.open_seq = 0
    builder = RecordBatchBuilder(4096)
    builder.append(NOW, None, b"first")
    front_end.write_chunk(9, builder.records(), 1, topic=number, partition=0, base=NOW, highest=NOW)
    front_end.set_row(9, open_seq=0)
    rig.engine.detach(front_end.attach_id)
    run_until(rig.engine, lambda: rig.engine.undelivered() == 0)
    assert rig.engine.attached() == 0
    assert read_topic(kafka.bootstrap_servers, topic, 3).value == [b"first", b"second", b"third"]


@pytest.mark.breaks_protocol
@pytest.mark.parametrize(
    "spoil",
    [
        lambda f: f.submit(7, 0),
        lambda f: f.submit(SUBMIT_OPEN, f.slot_count),
        lambda f: f.set_header(submit_tail=2**63) or f.wake_sender(),
        lambda f: f.set_row(1, word=word(OPEN, 0, 5, 200_000, HEAD)) or f.submit(SUBMIT_FULL, 1),
    ],
    ids=["unknown hint", "slot out of range", "tail far ahead", "a word without its records"],
)
def test_a_front_end_that_breaks_the_protocol_is_detached_alone(rig, topic, spoil):
    correct, hostile = rig.attach(), rig.attach()
    number = topic_number(rig.engine, correct, topic)
    spoil(hostile)
    correct.send(0, records(b"honest"), topic=number, partition=0)
    [(_, _, _, base, _, error, _)] = rig.outcomes(correct, 1)
    assert (base, error) == (0, 0)
    run_until(rig.engine, lambda: rig.engine.attached() == 1)
    assert rig.engine.take_violators() == [hostile.attach_id]


def test_an_unknown_partition_fails_by_name(rig, topic):
    front_end = rig.attach()
    number = topic_number(rig.engine, front_end, topic)
    front_end.send(0, records(b"x"), topic=number, partition=3)
    front_end.send(1, records(b"x"), topic=number + 1, partition=0)
    codes = {outcome[5] for outcome in rig.outcomes(front_end, 2)}
    assert codes == {errors.UNKNOWN_PARTITION}


def test_a_definite_error_fails_its_batch_and_the_next_go_on_in_a_higher_epoch(rig, kafka, new_topic):
    """The topic refuses a timestamp while later batches of the partition are in flight."""
    name = new_topic(1, configs={"message.timestamp.before.max.ms": "3600000"})
    front_end = rig.attach()
    number = topic_number(rig.engine, front_end, name)
    front_end.send(0, records(b"good"), topic=number, partition=0)
    rig.outcomes(front_end, 1)
    front_end.send(1, [(NOW - 86_400_000, None, b"too old")], topic=number, partition=0)
    for slot in range(2, 6):
        front_end.send(slot, records(b"after %d" % slot), topic=number, partition=0)
    outcomes = {outcome[0]: outcome for outcome in rig.outcomes(front_end, 5)}
    assert outcomes[1][5] == 32  # INVALID_TIMESTAMP
    assert [outcomes[slot][5] for slot in range(2, 6)] == [0] * 4
    assert [outcomes[slot][3] for slot in range(2, 6)] == [1, 2, 3, 4]
    expected = [b"good", *(b"after %d" % slot for slot in range(2, 6))]
    assert read_topic(kafka.bootstrap_servers, name, 5).value == expected
    epochs = [batch.epoch for batch in kafka.dump_log(name, 0)]
    assert epochs == sorted(epochs)
    assert epochs[-1] > epochs[0]


def test_poison_in_a_merged_batch_fails_for_its_front_end_alone(rig, kafka, new_topic):
    name = new_topic(1, configs={"message.timestamp.before.max.ms": "3600000"})
    front_ends = [rig.attach(linger_ms=50) for _ in range(3)]
    number = topic_number(rig.engine, front_ends[0], name)
    for index, front_end in enumerate(front_ends):
        stamp = NOW - 86_400_000 if index == 1 else NOW
        front_end.send(0, [(stamp, None, b"from %d" % index)], topic=number, partition=0, seal=False)
    codes = [rig.outcomes(front_end, 1)[0][5] for front_end in front_ends]
    assert codes == [0, 32, 0]
    assert sorted(read_topic(kafka.bootstrap_servers, name, 2).value) == [b"from 0", b"from 2"]


def test_a_broker_that_restarts_costs_nothing_but_time(rig, kafka, topic):
    """Batches are submitted while the broker is away: all arrive once and in order."""
    front_end = rig.attach(delivery_timeout_ms=240_000)
    number = topic_number(rig.engine, front_end, topic)
    total = 60
    for slot in range(total):
        front_end.send(slot, records(b"%03d" % slot), topic=number, partition=0)
        if slot == 20:
            kafka.kill()
        if slot == 40:
            kafka.restart(wait=False)
        rig.engine.run(5)
    outcomes = rig.outcomes(front_end, total, timeout=200)
    assert {outcome[5] for outcome in outcomes} == {0}
    assert read_topic(kafka.bootstrap_servers, topic, total).value == [b"%03d" % slot for slot in range(total)]
    assert sum(batch.count for batch in kafka.dump_log(topic, 0)) == total


def test_delivery_timeout_while_the_broker_hangs(rig, kafka, topic):
    """At the deadline a batch in flight is unknown and keeps its chunks. An unsent one times out and is released."""
    front_end = rig.attach(delivery_timeout_ms=600)
    number = topic_number(rig.engine, front_end, topic)
    front_end.send(0, records(b"first"), topic=number, partition=0)
    rig.outcomes(front_end, 1)
    kafka.pause()
    for slot in range(1, 8):
        front_end.send(slot, records(b"%d" % slot), topic=number, partition=0)
    outcomes = rig.outcomes(front_end, 7)
    codes = {outcome[0]: (outcome[5], outcome[6]) for outcome in outcomes}
    assert codes[1] == (errors.OUTCOME_UNKNOWN, 1)
    assert codes[7] == (errors.DELIVERY_TIMEOUT, 3)
    kafka.resume()
    unknown = [slot for slot, code in codes.items() if code[1] == 1]
    released = rig.outcomes(front_end, len(unknown), timeout=20)
    assert sorted(outcome[0] for outcome in released) == sorted(unknown)
    assert {outcome[6] for outcome in released} == {2}
    front_end.send(20, records(b"after"), topic=number, partition=0)
    assert rig.outcomes(front_end, 1)[0][5] == 0


def test_a_backlog_of_one_front_end_does_not_delay_anothers_record(rig, topic):
    """Fairness inside a partition: with 40 full batches of one front-end queued, another's is among the first sent."""
    greedy, modest = rig.attach(slots=1024), rig.attach()
    number = topic_number(rig.engine, greedy, topic)
    payload = records(*[b"x" * 900] * 60)
    for slot in range(40):
        greedy.send(slot * 16, payload, topic=number, partition=0)
    modest.send(0, records(b"small"), topic=number, partition=0)
    offset = rig.outcomes(modest, 1)[0][3]
    rig.outcomes(greedy, 40)
    assert offset <= 5 * 60


def test_a_chain_of_chunks_is_one_batch(rig, kafka, topic):
    """The head has CONT and the tail is open: offset deltas continue along the chain, the sender seals the tail."""
    front_end = rig.attach(linger_ms=30)
    number = topic_number(rig.engine, front_end, topic)
    builder = RecordBatchBuilder(65_536)
    parts = []
    for part in range(3):
        before = len(builder.records())
        for index in range(3):
            builder.append(NOW, None, b"%d-%d" % (part, index))
        parts.append(builder.records()[before:])
    for part, (slot, following) in enumerate(((0, 4), (4, 16), (16, 0xFFFFFFFF))):
        front_end.write_chunk(
            slot,
            parts[part],
            3,
            topic=number,
            partition=0,
            base=NOW,
            highest=NOW,
            next_slot=following,
            state=OPEN if part == 2 else READY,
            flags=(1 << 59 if part == 0 else 0) | (1 << 58 if part < 2 else 0),
        )
    front_end.submit(SUBMIT_OPEN, 0)
    [(slot, _, count, base, _, error, _)] = rig.outcomes(front_end, 1)
    assert (slot, count, base, error) == (0, 9, 0, 0)
    assert len(kafka.dump_log(topic, 0)) == 1
    expected = [b"%d-%d" % (part, index) for part in range(3) for index in range(3)]
    assert read_topic(kafka.bootstrap_servers, topic, 9).value == expected
