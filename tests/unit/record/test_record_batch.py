"""Tests RecordBatch v2: builder against twin byte for byte, the golden batch, what the strict decoder refuses."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe.native import RecordBatchBuilder
from support import record_twin as twin
from support.record_twin import Record, RecordFormatError

GOLDEN = bytes.fromhex(
    "000000000000000000000046ffffffff02d5c1ce890000000000010000018bcfe568000000018bcfe568050000000000000007"
    "0003000000000000000210000000026b02760016000a020102770202680278"
)
GOLDEN_RECORDS = [
    Record(1_700_000_000_000, b"k", b"v"),
    Record(1_700_000_000_005, None, b"w", (("h", b"x"),)),
]

sizes = st.sampled_from([0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 63, 64, 127, 128, 8190, 8191, 8192, 70_000])
runs = st.builds(lambda n, byte: bytes([byte]) * n, sizes, st.integers(0, 255))
payloads = st.none() | st.binary(max_size=40) | runs
headers = st.lists(st.tuples(st.text(max_size=70), st.none() | st.binary(max_size=70)), max_size=4).map(tuple)
timestamps = st.integers(-(2**62), 2**62 - 1) | st.integers(1_700_000_000_000, 1_700_000_100_000)
records = st.builds(Record, timestamps, payloads, payloads, headers)
batches = st.lists(records, min_size=1, max_size=12)


def fill(batch, size=1 << 21):
    builder = RecordBatchBuilder(size)
    for i, record in enumerate(batch):
        assert builder.append(record.timestamp_ms, record.key, record.value, record.headers) == i
    return builder


def refresh_crc(batch):
    struct.pack_into(">I", batch, 17, twin.crc32c(bytes(batch[21:])))
    return bytes(batch)


def test_the_golden_batch():
    assert twin.encode_batch(GOLDEN_RECORDS, 7, 3, 0) == GOLDEN
    assert fill(GOLDEN_RECORDS).build(7, 3, 0) == GOLDEN
    decoded = twin.decode_batch(GOLDEN)
    assert list(decoded.records) == GOLDEN_RECORDS
    assert (decoded.producer_id, decoded.producer_epoch, decoded.base_sequence) == (7, 3, 0)
    assert (decoded.base_timestamp, decoded.max_timestamp) == (1_700_000_000_000, 1_700_000_000_005)


@settings(deadline=None)
@given(batches, st.integers(-1, 2**63 - 1), st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1))
def test_builder_equals_twin(batch, producer_id, epoch, sequence):
    builder = fill(batch)
    data = builder.build(producer_id, epoch, sequence, 0x10)
    assert data == twin.encode_batch(batch, producer_id, epoch, sequence, 0x10)
    assert builder.records() == data[61:]
    decoded = twin.decode_batch(data)
    assert decoded.records == tuple(batch)
    found = (decoded.producer_id, decoded.producer_epoch, decoded.base_sequence)
    assert found == (producer_id, epoch, sequence)
    assert decoded.attributes == 0x10
    assert decoded.max_timestamp == builder.max_timestamp == max(r.timestamp_ms for r in batch)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kafka-python's own, at import
@settings(deadline=None)
@given(st.lists(records.filter(lambda r: abs(r.timestamp_ms) < 2**50), min_size=1, max_size=6))
def test_an_independent_parser_reads_the_same(batch):
    from kafka.record.default_records import DefaultRecordBatch  # kafka-python

    data = fill(batch).build(5, 1, 9)
    parsed = DefaultRecordBatch(data)
    assert parsed.validate_crc()
    found = [Record(r.timestamp, r.key, r.value, tuple(r.headers)) for r in parsed]
    assert found == batch
    assert (parsed.producer_id, parsed.producer_epoch, parsed.base_sequence) == (5, 1, 9)


def test_every_size_of_key_and_value_around_the_copies_and_varints():
    """The records alone are compared: the twin's CRC of megabytes takes seconds."""
    lengths = [*range(0, 70), *range(120, 136), *range(8180, 8200), 16383, 16384, 1_048_575, 1_048_576]
    for n in lengths:
        data = (bytes(range(256)) * (n // 256 + 1))[:n]
        batch = [Record(0, data, None), Record(-5, None, data), Record(3, b"", b"", (("x" * n, data),))]
        assert fill(batch, 4 * n + 400).records() == twin.encode_records(batch, 0)


def test_many_records_use_longer_offset_deltas():
    batch = [Record(10 * (i % 7), None, b"v") for i in range(20_000)]
    assert fill(batch).build() == twin.encode_batch(batch)


@settings(deadline=None)
@given(
    st.lists(records, max_size=3),
    st.integers(0, 200),
    st.sampled_from([0, 1, 5, 16, 17, 63, 64, 100, 8192]),
    st.sampled_from([-5, 0, 3, 2**40]),
    st.integers(0, 2000),
)
def test_rows_of_one_length_equal_the_twins(before, rows, width, later, size_missing):
    base = before[0].timestamp_ms if before else 1_700_000_000_000
    timestamp = min(base + later, 2**62)
    data = np.arange(rows * width * 2, dtype=np.uint32).astype(np.uint8).reshape(rows, width * 2)[:, :width]
    expected = [*before, *(Record(timestamp, None, row.tobytes()) for row in data)]
    whole = fill(expected).records()
    builder = fill(before, 61 + max(len(fill(before).records()), len(whole) - size_missing))
    count = builder.append_equal(timestamp, data)
    assert builder.count == len(before) + count
    assert builder.records() == fill(expected[: builder.count]).records() == whole[: len(builder.records())]
    if size_missing == 0:
        assert count == rows
    elif count < rows:
        room = len(whole) - size_missing - len(builder.records())
        assert len(twin.encode_record(expected[builder.count], base, builder.count)) > room
    if builder.count:
        assert builder.max_timestamp == max(r.timestamp_ms for r in expected[: builder.count])


def test_rows_of_one_length_go_on_where_the_offset_deltas_grow():
    rows = np.zeros((20_000, 3), np.uint8)
    builder = RecordBatchBuilder(1 << 21)
    for start in range(0, 20_000, 777):
        assert builder.append_equal(9, rows[start : start + 777]) == len(rows[start : start + 777])
    assert builder.build() == twin.encode_batch([Record(9, None, bytes(3))] * 20_000)


def test_the_memory_is_the_callers_and_is_not_left():
    guard = 64
    memory = bytearray(b"\xa5" * (guard + 200 + guard))
    builder = RecordBatchBuilder(memoryview(memory)[guard : guard + 200])
    for _ in range(3):
        builder.append(1, b"key", b"value" * 5, [("h", None)])
    with pytest.raises(BufferError):
        builder.append(1, b"key", b"value" * 50, [("h", None)])
    count = builder.count
    data = builder.build()
    assert builder.count == count == 3
    assert memory[:guard] == memory[-guard:] == b"\xa5" * guard
    assert memory[guard : guard + len(data)] == data
    assert len(twin.decode_batch(data).records) == count


def test_a_record_that_fits_exactly_is_taken():
    size = 61 + len(twin.encode_record(Record(0, b"k", b"v"), 0, 0))
    assert RecordBatchBuilder(size).append(0, b"k", b"v") == 0
    with pytest.raises(BufferError):
        RecordBatchBuilder(size - 1).append(0, b"k", b"v")


def test_a_refused_record_leaves_the_batch_as_it_was():
    builder = fill(GOLDEN_RECORDS)
    with pytest.raises(OverflowError):
        builder.append(-(2**63), b"k", b"v")
    with pytest.raises(TypeError):
        builder.append(0, "text", b"v")
    with pytest.raises(TypeError):
        builder.append(0, b"k", b"v", [("h", 5)])
    assert builder.build(7, 3, 0) == GOLDEN
    builder.clear()
    with pytest.raises(ValueError, match="at least one"):
        builder.build()
    with pytest.raises(ValueError, match="codec"):
        fill(GOLDEN_RECORDS).build(attributes=1)
    with pytest.raises(ValueError, match="61"):
        RecordBatchBuilder(60)


def test_every_change_of_a_byte_is_noticed():
    for at in range(16, len(GOLDEN)):
        for bit in range(8):
            changed = bytearray(GOLDEN)
            changed[at] ^= 1 << bit
            with pytest.raises(RecordFormatError):
                twin.decode_batch(bytes(changed))


@pytest.mark.parametrize(
    ("at", "form", "value", "message"),
    [
        (8, ">i", 71, "batchLength"),
        (16, ">b", 1, "magic"),
        (21, ">h", 2, "codec"),
        (23, ">i", 2, "lastOffsetDelta"),
        (35, ">q", 1_700_000_000_006, "maxTimestamp"),
        (57, ">i", 3, "lastOffsetDelta"),
    ],
)
def test_a_wrong_header_is_named(at, form, value, message):
    changed = bytearray(GOLDEN)
    struct.pack_into(form, changed, at, value)
    with pytest.raises(RecordFormatError, match=message):
        twin.decode_batch(refresh_crc(changed))


def test_a_cut_or_lengthened_batch_is_refused():
    for n in range(len(GOLDEN)):
        with pytest.raises(RecordFormatError):
            twin.decode_batch(GOLDEN[:n])
    with pytest.raises(RecordFormatError, match="batchLength"):
        twin.decode_batch(GOLDEN + b"\0")


def test_a_compressed_batch_is_the_header_over_the_compressed_records():
    data = twin.encode_batch(GOLDEN_RECORDS, attributes=1, compress=gzip.compress)
    seen = []

    def decompress(codec, payload):
        seen.append(codec)
        return gzip.decompress(payload)

    assert list(twin.decode_batch(data, decompress).records) == GOLDEN_RECORDS
    assert seen == [1]
