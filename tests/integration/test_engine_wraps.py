"""Counters at their ends: ring positions, sequences, generations, the numbers of a sleeper.

No test lives long enough to count so far: an engine is ended, its counters are moved, and another one takes over.
"""

import mmap
import os
import select
import struct

import pytest
from support.fault_rig import NOW, Rig, next_outcomes
from support.front_end import CONT, FREE, HEAD, READY, RELEASE, RESULT, SETTINGS, SUBMIT_FULL, word
from support.scripted_broker import Fault

from cyproducer.record.builder import RecordBatchBuilder
from cyproducer.sender.engine import Engine, Legacy, LegacyFrontEnd

SEQUENCES = 1 << 31
GENERATIONS = 1 << 24


def write(fd: int, form: str, at: int, *values: int) -> None:
    with mmap.mmap(fd, 0) as memory:
        struct.pack_into("=" + form, memory, at, *values)


def succeed(rig: Rig, move) -> None:
    """Another engine goes on where this one was, after `move(state fd, [outcomes fd of each front-end])`."""
    state, snapshot = (os.dup(fd) for fd in rig.engine.regions())
    held = [[os.dup(fd) for fd in rig.engine.descriptors(f.attach_id)] for f in rig.front_ends]
    settings = rig.engine._settings
    log = rig.engine._log
    rig.engine.close()
    for _, outcomes, _, _ in held:
        write(outcomes, "I", 56, 1)  # closing has said that they are detached
    move(state, [outcomes for _, outcomes, _, _ in held])
    front_ends = [
        LegacyFrontEnd(f.attach_id, arena, outcomes, f.slot_count, SETTINGS, wake, sender_wake, False)
        for f, (arena, outcomes, wake, sender_wake) in zip(rig.front_ends, held, strict=True)
    ]
    rig.engine = Engine(settings, log, Legacy(state, snapshot, front_ends))
    for f, (_, _, _, sender_wake) in zip(rig.front_ends, held, strict=True):
        assert os.path.sameopenfile(f.sender_wake_fd, sender_wake)
    for fd in [state, snapshot, *(fd for fds in held for fd in fds)]:
        os.close(fd)
    assert rig.engine.refused == []


@pytest.mark.parametrize("end", [1 << 31, 1 << 32, 1 << 63, 1 << 64])
def test_ring_positions_at_their_ends(rig, broker, end):
    """Both rings begin a few entries before; the ring's index, and what lies in it, go on as ever."""
    front_end = rig.front_ends[rig.attach()]
    rig.send(0, 0)
    rig.settle()
    start = end - 5

    def move(state: int, outcomes: list[int]) -> None:
        front_end.tail = front_end.outcome_head = start
        front_end.put("Q", 64, start)
        write(outcomes[0], "Q", 64, start)

    succeed(rig, move)
    for number in range(12):
        rig.send(0, number % 3)
        rig.settle()
    rig.check()
    assert front_end.tail == (start + 24) % (1 << 64)
    assert front_end.outcome_head == (start + 12) % (1 << 64)


@pytest.mark.parametrize("end", [SEQUENCES, 2 * SEQUENCES, 1 << 40])
def test_sequences_wrap_on_the_wire(rig, broker, end):
    """Logical ones do not; a batch lies across, and so does one that is sent again."""
    rig.attach()
    rig.send(0, 0)
    rig.settle()
    start = end - 7

    def move(state: int, outcomes: list[int]) -> None:
        wanted = struct.pack("=qQ", producer, 2)  # an identity: its producer id, and the end of what is acknowledged
        with mmap.mmap(state, 0) as memory:
            at = memory.find(wanted)
            assert at >= 0 and memory.find(wanted, at + 1) < 0
            struct.pack_into("=Q", memory, at + 8, start)

    ((producer, known),) = broker.partitions[0].producers.items()
    succeed(rig, move)
    known.next_sequence = start % SEQUENCES
    known.recent.clear()
    for number in range(12):
        if number in (2, 3):
            broker.faults.append(Fault(close="after"))
        rig.send(0, 0, records=3)
        rig.settle()
    rig.check()
    sequences = [batch[2] for batch in broker.partitions[0].batches[1:]]
    assert sequences == [(start + 3 * number) % SEQUENCES for number in range(12)]
    assert any(sequence + 3 > SEQUENCES for sequence in sequences)


def test_generations_wrap(rig, broker):
    """The last generation's SENT word and outcome are those of a batch like any; then comes 0."""
    front_end = rig.front_ends[rig.attach()]
    values = []
    for generation in (GENERATIONS - 2, GENERATIONS - 1, 0, 1):
        front_end.put("Q", front_end.row(0), word(FREE, generation, 0, 0))
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
    rig.settle()
    rig.check()


def test_numbers_of_a_sleeper_wrap(rig, broker):
    """A waiter is woken once for each odd number that it says, also for the one that comes after the last."""
    front_end = rig.front_ends[rig.attach()]
    for number in (0xFFFFFFFD, 0xFFFFFFFF, 1, 3):
        front_end.put("I", 128, number)
        rig.send(0, 0)
        rig.settle()
        assert select.select([front_end.wake_fd], [], [], 5)[0], number
        assert os.read(front_end.wake_fd, 8) == b"\1"
        with pytest.raises(BlockingIOError):
            os.read(front_end.wake_fd, 8)
    rig.check()


@pytest.mark.parametrize("chunks", [1, 2, 63, 64, 65, 200])
def test_record_that_fills_a_chain_is_looked_at_across_its_chunks(rig, broker, chunks):
    """Wherever a length is cut by the end of a chunk; and a byte of it that lies is found."""
    front_end = rig.front_ends[rig.attach()]
    for cut in range(4):
        for spoilt in (False, True):
            builder = RecordBatchBuilder(4 << 20)
            builder.append(NOW, b"k" * (4096 - 12 + cut), b"v" * (4096 * chunks), [("h", b"x" * 4090), ("i", None)])
            records = bytearray(builder.records())
            if spoilt:
                records[-1] ^= 2  # the length of the last header's value
            pieces = [records[at:at + 4096] for at in range(0, len(records), 4096)]
            generation = 2 * cut + spoilt
            for slot in range(len(pieces) - 1, -1, -1):
                last = slot == len(pieces) - 1
                front_end.write_chunk(
                    slot, bytes(pieces[slot]), int(slot == 0), topic=rig.number, partition=0, base=NOW, highest=NOW,
                    generation=generation, flags=(0 if slot else HEAD) | (0 if last else CONT),
                    next_slot=0xFFFFFFFF if last else slot + 1, state=READY,
                )
            before = len(broker.values(0))
            front_end.submit(SUBMIT_FULL, 0, generation)
            if spoilt and cut < 3:
                continue  # it would be condemned: once is enough
            error = next_outcomes(rig.engine, front_end)[0][5]
            assert (error != 0) == spoilt
            assert len(broker.values(0)) == before + (not spoilt)
            if spoilt:
                assert rig.engine.take_condemned() == [front_end.attach_id]
