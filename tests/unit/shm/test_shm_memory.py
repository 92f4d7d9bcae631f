"""Tests the allocator of chunks against a model, regions and what they refuse, the snapshot and the fork token."""

import fcntl
import os
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cyproducer.host import control_messages
from cyproducer.producer.core.native import ChunkAllocator
from cyproducer.shm.native import Region, SnapshotReader, SnapshotWriter, fork_token, snapshot_bytes

UNITS = 16 * 6
GENERATION = 2 << 14  # the first one of a number, as slot rows have it
CLASS_BYTES = (4096, 16384, 65536)


class PoolMachine(RuleBasedStateMachine):
    """Chunks never overlap, sizes are aligned, bytes are conserved, and every free block can be allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ChunkAllocator(UNITS)
        self.held: dict[int, int] = {}

    def units(self) -> list[int]:
        return [unit for slot, size in self.held.items() for unit in range(slot, slot + size // 4096)]

    @rule(chunk_class=st.integers(0, 2))
    def allocate(self, chunk_class: int) -> None:
        found = self.pool.allocate(chunk_class)
        if found is None:
            assert len(self.units()) == UNITS
            return
        slot, size = found
        assert size in CLASS_BYTES[: chunk_class + 1]
        assert slot % (size // 4096) == 0
        assert not set(range(slot, slot + size // 4096)) & set(self.units())
        self.held[slot] = size

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[slot]
        self.pool.release(slot)

    @precondition(lambda self: not self.held)
    @rule()
    def whole_again(self) -> None:
        """Check that every block can be allocated whole if nothing is held."""
        taken = [self.pool.allocate(2) for _ in range(UNITS // 16)]
        assert sorted(taken) == [(16 * block, 65536) for block in range(UNITS // 16)]
        assert self.pool.allocate(0) is None
        for slot, _ in taken:
            self.pool.release(slot)

    @invariant()
    def conserved(self) -> None:
        assert self.pool.free_bytes == UNITS * 4096 - sum(self.held.values())


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_the_warmest_chunk_is_used_first():
    pool = ChunkAllocator(64)
    first, second = pool.allocate(0), pool.allocate(0)
    pool.release(first[0])
    pool.release(second[0])
    assert pool.allocate(0) == second
    assert pool.allocate(0) == first


def test_a_region_is_sealed_and_unsealed_memory_is_refused():
    region = Region.create("cyproducer-test", 8192)
    with pytest.raises(OSError):
        os.ftruncate(region.fd, 4096)
    with pytest.raises(ValueError, match="8192 bytes, 4096 were announced"):
        Region.attach(os.dup(region.fd), 4096, True)
    region.close()
    for descriptor in (os.memfd_create("unsealed", os.MFD_ALLOW_SEALING), os.open("/", os.O_RDONLY), os.eventfd(0)):
        with pytest.raises(ValueError, match="no memfd that is sealed"):
            Region.attach(descriptor, 4096, True)
        with pytest.raises(OSError):
            fcntl.fcntl(descriptor, fcntl.F_GETFD)


def test_a_read_only_descriptor_cannot_be_mapped_for_writing():
    region = Region.create("cyproducer-test", 4096)
    with pytest.raises(OSError):
        Region.attach(region.read_only_descriptor(), 4096, True)
    reader = Region.attach(region.read_only_descriptor(), 4096, False)
    region.memory()[0] = 7
    assert reader.memory()[0] == 7
    assert reader.memory().readonly
    reader.close()
    region.close()


def mappings(name):
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if name in line]


def test_a_vacated_region_is_zeros_until_it_goes():
    region = Region.create("cyproducer-vacant", 8192)
    view = region.memory()
    view[:3] = b"abc"
    assert len(mappings("cyproducer-vacant")) == 1
    for _ in range(2):
        region.vacate()
        assert region.fd == -1
        assert mappings("cyproducer-vacant") == []
        assert bytes(view) == bytes(8192)
    for _ in range(200):  # of one TiB each: more addresses than there are
        Region.create("cyproducer-vacant", 1 << 40).vacate()


def test_a_closed_region_keeps_its_addresses_while_there_is_a_view() -> None:
    region = Region.create("cyproducer-test", 1 << 16)
    view = region.memory()[1 << 12 :]
    view[:4] = b"abcd"
    region.close()
    assert region.fd == -1
    assert bytes(view[:4]) == bytes(4)
    view.release()
    region.close()
    with pytest.raises(ValueError, match="not mapped"):
        region.memory()


def test_a_forked_child_has_another_token_and_no_mapping():
    region = Region.create("cyproducer-test", 4096)
    token = fork_token()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            region.memory()
            answer = b"mapped"
        except ValueError:
            answer = b"refused"
        region.close()
        os.write(writer, answer + b" " + str(fork_token()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    answer, child_token = os.read(reader, 100).split()
    os.close(reader)
    os.close(writer)
    assert answer == b"refused"
    assert int(child_token) not in (0, token)
    assert fork_token() == token
    region.memory()[0] = 1
    region.close()


def test_a_snapshot_is_read_as_it_was_published():
    writer = SnapshotWriter()
    reader = SnapshotReader(writer.region.read_only_descriptor())
    assert reader.read() == (0, 0, "", {})
    topics = {f"topic-{index}ä": (GENERATION | index, index % 5 - 1, bytes([1, 0] * index)) for index in range(50)}
    for name, (identifier, code, leaders) in topics.items():
        number = identifier & 0x3FFF
        writer.enter(number, name.encode())
        assert writer.store(number, code, leaders)
        assert not writer.store(number, code, leaders)
    writer.describe(3, "a broker said no")
    assert reader.read() == (50, 3, "a broker said no", topics)
    writer.describe(0, "x" * 1100)
    assert reader.read()[1:3] == (0, "x" * 1021 + "...")
    writer.describe(0, 255 * "die " + "größe" + "x")
    assert reader.read()[2] == (255 * "die ").rstrip() + "..."
    writer.describe(0, 1020 * "x" + "ö!" + 10 * "x")
    assert reader.read()[2] == 1020 * "x" + "..."
    assert writer.store(7, 5, b"")
    assert reader.read()[3]["topic-7ä"] == (GENERATION | 7, 5, b"")
    writer.forget(7)
    assert "topic-7ä" not in reader.read()[3]
    assert writer.store(7, 5, b"")
    assert "topic-7ä" in reader.read()[3]
    assert reader.version == 52
    with pytest.raises(OverflowError, match="no space"):
        writer.store(0, 0, bytes(5 << 20))
    assert reader.version == 52
    reader.region.close()
    writer.region.close()


def test_a_snapshot_holds_as_many_topics_and_partitions_as_a_sender():
    """Also with topics that grow partition by partition, and names that another writer has entered."""
    writer = SnapshotWriter()
    for number in range(16_384):
        writer.enter(number, b"topic-%d" % number)
        writer.store(number, 0, b"\1\0\1\1")
    writer.enter(16_383, b"topic-16383")
    with pytest.raises(ValueError, match="topic number 16384"):
        writer.enter(16_384, b"one-more")
    topics = writer.read()[3]
    assert len(topics) == 16_384
    assert topics["topic-16383"] == (GENERATION | 16_383, 0, b"\1\0\1\1")
    writer.region.close()
    writer = SnapshotWriter()
    for number, most in ((0, 1_500), (1, 3_000), (2, 61_036)):
        writer.enter(number, b"t%d" % number)
        for count in range(1, most + 1, 1 if most < 4_000 else 997):
            writer.store(number, 0, bytes(count))
        writer.store(number, 0, bytes([1]) * most)
    assert [len(row[2]) for row in writer.read()[3].values()] == [1_500, 3_000, 61_036]
    writer.region.close()


def test_a_foreign_region_is_no_snapshot():
    region = Region.create("cyproducer-test", snapshot_bytes())
    with pytest.raises(ValueError, match="not a metadata snapshot"):
        SnapshotReader(region.read_only_descriptor())
    region.close()


def test_handshake_messages_carry_descriptors_and_refuse_garbage():
    import socket

    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    control_messages.send(left, {"op": "attach"}, [reader])
    message, fds = control_messages.receive(right)
    assert message == {"op": "attach"}
    os.write(writer, b"x")
    assert os.read(fds[0], 1) == b"x"
    for fd in (reader, writer, *fds):
        os.close(fd)
    for garbage, why in ((b"[1]", "not a JSON object"), (b"\xff", "not JSON")):
        left.send(garbage)
        with pytest.raises(control_messages.HandshakeError, match=why):
            control_messages.receive(right)
    left.close()
    assert control_messages.receive(right) == (None, [])
    right.close()
