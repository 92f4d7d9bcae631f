"""Tests front-ends with large arenas: the sender does the work of their end in pieces."""

import os

import pytest
from cyproducer.shm.region import Region
from support.fault_rig import NOW, Rig
from support.front_end import FREE, READY, REVOKED, PlainFrontEnd, run_until
from support.successor import succeed

from cyproducer.record.builder import RecordBatchBuilder

LARGEST = 1 << 20  # the slots that an arena of 4 GiB has
SCANNED_PER_TURN = 16384
UNMAPPED_PER_TURN = 16 << 20
FAR_APART = (3, 70, 5_000, 65_535)


def memory_of(fd: int) -> int:
    return os.fstat(fd).st_blocks * 512


def commit(front_end: PlainFrontEnd, slot: int, number: int, partition: int) -> bytes:
    """Commit a batch that is never announced; return its value."""
    builder = RecordBatchBuilder(4096)
    value = b"slot %d" % slot
    builder.append(NOW, None, value)
    front_end.write_chunk(
        slot, builder.records(), 1, topic=number, partition=partition, base=NOW, highest=NOW, state=READY
    )
    return value


def test_the_end_of_a_process_with_a_large_arena_touches_only_rows_that_were_used(rig):
    rig.attach()
    large = rig.front_ends[rig.attach(slots=LARGEST)]
    rig.send(1, 0)
    rig.settle()
    arena = os.dup(large.arena.fd)
    before = memory_of(arena)
    assert before < 1 << 20
    rig.engine.detach(large.attach_id, opens_nothing=True)
    assert memory_of(arena) - before < 1 << 20, "the slot table alone has 64 MiB"
    os.close(arena)


def test_every_slot_of_a_large_arena_is_revoked_if_its_owner_may_live(rig):
    """It takes several loop iterations, in which others are served; records committed far behind are delivered."""
    other = rig.attach(slots=1024)
    large = rig.front_ends[rig.attach(slots=LARGEST)]
    commit(large, LARGEST - 1, rig.number, 0)
    rig.engine.detach(large.attach_id)
    assert large.row_field(LARGEST - 2, "word") >> 60 == FREE, "not all at once"
    before, runs = rig.engine._loop.totals()["turns"], 0
    while large.row_field(LARGEST - 2, "word") >> 60 != REVOKED:
        rig.send(other, 1)
        rig.engine.run(60_000)
        runs += 1
        assert runs < 500
    assert rig.engine._loop.totals()["turns"] - before >= LARGEST // SCANNED_PER_TURN - 2
    run_until(rig.engine, lambda: rig.broker.values(0), 30)
    rig.settle()
    assert set(rig.errors(other)) == {0}


def test_a_large_arena_is_unmapped_in_pieces(rig):
    """Other front-ends are served between two pieces; descriptors for a successor are given up at once."""
    other, index = rig.attach(slots=2048), rig.attach(slots=LARGEST)
    attach_id = rig.front_ends[index].attach_id
    rig.send(index, 0)
    rig.settle()
    rig.engine.detach(attach_id, opens_nothing=True)
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
            rig.engine.detach(large.attach_id, opens_nothing=True)
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
