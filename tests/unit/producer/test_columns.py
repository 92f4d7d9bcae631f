"""Tests every array that `send_array` takes, read as rows, and of every wrong argument, with its message."""

import array
import ctypes
import gc
import subprocess
import sys
import weakref

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.columns import column_of, refusal, values_of

from cyproducer.producer.producer import parse_arrays

# ------------------------------------------------------------------ fixed width


@pytest.mark.parametrize(
    "dtype",
    [
        "i1", "<i2", ">i2", "<i4", ">i4", "<i8", ">i8", "u1", "<u4", ">u8", "<f2", "<f4", ">f4", "<f8", ">f8",
        "<c16", "?", "g",
    ],
)  # fmt: skip
def test_numbers_are_their_bytes_in_memory(dtype):
    numbers = np.array([0, 1, 3], dtype=dtype)
    assert values_of(numbers) == [numbers[row : row + 1].tobytes() for row in range(3)]


def test_s_keeps_its_full_width():
    assert values_of(np.array([b"a", b"bcd", b""], dtype="S3")) == [b"a\0\0", b"bcd", b"\0\0\0"]


def test_void_and_structured_are_all_of_the_element():
    digests = np.frombuffer(bytes(range(64)), dtype="V16")
    assert values_of(digests) == [bytes(range(start, start + 16)) for start in range(0, 64, 16)]
    for align in (False, True):
        dtype = np.dtype([("O", "<i2"), ("name", "S5"), ("z", ">f8"), ("inner", [("x", "u1", (3,))])], align=align)
        rows = np.zeros(4, dtype=dtype)
        rows["O"], rows["name"], rows["z"] = range(4), b"ab", 1.5
        assert values_of(rows) == [rows[row : row + 1].tobytes() for row in range(4)]


def test_datetime64_is_its_eight_bytes():
    times = np.array(["2026-01-01", "NaT"], dtype="M8[s]")
    assert values_of(times) == [times[:1].tobytes(), times[1:].tobytes()]


@pytest.mark.parametrize("select", [slice(None, None, 2), slice(None, None, -1), slice(5, 1, -3), slice(0, 0)])
def test_strides(select):
    numbers = np.arange(10, dtype=">i4")
    assert values_of(numbers[select]) == [element.tobytes() for element in numbers[select].reshape(-1, 1)]


def test_a_field_of_a_structured_array_is_a_strided_column():
    rows = np.zeros(3, dtype=[("a", "u1"), ("b", "<i4")])
    rows["b"] = [7, 8, 9]
    assert values_of(rows["b"]) == [b"\7\0\0\0", b"\x08\0\0\0", b"\x09\0\0\0"]


def test_broadcast_and_read_only():
    fixed = np.frombuffer(b"abcdef", dtype="S2")
    assert not fixed.flags.writeable
    assert values_of(fixed) == [b"ab", b"cd", b"ef"]
    assert values_of(np.broadcast_to(np.array([b"xy"]), (4,))) == [b"xy"] * 4


def test_other_buffers():
    assert values_of(array.array("h", [1, 2])) == [b"\1\0", b"\2\0"]
    assert values_of(memoryview(array.array("i", [5]))) == [b"\5\0\0\0"]
    assert values_of((ctypes.c_uint16 * 2)(1, 2)) == [b"\1\0", b"\2\0"]


def test_empty():
    for empty in (
        np.empty(0, "S4"),
        np.empty((0, 3), np.uint8),
        [],
        (),
        (b"", [0]),
        pa.array([], pa.binary()),
        pa.chunked_array([], pa.string()),
    ):
        assert values_of(empty) == []


# ------------------------------------------------------------------ two dimensions


def test_rows_of_uint8():
    matrix = np.arange(24, dtype=np.uint8).reshape(4, 6)
    for each in (
        matrix,
        matrix[::-1],
        matrix[::2],
        matrix[:, 2:5],
        matrix[:, ::2],
        matrix[:, ::-1],
        matrix.T,
        np.asfortranarray(matrix),
        matrix[:, :0],
        matrix[:, :1],
    ):
        assert values_of(each) == [row.tobytes() for row in each]


# ------------------------------------------------------------------ masks


def test_masked_rows_are_null():
    numbers = np.ma.masked_array(np.arange(4, dtype="u1"), mask=[0, 1, 0, 1])
    assert values_of(numbers) == [b"\0", None, b"\2", None]
    assert values_of(numbers[::-1]) == [None, b"\2", None, b"\0"]
    assert values_of(np.ma.masked_array([b"a", b"b"])) == [b"a", b"b"]
    assert values_of(np.ma.masked_array([b"a", b"b"], mask=True)) == [None, None]


def test_masked_matrix_and_structure():
    matrix = np.ma.masked_array(np.zeros((3, 2), np.uint8), mask=[[1, 1], [0, 0], [1, 1]])
    assert values_of(matrix) == [None, b"\0\0", None]
    matrix.mask[1, 0] = True
    assert "values[1]: part of the record is masked" in refusal(ValueError, matrix)
    rows = np.ma.zeros(2, dtype=[("a", "u1"), ("b", "u2")])
    rows[1] = np.ma.masked
    assert values_of(rows) == [b"\0\0\0", None]


def test_a_field_called_mask_is_no_mask():
    rows = np.rec.array([(1,), (0,)], dtype=[("mask", "u1")])
    assert values_of(rows) == [b"\1", b"\0"]


# ------------------------------------------------------------------ pairs and lists


@given(
    st.lists(st.binary(max_size=40)),
    st.sampled_from(["<i4", "<i8", ">i4", ">i8", "u2", "i8 strided", "list", "arrow"]),
)
def test_pairs(rows, kind):
    offsets = np.cumsum([3] + [len(row) for row in rows])
    if kind == "list":
        offsets = offsets.tolist()
    elif kind == "arrow":
        offsets = pa.chunked_array([offsets[:1], offsets[1:]])
    elif kind == "i8 strided":
        offsets = np.repeat(offsets, 3)[::3]
    else:
        offsets = offsets.astype(kind)
    data = b"xxx" + b"".join(rows) + b"yy"
    for buffer in (data, bytearray(data), np.frombuffer(data, np.uint8), pa.py_buffer(data)):
        assert values_of((buffer, offsets)) == rows


def test_list_of_bytes():
    rows = [b"", b"a", None, bytes(70_000)]
    assert values_of(rows) == rows
    assert values_of(tuple(rows)) == rows
    assert values_of((b"two", None)) == [b"two", None]
    assert values_of((b"two", b"rows")) == [b"two", b"rows"]
    assert values_of(list(np.array([b"a", b"bc"]))) == [b"a", b"bc"]


def test_keys():
    keys = np.ma.masked_array([1, 2, 3], mask=[0, 1, 0], dtype=">u2")
    assert column_of("key", keys=keys) == [b"\0\1", None, b"\0\3"]
    assert column_of("key") == [None] * 3
    assert column_of("key", keys=pa.array(["a", None, "c"])) == [b"a", None, b"c"]


# ------------------------------------------------------------------ what is held, what is imported


def test_buffers_are_released_after_use():
    numbers = np.arange(10)
    owner = weakref.ref(numbers)
    rows = parse_arrays("t", numbers)
    growing = bytearray(b"abc")
    pair = parse_arrays("t", (growing, [0, 3]))
    with pytest.raises(BufferError):
        growing.append(1)
    del numbers
    assert rows.to_list()[3][1] == (3).to_bytes(8, "little")
    del rows, pair
    growing.append(1)
    gc.collect()
    assert owner() is None


def test_reading_needs_neither_numpy_nor_pyarrow():
    program = (
        "import sys, array; from cyproducer.producer.producer import parse_arrays;"
        "assert len(parse_arrays('t', array.array('i', [1, 2])).to_list()) == 2;"
        "assert 'numpy' not in sys.modules and 'pyarrow' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ------------------------------------------------------------------ partition, timestamps, headers


def test_partition():
    assert column_of("partition") == [-1, -1, -1]
    assert column_of("partition", partition=2) == [2, 2, 2]
    assert column_of("partition", partition=np.int64(2)) == [2, 2, 2]
    for numbers in (
        [0, 5, 7],
        np.array([0, 5, 7], "i4"),
        np.array([0, 5, 7], ">u8"),
        np.array([0, 0, 5, 0, 7], "i1")[::2],
        pa.array([0, 5, 7], pa.int32()),
        pa.array([0, 5, 7], pa.int64()),
        array.array("i", [0, 5, 7]),
    ):
        assert column_of("partition", partition=numbers) == [0, 5, 7]
    for nulls in ([0, None, 7], pa.array([0, None, 7], pa.int32()), np.ma.masked_array([0, 5, 7], [0, 1, 0])):
        assert column_of("partition", partition=nulls) == [0, -1, 7]


@pytest.mark.parametrize(
    ("unit", "ticks"),
    [
        ("s", 1_700_000_000), ("ms", 1_700_000_000_999), ("us", 1_700_000_000_999_999),
        ("ns", 1_700_000_000_999_999_999), ("m", 28_333_333), ("D", 20_000), ("10us", 170_000_000_099_999),
    ],
)  # fmt: skip
def test_instants_are_floored_to_milliseconds(unit, ticks):
    times = np.array([0, ticks, np.iinfo("i8").min]).view(f"M8[{unit}]")
    wanted = [0, int(times[1].astype("M8[ms]").astype("i8")), -1]
    assert column_of("timestamp", timestamps_ms=times) == wanted
    assert column_of("timestamp", timestamps_ms=times.astype(times.dtype.newbyteorder(">"))) == wanted
    if unit in ("s", "ms", "us", "ns"):
        arrow = pa.array([0, ticks, None], pa.timestamp(unit, tz="Europe/Berlin"))
        assert column_of("timestamp", timestamps_ms=arrow) == wanted


def test_timestamps():
    assert column_of("timestamp") == [-1] * 3
    assert column_of("timestamp", timestamps_ms=5) == [5] * 3
    assert column_of("timestamp", timestamps_ms=[5, None, 2**62]) == [5, -1, 2**62]
    assert column_of("timestamp", timestamps_ms=pa.array([5, None, 7])) == [5, -1, 7]


def test_headers():
    one = b"\x02\x02a\x04bc"
    assert column_of("headers") == [None] * 3
    assert column_of("headers", headers=[]) == [None] * 3
    assert column_of("headers", headers=[("a", b"bc")]) == [one] * 3
    assert column_of("headers", headers=[[("a", b"bc")], None, [("ä", None), ("", b"")]]) == [
        one,
        b"\0",
        b"\x04\x04\xc3\xa4\x01\x00\x00",
    ]


# ------------------------------------------------------------------ wrong arguments


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        (None, TypeError, "values: expected an array, got None"),
        (b"abc", TypeError, "values: one bytes is not an array of records"),
        ("abc", TypeError, "values: one str is not an array of records"),
        (5, TypeError, "values: expected a 1-D array"),
        ([b"a", "b"], TypeError, "values[1]: expected bytes or None, got str"),
        ([b"a", bytearray(b"b")], TypeError, "values[1]: expected bytes or None, got bytearray"),
        (
            np.array([b"a", None], dtype=object),
            TypeError,
            "numpy.ndarray of dtype object and shape (2,) holds Python objects",
        ),
        (np.zeros(2, dtype=[("a", object)]), TypeError, "holds Python objects"),
        (np.array(["a"]), TypeError, "of dtype <U1 and shape (1,) holds text"),
        (np.array(b"a"), ValueError, "expected 1 dimension, or 2 of uint8, got 0"),
        (
            np.zeros((2, 2, 2), np.uint8),
            ValueError,
            "got 3: numpy.ndarray of dtype uint8 and shape (2, 2, 2)",
        ),
        (np.zeros((2, 2), np.int32), TypeError, "a 2-D array must be of uint8 (one row a record)"),
        ((b"abc", []), ValueError, "offsets must have one element more than there are rows"),
        ((b"abc", [0, 2, 1]), ValueError, "values offsets[2]: offsets must ascend"),
        (
            (b"abc", [0, 4]),
            ValueError,
            "values offsets[1]: offsets must ascend, without null, from 0 or more to at most the 3 bytes",
        ),
        ((b"abc", [-1, 2]), ValueError, "values offsets[0]"),
        ((b"abc", [0, None]), ValueError, "values offsets[1]"),
        (
            (b"abc", np.array([0, 1.5])),
            TypeError,
            "or an Arrow array of integers, got numpy.ndarray of dtype float64",
        ),
        (
            (b"abc", np.array([0, 1], "M8[s]")),
            TypeError,
            "values offsets: expected integers, got dtype datetime64[s]",
        ),
        (("abc", [0, 1]), TypeError, "the data of a (data, offsets) pair must be a buffer of bytes, got str"),
        ((np.zeros(9, np.uint8)[::2], [0, 1]), ValueError, "must be contiguous"),
        (pa.array([1, 2]), TypeError, "values: expected a binary or string type"),
        (pa.array([1.5]), TypeError, "values: Arrow float64 cannot be read here"),
        (pa.array([[b"a"]]), TypeError, "values: Arrow list cannot be read here"),
    ],
)
def test_wrong_values(values, kind, words):
    assert words in refusal(kind, values)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"keys": [b"a"]}, ValueError, "keys: 1 rows (bytes), but there are 3 values"),
        ({"keys": np.zeros(4)}, ValueError, "keys: 4 rows (dtype float64), but there are 3 values"),
        ({"partition": -1}, ValueError, "partition: -1 is not from 0 to 2147483647"),
        ({"partition": True}, TypeError, "partition: expected int, got bool"),
        ({"partition": "1"}, TypeError, "partition: expected a 1-D array of integers, a list of int and None"),
        ({"partition": 1.5}, TypeError, "partition: expected a 1-D array"),
        ({"partition": [0, 1]}, ValueError, "partition: 2 rows (int), but there are 3 values"),
        ({"partition": np.array([0, -3, 1])}, ValueError, "partition[1]: -3 is not from 0 to 2147483647"),
        ({"partition": np.array([0, 1, 2**31])}, ValueError, "partition[2]: 2147483648 is not"),
        ({"partition": np.array([0, 1, 2**63], "u8")}, ValueError, "partition[2]: the number does not fit"),
        ({"partition": [0, 1, 2**64]}, ValueError, "partition[2]: 18446744073709551616 does not fit"),
        ({"partition": [0, 1, "x"]}, TypeError, "partition[2]: expected int or None, got str"),
        ({"partition": np.zeros(3)}, TypeError, "partition: expected a 1-D array of integers"),
        (
            {"partition": np.array([1, 2, 3], "M8[s]")},
            TypeError,
            "partition: expected integers, got dtype datetime64[s]",
        ),
        ({"timestamps_ms": -5}, ValueError, "timestamps_ms: -5 is not from 0"),
        ({"timestamps_ms": [1, 2, -5]}, ValueError, "timestamps_ms[2]: -5 (ms since 1970) is not a valid timestamp"),
        ({"timestamps_ms": np.array([1, 2, 2**62], "M8[s]")}, ValueError, "timestamps_ms[2]"),
        (
            {"timestamps_ms": np.array([1, 2, 3], "M8[Y]")},
            TypeError,
            "timestamps_ms: timestamps in units of 'Y' cannot be read",
        ),
        (
            {"timestamps_ms": pa.array([1.5] * 3)},
            TypeError,
            "timestamps_ms: Arrow float64 cannot be read here",
        ),
        ({"headers": {"a": 1}}, TypeError, "headers[0] ('a'): the value must be bytes, str or None, not int"),
        (
            {"headers": [[(b"a", b"b")], None, None]},
            TypeError,
            "headers[0][0]: the key must be a str, not bytes",
        ),
        ({"headers": [[("a", b"b")]]}, ValueError, "headers: 1 rows"),
        (
            {"headers": pa.array([1, 2, 3])},
            TypeError,
            "headers: expected list<struct<key: string, value: binary>>, got Arrow int64",
        ),
    ],
)
def test_wrong_arguments(arguments, kind, words):
    assert words in refusal(kind, **arguments)


@pytest.mark.parametrize("value", [bytearray(b"abc"), memoryview(b"abc"), memoryview(bytearray(b"xabc"))[1:]])
def test_a_header_value_may_be_a_buffer_as_in_send(value):
    rows = parse_arrays("t", [b"v"], headers=[("h", value)])
    assert rows.to_list()[0][3] == parse_arrays("t", [b"v"], headers=[("h", b"abc")]).to_list()[0][3]
