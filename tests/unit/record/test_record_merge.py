"""Tests merging and scanning records: equal to the twin, and never out of bounds, whatever the bytes are."""

import ctypes
import mmap
import os
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe.native import merge, scan
from support import record_twin as twin
from support.record_twin import Record, RecordFormatError

payloads = st.none() | st.binary(max_size=90)
headers = st.lists(st.tuples(st.text(max_size=9), st.none() | st.binary(max_size=9)), max_size=3).map(tuple)
records = st.builds(Record, st.integers(-(2**40), 2**40), payloads, payloads, headers)
lists = st.lists(records, min_size=1, max_size=8)
shifts = st.integers(-(2**40), 2**40)
GUARD = 64
GOOD = twin.encode_records(
    [Record(3, b"k", b"v" * 20, (("h", b"x"),)), Record(-7, None, b"", (("", None),))], base_timestamp=0
)


class Guarded:
    """Memory between two inaccessible pages: an access beyond either end kills the test run."""

    def __init__(self, pages):
        self.size = pages * mmap.PAGESIZE
        self.map = mmap.mmap(-1, self.size + 2 * mmap.PAGESIZE)
        anchor = ctypes.c_char.from_buffer(self.map)
        self.address = ctypes.addressof(anchor) + mmap.PAGESIZE
        del anchor
        self.view = memoryview(self.map)[mmap.PAGESIZE : mmap.PAGESIZE + self.size]
        self._protect(0)

    def _protect(self, rights):
        libc = ctypes.CDLL(None, use_errno=True)
        for at in (self.address - mmap.PAGESIZE, self.address + self.size):
            if libc.mprotect(ctypes.c_void_p(at), ctypes.c_size_t(mmap.PAGESIZE), ctypes.c_int(rights)) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")

    def at_end(self, n):
        """Return the last n bytes before the upper guard page."""
        return self.view[self.size - n :]

    def close(self):
        self._protect(mmap.PROT_READ | mmap.PROT_WRITE)
        self.view.release()
        self.map.close()


@pytest.fixture(scope="module")
def source_memory():
    memory = Guarded(4)
    yield memory
    memory.close()


@pytest.fixture(scope="module")
def target_memory():
    memory = Guarded(4)
    yield memory
    memory.close()


def run_merge(source, count, shift, first, capacity=None):
    """Return (bytes, latest) or None if refused; check the guard bytes on both sides of the target."""
    capacity = len(source) + 16 * max(count, 1) if capacity is None else capacity
    memory = bytearray(b"\x5a" * (capacity + 2 * GUARD))
    try:
        written, latest = merge(source, count, shift, first, memoryview(memory)[GUARD : GUARD + capacity])
    except ValueError:
        written = None
    assert memory[:GUARD] == memory[GUARD + capacity :] == b"\x5a" * GUARD
    return None if written is None else (bytes(memory[GUARD : GUARD + written]), latest)


def run_twin(source, count, shift, first):
    try:
        return twin.merge_records(source, count, shift, first)
    except RecordFormatError:
        return None


@settings(deadline=None)
@given(st.lists(st.tuples(lists, shifts), min_size=1, max_size=4))
def test_merging_is_encoding_the_concatenation(batches):
    """Batches with their own base timestamps become one with the base 0."""
    merged, everything, latest, first = b"", [], [], 0
    for batch, base in batches:
        source = twin.encode_records(batch, base)
        body, newest = run_merge(source, len(batch), base, first)
        merged += body
        latest.append(newest)
        everything += batch
        first += len(batch)
    assert merged == twin.encode_records(everything, 0)
    assert max(latest) == max(record.timestamp_ms for record in everything)


@settings(deadline=None)
@given(lists, st.integers(0, 2**31 - 100), shifts, st.integers(0, 2**31 - 100))
def test_a_later_chunk_of_a_chain_has_offset_deltas_that_go_on(batch, source_first, shift, first):
    source = twin.encode_records(batch, 0, source_first)
    assert run_merge(source, len(batch), shift, first) == twin.merge_records(source, len(batch), shift, first)
    assert scan(source, len(batch)) == max(record.timestamp_ms for record in batch)


@settings(deadline=None)
@given(lists, shifts)
def test_the_target_is_filled_exactly_and_one_byte_less_is_refused(batch, shift):
    source = twin.encode_records(batch, 0)
    body, _ = twin.merge_records(source, len(batch), shift, 0)
    assert run_merge(source, len(batch), shift, 0, len(body))[0] == body
    for capacity in {0, len(body) // 2, len(body) - 1}:
        assert run_merge(source, len(batch), shift, 0, capacity) is None


def test_each_error_has_its_words():
    target = bytearray(200)
    two = GOOD
    cases = [
        (b"", 1, 0, 0, "number of records"),
        (two, 0, 0, 0, "number of records"),
        (two, -1, 0, 0, "number of records"),
        (two, 1, 0, 0, "number of records"),
        (two, 3, 0, 0, "number of records"),
        (two, 2, 0, -1, "consecutive"),
        (two, 2, 0, 2**31 - 1, "consecutive"),
        (two[:-1], 2, 0, 0, "length"),
        (b"\x80", 1, 0, 0, "varint"),
        (b"\x01", 1, 0, 0, "length"),
        (b"\x00", 1, 0, 0, "length"),
        (bytes.fromhex("0c010000010100"), 1, 0, 0, "attributes"),
        (bytes.fromhex("0c000001010100"), 1, 0, 0, "consecutive"),
        (bytes.fromhex("0c000000010101"), 1, 0, 0, "length"),
        (bytes.fromhex("0c000000030100"), 1, 0, 0, "length"),
        (bytes.fromhex("0e00000001010000"), 1, 0, 0, "length"),
        (bytes.fromhex("1000000001010201ff"), 1, 0, 0, "length"),
        (two, 2, 2**63 - 1, 0, "timestamp"),
        (two, 2, -(2**63), 0, "timestamp"),
    ]
    for source, count, shift, first, words in cases:
        with pytest.raises(ValueError, match=words):
            merge(source, count, shift, first, target)
    with pytest.raises(ValueError, match="do not fit"):
        merge(two, 2, 0, 0, bytearray(10))
    with pytest.raises(ValueError, match="consecutive"):
        scan(twin.encode_record(Record(0, None, None), 0, 0) * 2, 2)
    assert merge(two, 2, 0, 2**31 - 2, target)[1] == 3


@settings(deadline=None)
@given(
    st.binary(max_size=80)
    | st.lists(st.sampled_from([0, 0, 0, 1, 2, 4, 12, 14, 16, 20, 127, 128, 255]), max_size=60).map(bytes),
    st.integers(-1, 4),
)
def test_garbage_is_judged_as_the_twin_judges_it(source, count):
    expected = run_twin(source, count, 0, 0)
    assert run_merge(source, count, 0, 0) == expected
    if expected is None:
        with pytest.raises(ValueError, match=r"record|varint|length|offset"):
            scan(source, count)
    else:
        assert scan(source, count) == expected[1]


@settings(deadline=None)
@given(lists, st.data())
def test_a_damaged_batch_is_judged_as_the_twin_judges_it(batch, data):
    source = bytearray(twin.encode_records(batch, 0))
    for _ in range(data.draw(st.integers(1, 3))):
        source[data.draw(st.integers(0, len(source) - 1))] = data.draw(
            st.sampled_from([0, 1, 2, 127, 128, 255]) | st.integers(0, 255)
        )
    if data.draw(st.booleans()):
        del source[data.draw(st.integers(0, len(source))) :]
    source = bytes(source)
    assert run_merge(source, len(batch), 0, 0) == run_twin(source, len(batch), 0, 0)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), lists, st.integers(0, 400), st.booleans())
def test_neither_side_is_overrun_even_by_a_byte(source_memory, target_memory, garbage, batch, capacity, good):
    source = twin.encode_records(batch, 0) + (b"" if good else garbage)
    place = source_memory.at_end(len(source))
    place[:] = source
    for count in {1, len(batch), len(batch) + 1, 2**31 - 1}:
        for call in (
            lambda n: scan(place, n),
            lambda n: merge(place, n, 1, 0, target_memory.at_end(capacity)),
            lambda n: merge(place, n, -(2**60), 5, target_memory.view[:capacity]),
        ):
            try:
                call(count)
            except ValueError:
                pass
    place.release()


def flip_for_ever(place, source):
    """Damage each byte in turn and repair it, in a child process, until the child is killed."""
    while True:
        for at in range(len(source)):
            place[at] ^= 0x02
            place[at] = source[at]


def test_memory_that_changes_meanwhile_never_yields_a_malformed_merge(source_memory, target_memory):
    """Another process flips lengths while the merge runs: every accepted result still decodes strictly."""
    batch = [Record(i, b"key%d" % i, b"v" * (i % 50), (("h", b"x" * (i % 5)),)) for i in range(150)]
    source = twin.encode_records(batch, 0)
    place = source_memory.at_end(len(source))
    place[:] = source
    target = target_memory.at_end(len(source) + 16 * len(batch))
    accepted = refused = 0
    child = os.fork()
    if child == 0:
        try:
            flip_for_ever(place, source)
        finally:
            os._exit(1)
    try:
        # a refused merge shows that the child flips; before that it may not run yet
        while accepted < 400 or refused < 40:
            try:
                written, latest = merge(place, len(batch), 0, 0, target)
            except ValueError:
                refused += 1
                continue
            accepted += 1
            first, found = twin.decode_records(bytes(target[:written]), len(batch))
            assert first == 0
            assert latest == max(record.timestamp_ms for record in found)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        target.release()
        place.release()
