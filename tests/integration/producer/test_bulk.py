"""Tests arrays and tables sent to a real Kafka and read with a foreign consumer: content, order, offsets."""

import time

import numpy as np
import pyarrow as pa
import pytest
from support.consumer import read_topic

from cyproducer import errors

PARTITIONS = 3


def read(kafka, topic, count):
    """Return {(partition, offset): (value, key, headers, timestamp)}."""
    got = read_topic(kafka.bootstrap_servers, topic, count)
    assert len(got) == count
    columns = zip(got.partition, got.offset, got.value, got.key, got.headers, got.timestamp, strict=True)
    return {(partition, offset): rest for partition, offset, *rest in columns}


def check(kafka, topic, metadata, values, keys=None):
    """Check that rows are where the result says, and in order in each partition; return what was read."""
    found = read(kafka, topic, len(values))
    partition, offset = metadata.partition.tolist(), metadata.offset.tolist()
    assert metadata.partition.dtype == np.int32
    assert metadata.offset.dtype == np.int64
    assert [found[place][0] for place in zip(partition, offset, strict=True)] == list(values)
    if keys is not None:
        assert [found[place][1] for place in zip(partition, offset, strict=True)] == list(keys)
    for each in set(partition):
        offsets = [o for p, o in zip(partition, offset, strict=True) if p == each]
        assert offsets == sorted(offsets)
    return found


def numbers(dtype, count=1_000):
    return (np.arange(count) % 100).astype(dtype)


STRUCTURED = np.dtype([("id", "<i4"), ("price", ">f8"), ("name", "S5")], align=True)
TEXTS = [f"line {number}" * (number % 7) for number in range(1_000)]
DATA = "".join(TEXTS).encode()
OFFSETS = np.cumsum([0] + [len(text) for text in TEXTS])

ARRAYS = {
    "S": np.array([b"%d" % number for number in range(1_000)], dtype="S8"),
    "V": np.frombuffer(bytes(range(256)) * 64, dtype="V16"),
    "structured": np.array([(n, n / 3, b"x" * (n % 5)) for n in range(1_000)], dtype=STRUCTURED),
    **{dtype: numbers(dtype) for dtype in ("i1", "<i4", ">i4", "<i8", ">u8", "<f4", ">f8", "?", "<c16", "M8[ns]")},
    "strided": numbers("<i8")[::3],
    "reversed": numbers(">i2")[::-1],
    "uint8 matrix": np.random.default_rng(1).integers(0, 256, (1_000, 24), dtype=np.uint8),
    "uint8 columns": np.random.default_rng(2).integers(0, 256, (24, 1_000), dtype=np.uint8).T,
}


def as_bytes(array):
    return [array[row : row + 1].tobytes() for row in range(len(array))]


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(kafka, topic, make_producer, name):
    array = ARRAYS[name].copy() if name not in ("strided", "reversed", "uint8 columns") else ARRAYS[name]
    array.flags.writeable = False
    metadata = make_producer().send_array(topic, array).result(30)
    assert metadata.topic == topic
    check(kafka, topic, metadata, as_bytes(array))


ROWS = [None if number % 5 == 0 else text.encode() for number, text in enumerate(TEXTS)]
COLUMNS = {
    "pair int32": ((DATA, OFFSETS.astype("i4")), [text.encode() for text in TEXTS]),
    "pair int64": ((bytearray(DATA), OFFSETS), [text.encode() for text in TEXTS]),
    "list": (ROWS, ROWS),
    "masked": (
        np.ma.masked_array(numbers("<i4"), mask=[number % 3 == 0 for number in range(1_000)]),
        [None if number % 3 == 0 else (number % 100).to_bytes(4, "little") for number in range(1_000)],
    ),
    "binary": (pa.array(ROWS, pa.binary()), ROWS),
    "large_string": (pa.array(ROWS, pa.binary()).cast(pa.large_string())[100:], ROWS[100:]),
    "string_view": (pa.array(ROWS, pa.binary()).cast(pa.string()).cast(pa.string_view()), ROWS),
    "fixed_size_binary": (pa.array([b"ab", None] * 500, pa.binary(2)), [b"ab", None] * 500),
    "chunks": (pa.chunked_array([ROWS[:1], ROWS[1:700], [], ROWS[700:]], pa.binary()), ROWS),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_as_values_and_as_keys(kafka, new_topic, make_producer, name):
    column, rows = COLUMNS[name]
    producer = make_producer()
    as_values, as_keys = new_topic(PARTITIONS), new_topic(PARTITIONS)
    first = producer.send_array(as_values, column)
    second = producer.send_array(as_keys, [b"v"] * len(rows), keys=column)
    check(kafka, as_values, first.result(30), rows)
    check(kafka, as_keys, second.result(30), [b"v"] * len(rows), rows)


def test_a_key_goes_where_send_puts_it(kafka, topic, make_producer):
    producer = make_producer()
    keys = [b"key-%d" % (number % 40) for number in range(400)]
    by_send = [producer.send(topic, b"", key=key) for key in keys[:40]]
    by_array = producer.send_array(topic, [b""] * 400, keys=keys).result(30)
    wanted = [future.result(30).partition for future in by_send] * 10
    assert by_array.partition.tolist() == wanted
    assert set(wanted) == set(range(PARTITIONS))


def test_partition_timestamps_and_headers(kafka, topic, make_producer):
    count = 600
    partitions = np.arange(count, dtype="i8") % PARTITIONS
    times = np.arange(count) * 1_000_999 + 1_700_000_000_000_000
    headers = [[("n", b"%d" % row), ("none", None)] if row % 2 else None for row in range(count)]
    values = [b"%d" % row for row in range(count)]
    metadata = (
        make_producer()
        .send_array(topic, values, partition=partitions, timestamps_ms=times.view("M8[us]"), headers=headers)
        .result(30)
    )
    found = check(kafka, topic, metadata, values)
    assert metadata.partition.tolist() == partitions.tolist()
    for row in range(count):
        _, key, got, timestamp = found[partitions[row], metadata.offset[row]]
        assert (key, got, timestamp) == (None, headers[row] or [], times[row] // 1_000)


def test_one_list_of_headers_and_now(kafka, topic, make_producer):
    before = int(time.time() * 1000) - 10
    metadata = make_producer().send_array(topic, [b"a", b"b"], partition=2, headers=[("k", b"v")]).result(30)
    found = check(kafka, topic, metadata, [b"a", b"b"])
    assert set(metadata.partition) == {2}
    for _, _, headers, timestamp in found.values():
        assert headers == [("k", b"v")]
        assert before <= timestamp <= time.time() * 1000


def test_a_million_rows(kafka, topic, make_producer):
    rows = np.arange(1_000_000, dtype=">u8")
    metadata = make_producer().send_array(topic, rows).result(60)
    got = read_topic(kafka.bootstrap_servers, topic, len(rows), timeout=60)
    assert len(got) == len(rows)
    read_back = np.frombuffer(b"".join(got.value), dtype=">u8")
    place = {p: np.full(np.sum(metadata.partition == p), -1, dtype="i8") for p in range(PARTITIONS)}
    for partition, offset, number in zip(got.partition, got.offset, read_back, strict=True):
        place[partition][offset] = number
    for partition in range(PARTITIONS):
        mine = metadata.partition == partition
        assert (metadata.offset[mine] == np.arange(mine.sum())).all()
        assert (place[partition] == rows[mine]).all()


def test_a_million_keyed_rows_over_many_partitions(kafka, new_topic, make_producer):
    name = new_topic(50)
    keys = np.random.default_rng(3).integers(0, 10_000, 1_000_000, dtype="u4")
    metadata = make_producer().send_array(name, np.arange(1_000_000, dtype="u4"), keys=keys).result(60)
    for partition in range(50):
        mine = metadata.partition == partition
        assert (metadata.offset[mine] == np.arange(mine.sum())).all()
    assert len(np.unique(keys.astype("i8") * 50 + metadata.partition)) == len(np.unique(keys))
    got = read_topic(kafka.bootstrap_servers, name, 1_000_000, timeout=60)
    where = np.array(got.partition, dtype="i8") << 32 | np.array(got.offset, dtype="i8")
    order = np.argsort(where)
    mine = np.argsort(metadata.partition.astype("i8") << 32 | metadata.offset)
    assert (np.frombuffer(b"".join(got.value), "u4")[order] == mine.astype("u4")).all()
    assert (np.frombuffer(b"".join(got.key), "u4")[order] == keys[mine]).all()


def test_rows_larger_than_a_batch_among_small_ones(kafka, topic, make_producer):
    rows = [bytes([row]) * (size * 1_000) for row, size in enumerate([1, 70, 2, 900, 3, 65, 64, 300, 1] * 6)]
    keys = [b"%d" % (row % 4) for row in range(len(rows))]
    metadata = make_producer().send_array(topic, rows, keys=keys, headers=[("h", b"x")]).result(30)
    found = check(kafka, topic, metadata, rows, keys)
    assert all(headers == [("h", b"x")] for _, _, headers, _ in found.values())


def test_table_with_every_column_over_several_topics(kafka, new_topic, make_producer):
    names = [new_topic(2), new_topic(3)]
    count = 5_000
    rows = range(count)
    table = pa.table(
        {
            "value": pa.array([b"v%d" % row for row in rows]),
            "key": pa.array([None if row % 3 == 0 else f"k{row % 11}" for row in rows]),
            "headers": pa.array(
                [None if row % 2 else [{"key": "row", "value": b"%d" % row}] for row in rows],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "partition": pa.array([1 if row % 7 == 0 else None for row in rows], pa.int32()),
            "timestamp": pa.array([1_700_000_000_000_123 + 1_000 * row for row in rows], pa.timestamp("us", "UTC")),
            "topic": pa.array([names[row % 5 == 0] for row in rows]),
        }
    )
    pieces = pa.Table.from_batches(
        table.slice(0, 3_000).to_batches(max_chunksize=700) + table.slice(3_000).to_batches()
    )
    metadata = make_producer().send_arrow(pieces).result(30)
    assert list(metadata.topic) == table["topic"].to_pylist()
    for number, name in enumerate(names):
        mine = [row for row in range(count) if (row % 5 == 0) == number]
        found = read(kafka, name, len(mine))
        for row in mine:
            value, key, headers, timestamp = found[metadata.partition[row], metadata.offset[row]]
            assert value == b"v%d" % row
            assert key == (None if row % 3 == 0 else b"k%d" % (row % 11))
            assert headers == ([] if row % 2 else [("row", b"%d" % row)])
            assert timestamp == 1_700_000_000_000 + row
            assert row % 7 or metadata.partition[row] == 1


def test_send_and_send_array_keep_their_order(kafka, topic, make_producer):
    producer = make_producer()
    for start in range(0, 3_000, 100):
        producer.send(topic, b"%d" % start, partition=0)
        producer.send_array(topic, [b"%d" % row for row in range(start + 1, start + 100)], partition=0)
    producer.flush(30)
    got = read_topic(kafka.bootstrap_servers, topic, 3_000)
    assert got.value == [b"%d" % row for row in range(3_000)]


def test_empty(make_producer, topic):
    producer = make_producer()
    for future in (
        producer.send_array(topic, []),
        producer.send_arrow(pa.table({"value": pa.array([], pa.binary())}), topic),
    ):
        assert future.done()
        metadata = future.result()
        assert (len(metadata.partition), len(metadata.offset)) == (0, 0)


def test_a_broker_that_refuses_some_rows(new_topic, make_producer):
    small = new_topic(1, configs={"max.message.bytes": "20000"})
    producer = make_producer()
    rows = [b"x"] * 100 + [bytes(70_000)]
    future = producer.send_array(small, rows)
    error = future.exception(30)
    assert isinstance(error, errors.RecordTooLargeError)
    assert "1 of 101 rows were not written" in str(error)
    assert future.failed()
    assert producer.send_array(small, rows[:100]).result(30).offset.tolist() == list(range(100, 200))


def test_wrong_partition_and_topic(topic, make_producer):
    assert make_producer().partitions_for(topic) == {0, 1, 2}  # the sender had to start and to ask for metadata first
    producer = make_producer(max_block_ms=500)
    producer._channel().attached(time.monotonic() + 30)
    with pytest.raises(errors.KafkaTimeoutError, match=f"Partition 7 of topic {topic} with partition count 3"):
        producer.send_array(topic, [b"a"], partition=7)
    with pytest.raises(errors.KafkaTimeoutError, match="Partition 3 of topic"):
        producer.send_array(topic, [b"a", b"b"], partition=[0, 3])
    with pytest.raises(errors.InvalidTopicError):
        producer.send_array("no spaces", [b"a"])
    assert producer.send_array(topic, [b"only this"]).result(30).offset.tolist() == [0]
