"""Tests that offsets and views which lead astray are refused, and that what was checked is what is read.

Other threads can change the arrays of a call at any time. Here they change after they were taken, so that a number that
is read again is a wrong one.
"""

import numpy as np
import pyarrow as pa
import pytest
from support.arrow_structures import Foreign

from cyproducer.producer.producer import parse_arrays, parse_table

ROWS = [b"first", None, b"", b"a value of more than twelve bytes", b"z"]
PAIR = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
LISTS = {
    "list": (pa.list_(PAIR), "i4"),
    "large_list": (pa.large_list(PAIR), "i8"),
    "map": (pa.map_(pa.string(), pa.binary()), "i4"),
}


def message(call, *arguments, **named):
    with pytest.raises(ValueError) as caught:
        call(*arguments, **named)
    return str(caught.value)


def numbers(array):
    """Return the memory of an array's copy, which can be changed, and an Arrow buffer of it."""
    memory = np.array(array)
    return memory, pa.py_buffer(memory)


def with_offsets(kind, offsets, *data, children=()):
    """Return an Arrow array with any offsets: pyarrow checks the first and the last of an array when it is made."""
    memory, buffer = numbers(np.zeros_like(offsets))
    array = pa.Array.from_buffers(kind, len(offsets) - 1, [None, buffer, *map(pa.py_buffer, data)], children=children)
    memory[:] = offsets
    return array


# ------------------------------------------------------------------ what leads astray


@pytest.mark.parametrize("kind", LISTS)
@pytest.mark.parametrize(
    ("offsets", "row"),
    [
        ([0, 10, 0, 10, 0, 10], 1),
        ([0, 4, 3, 5, 6, 7], 1),
        ([-1, 0, 1, 2, 3, 4], 0),
        ([0, 1, 2, 3, 4, 11], 4),
        ([0, 1, 2, 3, 2**31 - 1, 2], 3),
        ([11, 11, 11, 11, 11, 11], 0),
    ],
)
def test_lists_of_headers(kind, offsets, row):
    arrow_type, dtype = LISTS[kind]
    elements = pa.array([{"key": "k", "value": b"v" * 10_000}] * 10, PAIR)
    headers = with_offsets(arrow_type, np.array(offsets, dtype), children=[elements])
    words = f"the Arrow {kind} array is malformed: its offsets must ascend from 0 or more to at most 10, the number of"
    assert message(parse_arrays, "t", [b"x"] * 5, headers=headers).startswith(f"headers[{row}]: {words}")
    whole = pa.array([[("k", b"v")]] * 2, arrow_type)
    chunks = pa.chunked_array([whole, headers])
    assert f"headers[{row + 2}]: {words}" in message(parse_arrays, "t", [b"x"] * 7, headers=chunks)


@pytest.mark.parametrize(("kind", "dtype"), [(pa.binary(), "i4"), (pa.string(), "i4"), (pa.large_binary(), "i8")])
@pytest.mark.parametrize(
    ("offsets", "row"), [([0, 3, 2, 4], 1), ([-1, 0, 1, 2], 0), ([5, 4, 4, 4], 0), ([0, 0, 2**31 - 1, 0], 2)]
)
def test_columns_of_bytes(kind, dtype, offsets, row):
    column = with_offsets(kind, np.array(offsets, dtype), b"abcdef")
    chunks = pa.chunked_array([pa.array([b"a"] * 4, kind), column])
    words = f"the Arrow {kind} array is malformed: its offsets must ascend from 0 or more"
    assert message(parse_arrays, "t", column) == f"values[{row}]: {words}"
    assert message(parse_arrays, "t", [b"v"] * 7, keys=chunks) == f"keys[{row + 4}]: {words}"


def test_offsets_that_no_process_can_have():
    column = with_offsets(pa.large_binary(), np.array([0, 2**62, 2**62]), b"abcdef")
    assert message(parse_arrays, "t", column).startswith("values[0]: the Arrow large_binary array is malformed")


def test_a_long_column_that_descends_once():
    """Offsets are checked in blocks."""
    for width in ("i4", "i8"):
        for place in (1, 1_023, 1_024, 1_025, 2_047, 2_048, 4_999):
            offsets = np.arange(5_001, dtype=width) + 5
            offsets[place] = offsets[place - 1] - 1
            assert message(parse_arrays, "t", (bytes(6_000), offsets)).startswith(f"values offsets[{place}]: ")
            offsets[place] = 2**31 - 1
            assert message(parse_arrays, "t", (bytes(6_000), offsets)).startswith(f"values offsets[{place}]: ")


@pytest.mark.parametrize(
    "view",
    [
        (-1, 0, 0, 0), (20, 0, 1, 0), (20, 0, -1, 0), (20, 0, 0, 15), (20, 0, 0, -1), (2**31 - 1, 0, 0, 0),
        (20, 0, 0, 2**31 - 1), (-(2**31), 0, 0, 0),
    ],
)  # fmt: skip
def test_views(view):
    views = np.array([[1, 0x61, 0, 0], view], "i4")
    buffers = [None, pa.py_buffer(views.tobytes()), pa.py_buffer(bytes(34))]
    column = pa.Array.from_buffers(pa.binary_view(), 2, buffers)
    assert "values[1]: the Arrow binary_view array is malformed: the view" in message(parse_arrays, "t", column)
    hidden = pa.Array.from_buffers(pa.binary_view(), 2, [pa.py_buffer(b"\1"), *buffers[1:]])
    assert [row[1] for row in parse_arrays("t", hidden).to_list()] == [b"a", None]


def test_data_that_are_missing():
    for kind, rows in ((pa.binary(), [b"a"]), (pa.large_string(), ["b"])):
        foreign = Foreign(pa.array(rows, kind))
        foreign.array.buffers[2] = None
        assert "its data are missing" in message(parse_arrays, "t", foreign)
        foreign = Foreign(pa.array([rows[0][:0], None], kind))
        foreign.array.buffers[2] = None
        assert [row[1] for row in parse_arrays("t", foreign).to_list()] == [b"", None]
    for view, words in (
        (1, "its data or offsets are missing"),
        (2, "leads out of its buffer"),
        (3, "the sizes of its"),
    ):
        foreign = Foreign(pa.array(["more than twelve bytes"], pa.string_view()))
        foreign.array.buffers[view] = None
        assert words in message(parse_arrays, "t", foreign)
    lists = Foreign(pa.array([[("a", b"b")]], LISTS["map"][0]))
    lists.array.buffers[1] = None
    assert "its offsets are missing" in message(parse_arrays, "t", [b"v"], headers=lists)


def test_only_the_elements_of_the_lists_are_read():
    """A slice of a column has the elements of the whole column."""
    offsets, buffer = numbers(np.zeros(5, "i4"))
    keys = pa.Array.from_buffers(pa.string(), 4, [None, buffer, pa.py_buffer(b"ab")])
    elements = pa.Array.from_buffers(PAIR, 4, [None], children=[keys, pa.array([b"1", b"2", b"3", b"4"])])
    lists = pa.ListArray.from_arrays(pa.array([1, 2, 3], pa.int32()), elements)
    offsets[:] = [9, 0, 1, 2, -5]
    rows = parse_arrays("t", [b"v", b"w"], headers=lists).to_list()
    assert [row[3] for row in rows] == [b"\x02\x02a\x022", b"\x02\x02b\x023"]


# ------------------------------------------------------------------ what changes after it was taken


def spoil(*arrays):
    for array in arrays:
        array.view("u1")[:] = 0xA5


@pytest.mark.parametrize("dtype", ["i4", "i8", ">i8", "u2", "u8"])
def test_offsets_of_a_pair(dtype):
    offsets = np.array([0, 2, 2, 5], dtype)
    rows = parse_arrays("t", (b"abcde", offsets), keys=(bytearray(b"xyzuv"), offsets))
    spoil(offsets)
    assert [row[1:3] for row in rows.to_list()] == [(b"ab", b"xy"), (b"", b""), (b"cde", b"zuv")]
    whole, buffer = numbers(np.array([0, 2, 2, 5], "i8"))
    arrow = pa.Array.from_buffers(pa.int64(), 4, [None, buffer])
    rows = parse_arrays("t", (b"abcde", arrow))
    spoil(whole)
    assert [row[1] for row in rows.to_list()] == [b"ab", b"", b"cde"]


@pytest.mark.parametrize(
    "kind", [pa.binary(), pa.large_binary(), pa.binary_view(), pa.string_view(), pa.large_string()], ids=str
)
def test_offsets_views_and_bitmaps_of_arrow(kind):
    source = pa.array(ROWS, pa.binary()).cast(kind)
    taken = [numbers(np.frombuffer(buffer, "u1")) for buffer in source.buffers()[:2]]
    column = pa.Array.from_buffers(kind, len(ROWS), [taken[0][1], taken[1][1], *source.buffers()[2:]])
    rows = parse_arrays("t", column, keys=column)
    sliced = parse_arrays("t", column[1:])
    taken[0][0][:] = 0xFF
    assert [row[1] for row in rows.to_list()] == ROWS
    if kind not in (pa.binary_view(), pa.string_view()):  # these hold short values
        spoil(taken[1][0])
    assert [row[1] for row in rows.to_list()] == ROWS
    assert [row[1] for row in sliced.to_list()] == ROWS[1:]


def test_views_that_change_afterwards():
    source = pa.array([b"a value of more than twelve bytes"] * 3, pa.binary_view())
    views, buffer = numbers(np.frombuffer(source.buffers()[1], "u1"))
    rows = parse_arrays("t", pa.Array.from_buffers(pa.binary_view(), 3, [None, buffer, source.buffers()[2]]))
    spoil(views)
    assert [row[1] for row in rows.to_list()] == [b"a value of more than twelve bytes"] * 3


def test_masks_partitions_and_timestamps():
    values = np.ma.masked_array(np.arange(3, dtype="u1"), mask=[0, 1, 0])
    partition, times = np.array([0, 1, 2], "i4"), np.array([5, 6, 7], "M8[us]")
    arrow, buffer = numbers(np.array([1, 2, 3], "i8"))
    keys = np.ma.masked_array(np.arange(3, dtype="u1"), mask=[1, 0, 0])
    rows = parse_arrays("t", values, keys=keys, partition=partition, timestamps_ms=times)
    table = pa.table({"value": ROWS[:3], "partition": pa.Array.from_buffers(pa.int64(), 3, [None, buffer])})
    others = parse_table(table, "t")
    values.mask[:], keys.mask[:] = [1, 0, 1], False
    spoil(partition, times, arrow)
    assert [row[1] for row in rows.to_list()] == [b"\0", None, b"\2"]
    assert [row[2] for row in rows.to_list()] == [None, b"\1", b"\2"]
    assert [row[4:] for row in rows.to_list()] == [(0, 0), (1, 0), (2, 0)]
    assert [row[4] for row in others.to_list()] == [1, 2, 3]


def test_names_of_topics():
    names, buffer = numbers(np.frombuffer(b"alphabeta", "u1"))
    offsets, places = numbers(np.array([0, 5, 9, 9], "i4"))
    topics = pa.Array.from_buffers(pa.string(), 2, [None, places, buffer])
    rows = parse_table(pa.table({"value": [b"a", b"b"], "topic": topics}))
    spoil(names, offsets)
    assert [row[0] for row in rows.to_list()] == ["alpha", "beta"]


def test_arguments_that_change_others_while_they_are_read():
    """Reading an argument runs the program's code, which can change those that were read before it and after it."""
    values, partition, data = [b"a", b"b"], [0, 1], bytearray(b"abcd")

    class Number:
        def __index__(self):
            values.clear()
            partition.clear()
            with pytest.raises(BufferError):
                data.clear()
            return 1

    partition.insert(0, Number())
    rows = parse_arrays("t", (values := [*values, b"c"]), keys=(data, [0, 1, 2, 4]), partition=partition)
    assert [row[1:3] for row in rows.to_list()] == [(b"a", b"a"), (b"b", b"b"), (b"c", b"cd")]
    assert [row[4] for row in rows.to_list()] == [1, 0, 1]
    values[:], partition[:] = [b"a", b"b", b"c"], [0, Number(), 2]
    rows = parse_arrays("t", values, partition=partition)
    assert [row[1] for row in rows.to_list()] == [b"a", b"b", b"c"]
    assert [row[4] for row in rows.to_list()] == [0, 1, 2]
