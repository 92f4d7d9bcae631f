"""Tests counters at their limits: ring positions, sequences, generations, the epochs of a waiter.

No test runs long enough to count so far: it ends an engine, moves the counters, and another engine takes over.
"""

import mmap
import os
import select

import pytest
from kfake.scripted_broker import Fault
from probe.native import RecordBatchBuilder
from support import layout
from support.fault_rig import NOW, next_outcomes
from support.front_end import CONT, FREE, HEAD, READY, RELEASE, RESULT, SUBMIT_FULL, word
from support.successor import succeed

SEQUENCES = 1 << 31
GENERATIONS = 1 << 24


@pytest.mark.parametrize("end", [1 << 31, 1 << 32, 1 << 63, 1 << 64])
def test_ring_positions_at_their_ends(rig, broker, end):
    """Both rings begin a few entries before the wrap; their indexes and contents stay valid."""
    front_end = rig.front_ends[rig.attach()]
    rig.deliver(0, 0)
    start = end - 5

    def move(state: int, outcomes: list[int]) -> None:
        front_end.tail = front_end.outcome_head = start
        front_end.set_header(submit_tail=start)
        layout.write_to(outcomes[0], "cyp_outcomes_header", 0, outcome_tail=start)

    succeed(rig, move)
    for number in range(12):
        rig.deliver(0, number % 3)
    rig.check()
    assert front_end.tail == (start + 24) % (1 << 64)
    assert front_end.outcome_head == (start + 12) % (1 << 64)


@pytest.mark.parametrize("end", [SEQUENCES, 2 * SEQUENCES, 1 << 40])
def test_sequences_wrap_on_the_wire(rig, broker, end):
    """Logical sequences do not wrap; one batch lies across the wrap, and one that is sent again does too."""
    rig.begin()
    start = end - 7

    def move(state: int, outcomes: list[int]) -> None:
        row, identity = "cyp_partition_row", "cyp_identity"
        with mmap.mmap(state, 0) as memory:
            header = layout.read_all(memory, "cyp_state_header", 0)
            rows = [header["partitions_offset"] + n * layout.size(row) for n in range(header["partition_count"])]
            places = [at + layout.offset(row, "identity") + n * layout.size(identity) for at in rows for n in (0, 1)]
            (at,) = (
                at
                for at in places
                if layout.read(memory, identity, at, "producer_id") == producer
                and layout.read(memory, identity, at, "acked_end") == 2
            )
            layout.write(memory, identity, at, acked_end=start)

    ((producer, known),) = broker.partitions[0].producers.items()
    succeed(rig, move)
    known.last = (start - 1) % SEQUENCES
    known.recent.clear()
    for number in range(12):
        if number in (2, 3):
            broker.faults.append(Fault(close="after"))
        rig.deliver(0, 0, records=3)
    rig.check()
    sequences = [batch.first for batch in broker.partitions[0].batches[1:]]
    assert sequences == [(start + 3 * number) % SEQUENCES for number in range(12)]
    assert any(sequence + 3 > SEQUENCES for sequence in sequences)


def test_generations_wrap(rig, broker):
    """The SENT word and the outcome of the last generation are valid; the next generation is 0."""
    front_end = rig.front_ends[rig.attach()]
    values = []
    for generation in (GENERATIONS - 2, GENERATIONS - 1, 0, 1):
        front_end.set_row(0, word=word(FREE, generation, 0, 0))
        values.append(b"%d" % generation)
        front_end.send(0, [(NOW, None, values[-1])], topic=rig.number, partition=0, generation=generation)
        ((slot, of, count, offset, _, error, flags),) = next_outcomes(rig.engine, front_end)
        assert (slot, of, count, offset, error, flags) == (0, generation, 1, len(values) - 1, 0, RESULT | RELEASE)
        assert front_end.sent_word(0) == generation + 1
    assert broker.values(0) == values
    assert broker.complaints == []


def test_hint_of_another_generation_admits_nothing(rig, broker):
    front_end = rig.front_ends[rig.attach()]
    for generation in (GENERATIONS - 1, 1, 7):
        front_end.submit(SUBMIT_FULL, 0, generation)
    rig.send(0, 0)
    rig.finish()


def test_numbers_of_a_sleeper_wrap(rig, broker):
    """A waiter is woken once for each odd epoch that it publishes, also for the one after the wrap."""
    front_end = rig.front_ends[rig.attach()]
    for number in (0xFFFFFFFD, 0xFFFFFFFF, 1, 3):
        front_end.set_header(sleeping=number)
        rig.deliver(0, 0)
        assert select.select([front_end.wake_fd], [], [], 5)[0], number
        assert os.read(front_end.wake_fd, 8) == b"\1"
        with pytest.raises(BlockingIOError):
            os.read(front_end.wake_fd, 8)
    rig.check()


@pytest.mark.breaks_protocol
@pytest.mark.parametrize("chunks", [1, 2, 63, 64, 65, 200])
def test_record_that_fills_a_chain_is_looked_at_across_its_chunks(rig, broker, chunks):
    """Lengths are read correctly wherever the end of a chunk cuts them, and a wrong byte of a length is found."""
    front_end = rig.front_ends[rig.attach()]
    for cut in range(4):
        for spoilt in (False, True):
            builder = RecordBatchBuilder(4 << 20)
            builder.append(NOW, b"k" * (4096 - 12 + cut), b"v" * (4096 * chunks), [("h", b"x" * 4090), ("i", None)])
            records = bytearray(builder.records())
            if spoilt:
                records[-1] ^= 2  # the length of the last header's value
            pieces = [records[at : at + 4096] for at in range(0, len(records), 4096)]
            generation = 2 * cut + spoilt
            for slot in range(len(pieces) - 1, -1, -1):
                last = slot == len(pieces) - 1
                front_end.write_chunk(
                    slot,
                    bytes(pieces[slot]),
                    int(slot == 0),
                    topic=rig.number,
                    partition=0,
                    base=NOW,
                    highest=NOW,
                    generation=generation,
                    flags=(0 if slot else HEAD) | (0 if last else CONT),
                    next_slot=0xFFFFFFFF if last else slot + 1,
                    state=READY,
                )
            before = len(broker.values(0))
            front_end.submit(SUBMIT_FULL, 0, generation)
            if spoilt and cut < 3:
                continue  # a front-end is detached at its first violation: once is enough
            error = next_outcomes(rig.engine, front_end)[0][5]
            assert (error != 0) == spoilt
            assert len(broker.values(0)) == before + (not spoilt)
            if spoilt:
                assert rig.engine.take_violators() == [front_end.attach_id]
