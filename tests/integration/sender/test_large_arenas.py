"""Tests front-ends with large arenas: the sender does the work of their end in pieces."""

import os

import pytest
from probe.native import RecordBatchBuilder
from support.fault_rig import NOW, Rig
from support.front_end import (
    CONT,
    FREE,
    HEAD,
    READY,
    REVOKED,
    SETTINGS,
    SUBMIT_FULL,
    PlainFrontEnd,
    run_until,
    word,
)
from support.successor import succeed

from cyproducer.shm.native import Region

LARGEST = 1 << 20  # the slots that an arena of 4 GiB has
SCANNED_PER_TURN = 16384
UNMAPPED_PER_TURN = 16 << 20
FAR_APART = (3, 70, 5_000, 65_535)


def memory_of(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def commit(
    front_end: PlainFrontEnd, slot: int, number: int, partition: int, records: bytes | None = None, size: int = 0
) -> bytes:
    """Commit a batch that is never announced; return its value. `records`: the first of `size` bytes of records."""
    builder = RecordBatchBuilder(4096)
    value = b"slot %d" % slot
    builder.append(NOW, None, value)
    records = records or builder.records()
    front_end.write_chunk(slot, records, 1, topic=number, partition=partition, base=NOW, highest=NOW, state=READY)
    front_end.set_row(slot, word=word(READY, 0, 1, size or len(records), HEAD))
    return value


@pytest.mark.parametrize("how", ["detach", "release", "succeed"])
def test_rows_that_were_never_used_get_no_memory(rig, how):
    rig.attach()
    large = rig.front_ends[rig.attach(slots=LARGEST)]
    rig.send(1, 0)
    rig.settle()
    arena = os.dup(large.arena.fd)
    before = memory_of(arena)
    assert before < 1 << 20
    if how == "succeed":
        succeed(rig)
        rig.engine.detach(large.attach_id)
    else:
        getattr(rig.engine, how)(large.attach_id)
    assert memory_of(arena) == before, "the slot table alone has 64 MiB"
    os.close(arena)


def test_every_used_slot_of_a_large_arena_is_revoked(rig):
    """It takes several loop iterations, in which others are served; records committed far behind are delivered."""
    slots = 65_536
    other = rig.attach(slots=1024)
    large = rig.front_ends[rig.attach(slots=slots)]
    for slot in range(0, slots, 64):
        large.set_row(slot, open_seq=1)  # each page of the table has memory
    commit(large, slots - 1, rig.number, 0)
    rig.engine.detach(large.attach_id)
    assert large.row_field(slots - 2, "word") >> 60 == FREE, "not all at once"
    before, runs = rig.engine._loop.totals()["turns"], 0
    while large.row_field(slots - 2, "word") >> 60 != REVOKED:
        rig.send(other, 1)
        rig.engine.run(60_000)
        runs += 1
        assert runs < 500
    assert rig.engine._loop.totals()["turns"] - before >= slots // SCANNED_PER_TURN - 2
    run_until(rig.engine, lambda: rig.broker.values(0), 30)
    rig.settle()
    assert set(rig.errors(other)) == {0}


def test_an_arena_whose_header_was_never_written_gets_no_memory(rig):
    rig.attach()
    empty = Region.create("cyproducer-arena", rig.front_ends[0].arena.memory().nbytes)
    with pytest.raises(ValueError, match="not that of an arena"):
        rig.engine.attach(os.dup(empty.fd), 256, SETTINGS, os.dup(empty.fd))
    assert memory_of(empty.fd) == 0
    empty.close()


def hints_at_unwritten_rows(front_end: PlainFrontEnd, number: int) -> None:
    for slot in range(64, 64 * 200, 64):
        front_end.push(SUBMIT_FULL << 60 | slot)


def chain_into_unwritten_rows(front_end: PlainFrontEnd, number: int) -> None:
    for slot in range(8):
        commit(front_end, slot, number, 0)
        front_end.set_row(slot, next=64 * (slot + 1), word=front_end.row_field(slot, "word") | CONT)
        front_end.push(SUBMIT_FULL << 60 | slot)


def records_in_unwritten_chunks(front_end: PlainFrontEnd, number: int) -> None:
    """Each record of 64 KiB has its first and its last byte in memory."""
    builder = RecordBatchBuilder(70_000)
    builder.append(NOW, None, bytes(65_500))
    records = builder.records()
    for slot in range(0, 16 * 12, 16):
        commit(front_end, slot, number, 0, builder.records()[:20], len(records))
        at = front_end.chunks_at + slot * 4096 + len(records)
        front_end.memory[at - 1] = records[-1]
        front_end.push(SUBMIT_FULL << 60 | slot)


@pytest.mark.breaks_protocol
@pytest.mark.parametrize("attack", [hints_at_unwritten_rows, chain_into_unwritten_rows, records_in_unwritten_chunks])
def test_another_user_has_no_memory_that_it_has_not_written(rig, attack):
    """It counts for the cgroup of the sender. The front-end is detached, and gives the memory of its arena back."""
    rig.attach()
    stranger = rig.front_ends[rig.attach(slots=16_384, other_user=True)]
    arena = os.dup(stranger.arena.fd)
    attack(stranger, rig.number)
    written = memory_of(arena)
    stranger.wake_sender()
    most = 0

    def is_over() -> bool:
        nonlocal most
        most = max(most, memory_of(arena))
        return rig.engine.held() == [rig.front_ends[0].attach_id] and bool(rig.engine.take_gone())

    run_until(rig.engine, is_over, 30)
    assert most <= written
    assert memory_of(arena) == 0
    os.close(arena)
    rig.send(0, 1)
    run_until(rig.engine, lambda: rig.broker.values(1), 30)


def test_a_large_arena_is_unmapped_in_pieces(rig):
    """Other front-ends are served between two pieces; descriptors for a successor are given up at once."""
    other, index = rig.attach(slots=2048), rig.attach(slots=LARGEST)
    attach_id = rig.front_ends[index].attach_id
    rig.send(index, 0)
    rig.settle()
    rig.engine.detach(attach_id)
    assert rig.engine.held() == [rig.front_ends[other].attach_id]
    pieces, gone = 0, []
    while not gone:
        rig.send(other, 1)
        rig.engine.run(60_000)
        gone = rig.engine.take_gone()
        pieces += 1
        assert pieces < 1_000
    assert gone == [attach_id]
    assert pieces >= (4 << 30) // UNMAPPED_PER_TURN - 1
    rig.settle()
    assert set(rig.errors(other)) == {0}


def test_an_engine_that_is_closed_or_abandoned_while_it_unmaps_leaves_nothing(broker):
    for abandon in (False, True):
        with Rig(broker) as rig:
            rig.attach()
            large = rig.front_ends[rig.attach(slots=LARGEST)]
            before = len(os.listdir("/proc/self/fd"))
            rig.engine.detach(large.attach_id)
            if abandon:
                pid = os.fork()
                if pid == 0:
                    kept = len(os.listdir("/proc/self/fd"))
                    rig.engine.abandon()
                    os._exit(kept - len(os.listdir("/proc/self/fd")) < 4)
                assert os.waitpid(pid, 0)[1] == 0, "the child keeps descriptors that it does not need"
            rig.engine.close()
            assert len(os.listdir("/proc/self/fd")) < before


def test_batches_far_apart_that_were_never_announced_are_found_at_the_end(rig, broker):
    rig.attach()
    front_end = rig.front_ends[rig.attach(slots=65_536)]
    values = [commit(front_end, slot, rig.number, 0) for slot in FAR_APART]
    rig.engine.detach(front_end.attach_id)
    run_until(rig.engine, lambda: len(broker.values(0)) == len(values), 30)
    assert broker.values(0) == values


def test_batches_far_apart_that_were_never_announced_are_found_by_a_successor(rig, broker):
    rig.attach()
    front_end = rig.front_ends[rig.attach(slots=65_536)]
    values = [commit(front_end, slot, rig.number, 0) for slot in FAR_APART]
    succeed(rig)
    run_until(rig.engine, lambda: len(broker.values(0)) == len(values), 30)
    assert broker.values(0) == values


@pytest.mark.parametrize("piece", [4096, 5000, 1 << 30])
def test_a_region_is_unmapped_from_its_end(piece):
    region = Region.create("cyproducer-test", 10 * 4096)
    unmapped = 0
    while part := region.unmap_part(piece):
        unmapped += part
    assert unmapped == 10 * 4096
    assert region.fd == -1
    with pytest.raises(ValueError, match="not mapped"):
        region.memory()
    region.close()
