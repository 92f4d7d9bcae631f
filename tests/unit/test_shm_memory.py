"""The chunk pool against a model, regions and what they refuse, the snapshot, the fork token."""

import fcntl
import os
from pathlib import Path

import pytest
from cyproducer.shm.pool import ChunkPool
from cyproducer.shm.region import Region, fork_token
from cyproducer.shm.snapshot import SnapshotReader, SnapshotWriter, snapshot_bytes
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cyproducer.shm import handshake

UNITS = 16 * 6
CLASS_BYTES = (4096, 16384, 65536)


class PoolMachine(RuleBasedStateMachine):
    """Chunks never overlap, sizes are aligned, bytes are conserved, and what can be had is had."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = ChunkPool(UNITS)
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
        assert size in CLASS_BYTES[:chunk_class + 1]
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
        """With nothing held, every block can be had whole."""
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
    pool = ChunkPool(64)
    first, second = pool.allocate(0), pool.allocate(0)
    pool.release(first[0])
    pool.release(second[0])
    assert pool.allocate(0) == second
    assert pool.allocate(0) == first


def test_a_region_is_sealed_and_refuses_what_is_not():
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
    topics = [(index, f"topic-{index}ä", index % 5, bytes([1, 0] * index)) for index in range(50)]
    assert writer.publish(topics, 3, "a broker said no") == 1
    version, brokers, error, found = reader.read()
    assert (version, brokers, error) == (1, 3, "a broker said no")
    assert found == {name: (number, code, leaders) for number, name, code, leaders in topics}
    writer.publish([], 0, "")
    assert reader.read() == (2, 0, "", {})
    with pytest.raises(OverflowError, match="fit"):
        writer.publish([(0, "big", 0, bytes(5 << 20))], 1, "")
    assert reader.version == 2
    reader.region.close()
    writer.region.close()


def test_a_foreign_region_is_no_snapshot():
    region = Region.create("cyproducer-test", snapshot_bytes())
    with pytest.raises(ValueError, match="no metadata snapshot"):
        SnapshotReader(region.read_only_descriptor())
    region.close()


def test_handshake_messages_carry_descriptors_and_refuse_garbage():
    import socket

    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = os.pipe()
    handshake.send(left, {"op": "attach"}, [reader])
    message, fds = handshake.receive(right)
    assert message == {"op": "attach"}
    os.write(writer, b"x")
    assert os.read(fds[0], 1) == b"x"
    for fd in (reader, writer, *fds):
        os.close(fd)
    for garbage, why in ((b"[1]", "no JSON object"), (b"\xff", "no JSON")):
        left.send(garbage)
        with pytest.raises(handshake.HandshakeError, match=why):
            handshake.receive(right)
    left.close()
    assert handshake.receive(right) == (None, [])
    right.close()
