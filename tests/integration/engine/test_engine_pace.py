"""Tests who is served when there is more than a request takes, and of what a sender does while it has to wait."""

import collections
import gzip
import threading
import time

import pytest
from kfake.scripted_broker import Fault, ScriptedBroker
from probe.native import RecordBatchBuilder
from support import layout
from support.fault_rig import NOW, Rig
from support.front_end import OPEN, SUBMIT_FULL, SUBMIT_OPEN, UNIT

from cyproducer.codes import INVALID_RECORD, LEADER_NOT_AVAILABLE
from cyproducer.sender.engine import native

NO_SLOT = 0xFFFFFFFF


@pytest.fixture
def slow(monkeypatch):
    """Return settings of a front-end whose batches take 10 ms each to compress and do not get smaller."""

    def compress(data):
        time.sleep(0.01)
        return bytes(data)

    monkeypatch.setattr(native, "compressor", lambda codec, level: compress)
    return {"compression_type": "zstd", "compression_level": 22}


def test_small_requests_serve_all_partitions_round_robin():
    with ScriptedBroker(partitions=20, nodes=1) as broker, Rig(broker, max_request_size=20_000) as rig:
        rig.attach(slots=1024)
        for number in range(20 * 20):
            rig.send(0, number % 20, records=1, size=3_500)
        rig.finish()
        counts = collections.Counter(dict.fromkeys(range(20), 0))
        for slot in rig.heard[0]:  # in the order of the outcomes
            counts[slot % 20] += 1
            if max(counts.values()) == 10:
                break
        assert min(counts.values()) >= 5, counts


def test_requests_to_a_throttling_broker_do_not_time_out():
    """It answers at once, but reads the following request when the throttle time, longer than a timeout, is over."""
    with ScriptedBroker(nodes=1) as broker, Rig(broker, request_timeout_ms=1000) as rig:
        rig.attach()
        for partition in range(2):
            rig.send(0, partition)
        rig.settle()
        before = broker.accepted
        broker.faults.extend([Fault(throttle_ms=1500), Fault(delay=1.5)])
        with broker.lock:  # the second one is in flight before the first one is answered
            for partition in range(2):
                rig.send_now(0, partition)
        rig.finish()
        assert not broker.faults, "they went in one request"
        assert rig.engine._loop.totals()["retries"] == 0
        assert broker.accepted == before


def test_an_answer_that_came_while_the_sender_was_stopped_counts():
    """As in Kafka's producer, which reads before it looks for expired requests."""
    with ScriptedBroker(nodes=1) as broker, Rig(broker, request_timeout_ms=1000) as rig:
        rig.begin()
        before = broker.accepted
        broker.faults.append(Fault(delay=0.3))  # it comes after the last iteration
        rig.send_now(0, 0)
        time.sleep(1.2)
        rig.finish()
        assert rig.engine._loop.totals()["retries"] == 0
        assert broker.accepted == before


def test_sender_asks_for_no_wake_up_while_brokers_take_no_more():
    with ScriptedBroker(partitions=8, nodes=1) as broker, Rig(broker, request_timeout_ms=20_000) as rig:
        rig.attach()
        for partition in range(8):
            rig.send(0, partition)
        rig.settle()
        broker.faults.append(Fault(delay=0.5))
        for partition in range(5):  # as many as may be in flight
            rig.send(0, partition)
            rig.engine.run(1)
        wanted = set()

        def watch(memory):
            for _ in range(50):
                wanted.add(layout.read(memory, "cyp_snapshot_header", 0, "next_wake_ns"))
                time.sleep(0.005)

        with rig.front_ends[0].snapshot.region.memory() as memory:
            watching = threading.Thread(target=watch, args=[memory])
            watching.start()
            rig.settle()
            watching.join()
        rig.check()
        assert 0 in wanted


def test_records_without_a_key_leave_a_broker_that_does_not_answer():
    """By the metadata the broker still leads every other partition, and what was sent to it stays there."""
    with ScriptedBroker(partitions=8, nodes=2) as broker, Rig(broker, request_timeout_ms=20_000) as rig:
        rig.attach(slots=2048, linger_ms=0)
        broker.faults.append(Fault(hang="lost", node=2))
        went = []
        ending = time.monotonic() + 3
        with rig.front_ends[0].snapshot.region.memory() as memory:
            while time.monotonic() < ending:
                partition = layout.sticky(memory, rig.number)
                went.append(partition)
                rig.send(0, partition, records=1, size=3_000)
                rig.engine.run(4)
                rig.listen()
        assert not broker.faults, "the broker was never sent to"
        hung = {partition for slot, partition in enumerate(went) if slot not in rig.heard[0]} - {went[-1]}
        assert {partition % 2 for partition in hung} == {1}, "the one that hangs leads the others"
        assert {partition % 2 for partition in went[-50:]} == {0}
        assert len(set(went)) >= 4
        broker.drop_connections()
        rig.finish()


def test_records_without_a_key_leave_a_broker_that_throttles_for_long():
    with ScriptedBroker(partitions=8, nodes=2) as broker, Rig(broker) as rig:
        rig.attach(slots=2048, linger_ms=0)
        broker.faults.append(Fault(throttle_ms=5_000, node=2))
        with rig.front_ends[0].snapshot.region.memory() as memory:
            ending = time.monotonic() + 20
            while broker.faults and time.monotonic() < ending:
                rig.send(0, layout.sticky(memory, rig.number), records=1, size=3_000)
                rig.engine.run(4)
            assert not broker.faults, "the broker was never sent to"
            went = []
            ending = time.monotonic() + 1.5
            while time.monotonic() < ending:
                went.append(layout.sticky(memory, rig.number))
                rig.send(0, went[-1], records=1, size=100)
                rig.engine.run(4)
        assert {partition % 2 for partition in went[-20:]} == {0}, "the throttled one leads the others"
        rig.finish()


def test_records_without_a_key_avoid_partitions_without_a_leader():
    """The only broker that leads partitions does not answer for a while: no other partition is better than its own."""

    def falsify(answer):
        for topic in answer["topics"]:
            for partition in topic["partitions"][1:]:
                partition["leader_id"], partition["error_code"] = -1, LEADER_NOT_AVAILABLE

    with ScriptedBroker(partitions=20, nodes=1) as broker:
        broker.lies = falsify
        with Rig(broker, request_timeout_ms=20_000) as rig:
            rig.begin()
            broker.faults.append(Fault(delay=2.5))
            rig.send(0, 0)
            rig.finish()
            assert not broker.faults
            with rig.front_ends[0].snapshot.region.memory() as memory:
                assert layout.sticky(memory, rig.number) == 0


def test_lingering_batch_is_left_to_fill_without_time_to_compress_it(slow):
    with ScriptedBroker(partitions=20, nodes=1) as broker, Rig(broker) as rig:
        rig.attach(linger_ms=0, **slow)
        rig.begin(linger_ms=20_000, **slow)
        for partition in range(1, 20):
            rig.send(1, partition, size=100, seal=False)
        rig.send(0, 0, size=100)
        rig.engine.run(0)
        lingering = rig.front_ends[1]
        words = [lingering.row_field(slot, "word") for slot in range(19)]
        assert {word >> 60 for word in words} == {OPEN}


def test_lingering_batches_do_not_delay_due_ones_when_compressing_is_slow(slow):
    """Some partitions have a new lingering batch whenever the previous one has gone."""
    with ScriptedBroker(partitions=8, nodes=1) as broker, Rig(broker) as rig:
        rig.attach(linger_ms=0, **slow)
        rig.attach(slots=1024, linger_ms=500, **slow)
        rig.send(0, 0)
        rig.deliver(0, 1)
        rig.send(0, 1, size=100)
        rig.send(0, 0, size=100)
        latest = {}
        while len(rig.heard[0]) < 4 and len(rig.sent[1]) < 100:
            for partition in range(2, 8):
                if partition not in latest or latest[partition] in rig.heard[1]:
                    latest[partition] = len(rig.sent[1])
                    rig.send(1, partition, size=100, seal=False)
            rig.engine.run(0)
            rig.listen()
        assert len(rig.heard[0]) == 4, "lingering batches went before it, one after the other"
        rig.finish()


def attach_all(rig, count):
    """Attach front-ends with memory for many batches; the last one sends a first batch to each of four partitions."""
    rig.attach_many(count, slots=512, linger_ms=0)
    for partition in range(4):
        rig.send(count - 1, partition)
    rig.settle()


@pytest.mark.parametrize("isolated", [False, True])
def test_postponed_batch_goes_before_those_of_other_front_ends_of_its_partition(isolated):
    """One large batch beside another front-end's many small ones, and three more partitions that are as busy."""
    settings = {"max_request_size": 6_000, "max_in_flight_requests_per_connection": 1}
    with ScriptedBroker(partitions=4, nodes=1) as broker, Rig(broker, **settings) as rig:
        attach_all(rig, 3)
        if isolated:  # later batches go through the isolation lane
            rig.deliver(0, 0, poison=True)
        for number in range(3 * 40):
            rig.send(2, 1 + number % 3, records=1, size=1_950)
        rig.send(1, 0, records=1, size=900)
        rig.send(0, 0, records=1, size=3_700)
        for _ in range(39):
            rig.send(1, 0, records=1, size=900)
        rig.finish()
        log = rig.broker.values(0)
        place = next(place for place, value in enumerate(log) if value.startswith(b"0/"))
        assert place < 8, place


def test_a_batch_that_an_epoch_waits_for_gets_space_in_a_request():
    """The batch is unsure; the one before it was refused. Three other partitions are busy."""
    settings = {"max_request_size": 6_000, "max_in_flight_requests_per_connection": 2}
    with ScriptedBroker(partitions=4, nodes=1) as broker, Rig(broker, **settings) as rig:
        attach_all(rig, 2)
        broker.faults.extend([Fault(code=INVALID_RECORD), Fault(close="before")])
        for _ in range(2):
            rig.send(0, 0, records=1, size=3_900)
            rig.engine.run(0)
        for number in range(3 * 100):
            rig.send(1, 1 + number % 3, records=1, size=1_950)
        while len(rig.heard[0]) < 2:
            rig.engine.run(0)
            rig.listen()
        assert rig.errors(0) == [INVALID_RECORD, 0]
        assert len(rig.heard[1]) < 4 + 150
        rig.finish()


def test_batches_compressed_by_their_owners_are_not_merged_without_time(monkeypatch):
    """Merged they would be compressed again, one after another in one iteration, since each has a compressed copy."""
    compressed = []

    def compress(data):
        compressed.append(len(data))
        time.sleep(0.01)
        return bytes(data)

    monkeypatch.setattr(native, "compressor", lambda codec, level: compress)
    with ScriptedBroker(partitions=20, nodes=1) as broker, Rig(broker) as rig:
        rig.attach_many(2, linger_ms=0, compression_type="gzip", compression_level=7)
        for partition in range(20):
            rig.send(0, partition, size=0, records=1)
        compressed.clear()
        while not compressed:  # an iteration that has lost its time before sends all with the copies of their owners
            rig.settle()
            compressed.clear()
            for partition in range(20):
                for index in range(2):
                    send_packed(rig, index, partition)
            rig.engine.run(0)
        assert len(compressed) == 1
        rig.finish()


def send_packed(rig, index, partition):
    """Write a batch with its records in gzip beside it, as an owner offers them (batch.h)."""
    front_end, slot = rig.front_ends[index], len(rig.sent[index])
    packed_slot = front_end.slot_count - 1 - slot
    values = [b"%d/%d/%d" % (index, slot, number) + b"x" * 200 for number in range(4)]
    builder = RecordBatchBuilder(65_536)
    for value in values:
        builder.append(NOW, None, value)
    records = builder.records()
    packed = gzip.compress(records)
    at = front_end.chunks_at + packed_slot * UNIT
    front_end.memory[at : at + len(packed)] = packed
    row = {"open_seq": front_end.open_seq + 1, "max_count": len(packed), "next": NO_SLOT, "chunk_bytes": len(records)}
    front_end.set_row(packed_slot, **row)
    rig.sent[index].append((partition, values))
    front_end.write_chunk(
        slot,
        records,
        4,
        topic=rig.number,
        partition=partition,
        base=builder.base_timestamp,
        highest=builder.max_timestamp,
        next_slot=packed_slot,
    )
    front_end.submit(SUBMIT_OPEN, slot)
    front_end.submit(SUBMIT_FULL, slot)


def test_batch_without_compression_goes_before_others_of_its_partition(slow):
    with ScriptedBroker(partitions=20, nodes=1) as broker, Rig(broker) as rig:
        rig.attach(linger_ms=0, **slow)
        rig.attach_many(2, linger_ms=0)
        for partition in range(20):
            rig.send(0, partition, records=1)
        rig.settle()
        for partition in range(20):
            rig.send(0, partition, size=100)
        rig.engine.run(0)
        for index in (1, 2):
            rig.send(index, 19)
        while not (rig.heard[1] and rig.heard[2]):
            rig.engine.run(0)
            rig.listen()
        assert len(rig.heard[0]) < 20 + 10
        rig.finish()


def test_batch_that_needs_compression_is_not_starved_by_others_of_its_partition(slow):
    """Two other front-ends have a new batch there whenever one has gone; other partitions need compression too."""
    with ScriptedBroker(partitions=4, nodes=1) as broker, Rig(broker) as rig:
        rig.attach(linger_ms=0, **slow)
        rig.attach(slots=1024, linger_ms=0, **slow)
        rig.attach_many(2, slots=1024, linger_ms=0)
        for index in range(2):
            for partition in range(4):
                rig.send(index, partition, records=1)
        rig.settle()
        for number in range(3 * 50):
            rig.send(1, 1 + number % 3, size=100)
        for index in (2, 3):
            for _ in range(200):
                rig.send(index, 0, size=1_500)
        rig.send(0, 0, size=100)
        while len(rig.heard[0]) < 5:
            rig.engine.run(0)
            rig.listen()
        assert len(rig.heard[1]) < 4 + 30
        rig.finish(60)
