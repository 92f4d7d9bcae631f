"""Tests what `send_array` takes as bytes, integers and times: never addresses, durations or numbers that mean null."""

import ctypes

import numpy as np
import pyarrow as pa
import pytest
from support.columns import column_of, refusal, values_of

from cyproducer.producer.producer import parse_arrays, parse_table

LEAST = -(2**63)

# ------------------------------------------------------------------ addresses

OBJECTS = {
    "object array": np.array([b"first", b"second"], object),
    "structured": np.zeros(2, [("a", "i4"), ("b", "O")]),
    "view": memoryview(np.zeros(2, "O")),
    "structured view": memoryview(np.zeros(2, [("a", "O")])),
    "nested view": memoryview(np.zeros(2, [("a", [("b", "i8"), ("c", "O", (2,))])])),
    "py_object": (ctypes.py_object * 2)(b"a", b"b"),
    "c_char_p": (ctypes.c_char_p * 2)(b"a", b"b"),
    "c_wchar_p": (ctypes.c_wchar_p * 2)("a", "b"),
    "c_void_p": (ctypes.c_void_p * 2)(1, 2),
    "pointers": (ctypes.POINTER(ctypes.c_int) * 2)(),
    "functions": (ctypes.CFUNCTYPE(None) * 2)(),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_addresses_are_not_sent(kind):
    data = OBJECTS[kind]
    assert "holds Python objects or pointers" in refusal(TypeError, data)
    assert "values: " in refusal(TypeError, (data, [0, 8]))
    assert "keys: " in refusal(TypeError, keys=(data, [0, 8, 8, 16]))
    assert "holds Python objects or pointers" in refusal(TypeError, (data, [0, 8]))


def test_names_of_fields_are_no_types():
    rows = np.zeros(2, [("O", "i4"), ("P&X", "c16")])
    assert values_of(rows) == [bytes(20)] * 2
    assert values_of((memoryview(rows), [0, 20])) == [bytes(20)]


def test_masked_data_of_a_pair():
    data = np.ma.masked_array(np.zeros(4, "u1"), mask=[0, 1, 0, 0])
    assert "values: the data of a (data, offsets) pair is a masked array" in refusal(TypeError, (data, [0, 4]))


def test_masks_of_other_shapes():
    """A subclass can have any attribute `mask`."""

    class Other(np.ma.MaskedArray):
        mask = np.zeros(2, bool)

    array = np.zeros(3, "u1").view(Other)
    for wrong in (np.zeros(2, bool), np.zeros((1, 3), bool), np.zeros((3, 1, 1), bool), np.zeros(0, bool)):
        Other.mask = wrong
        assert "keys: the mask is numpy.ndarray of dtype bool and shape" in refusal(ValueError, keys=array)
    Other.mask = np.array([0, 1, 0], bool)
    assert column_of("key", keys=array) == [b"\0", None, b"\0"]


# ------------------------------------------------------------------ integers and times


@pytest.mark.parametrize("argument", ["partition", "timestamps_ms"])
@pytest.mark.parametrize(
    ("number", "words"),
    [
        (np.array([1, 2, 3], "m8[s]"), "of dtype timedelta64[s]"),
        (np.array([1, 2, 3], "m8"), "of dtype timedelta64"),
        ([1, np.timedelta64(1, "s"), 2], "[1]: expected int or None, got timedelta64"),
        ([np.datetime64(1, "s"), 1, 2], "[0]: expected int or None, got datetime64"),
        ([1, np.bool_(True), 2], "[1]: expected int or None, got bool"),
        ([1, 2, np.ma.masked], "[2]: expected int or None, got numpy.ma.core.MaskedConstant"),
        ([1, 2, np.array([1, 2])], "[2]: expected int or None, got numpy.ndarray"),
        (np.array([True, False, True]), "of dtype bool"),
        (np.array(1.5), "expected int, got numpy.ndarray of dtype float64 and shape ()"),
        (np.ma.masked, "expected int, got numpy.ma.core.MaskedConstant"),
        (np.ma.array(1, mask=True), "expected int, got numpy.ma"),
        (np.array(True), "expected int, got numpy.ndarray of dtype bool and shape ()"),
        (np.array(1, "m8[s]"), "expected int, got numpy.ndarray of dtype timedelta64[s] and shape ()"),
        (pa.array([1, 2, 3], pa.duration("s")), "Arrow type of format 'tDs' cannot be read here"),
        (pa.array([True, None, False]), "Arrow bool cannot be read here"),
        (pa.array([b"a", b"b", b"c"]), "expected integers, got Arrow binary"),
        (pa.array(["1", "2", "3"]).dictionary_encode(), "expected integers, got Arrow dictionary of string"),
    ],
    ids=str,
)
def test_what_is_no_integer(argument, number, words):
    message = refusal(TypeError, **{argument: number})
    assert message.startswith(argument)
    assert words in message


def test_a_scalar_of_another_type():
    for number in (np.timedelta64(1, "s"), np.datetime64(1, "s")):
        assert refusal(ValueError, partition=number).startswith("partition: expected 1 dimension")
    assert column_of("partition", partition=np.array(2)) == [2] * 3
    assert column_of("partition", partition=np.ma.array(2, mask=False)) == [2] * 3


def test_offsets_that_are_no_integers():
    for offsets in (np.array([0, 1], "m8[s]"), np.array([0, 1], "M8[s]"), np.array([False, True]), np.zeros(2)):
        assert refusal(TypeError, (b"abc", offsets)).startswith("values offsets: expected")
    for offsets in (np.array([0, 2**63], "u8"), [0, 2**64]):
        assert refusal(ValueError, (b"abc", offsets)).startswith("values offsets[1]: ")
    for offsets in ([0, LEAST], np.array([0, LEAST]), np.array([0, -1], ">i8"), np.ma.array([0, 1], mask=[0, 1])):
        assert "values offsets[1]: offsets must ascend, without null" in refusal(ValueError, (b"abc", offsets))
    assert "values offsets[0]: offsets must ascend" in refusal(ValueError, (b"abc", pa.nulls(2)))


@pytest.mark.parametrize("number", [LEAST, LEAST + 1, -1, -2])
def test_negative_numbers_are_not_null(number):
    for source in ([0, number, 1], np.array([0, number, 1]), np.array([0, number, 1], ">i8"), pa.array([0, number, 1])):
        assert f"partition[1]: {number} is not from 0 to" in refusal(ValueError, partition=source)
        words = f"timestamps_ms[1]: {number} (ms since 1970) is not a valid timestamp"
        assert words in refusal(ValueError, timestamps_ms=source)
        table = {"value": [b"v"] * 3, "partition": pa.array([0, number, 1])}
        with pytest.raises(ValueError, match=rf"^column 'partition'\[1\]: {number} is not from 0 to 2147483647$"):
            parse_table(pa.table(table), "t")
    for unit in ("s", "ms", "us", "ns"):
        times = pa.array([0, number, 1], pa.timestamp(unit))
        words = f"timestamps_ms[1]: {number} ({unit} since 1970) is not a valid"
        assert words in refusal(ValueError, timestamps_ms=times)
    times = np.array([0, number, 1]).view("M8[us]")
    if number == LEAST:
        assert column_of("timestamp", timestamps_ms=times) == [0, -1, 0]
    else:
        assert f"{number} (us since 1970) is not a valid timestamp; Kafka" in refusal(ValueError, timestamps_ms=times)


@pytest.mark.parametrize("unit", ["W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "7s", "10us"])
def test_the_largest_time_of_each_unit(unit):
    digits = unit.rstrip("WDhmsunpfa")
    milliseconds = {"W": 604_800_000, "D": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000}
    scale = milliseconds.get(unit.removeprefix(digits), 1) * int(digits or 1)
    below = {"us": 10**3, "ns": 10**6, "ps": 10**9, "fs": 10**12, "as": 10**15}.get(unit.removeprefix(digits), 1)
    most = (2**63 - 1) // scale
    times = np.array([0, most, LEAST]).view(f"M8[{unit}]")
    assert column_of("timestamp", timestamps_ms=times) == [0, most * scale // below, -1]
    if most < 2**63 - 1:
        message = refusal(ValueError, timestamps_ms=np.array([0, most + 1, 0]).view(f"M8[{unit}]"))
        words = f"{most + 1} ({unit} since 1970) is not a valid timestamp; the largest is {most}"
        assert message == f"timestamps_ms[1]: {words}"


@pytest.mark.parametrize("unit", ["Y", "M", "5Y", "generic"])
def test_units_without_a_length(unit):
    times = np.array([0, 1, 2]).view("M8" if unit == "generic" else f"M8[{unit}]")
    assert "cannot be read; cast them to 'ms'" in refusal(TypeError, timestamps_ms=times)


# ------------------------------------------------------------------ keys of headers


@pytest.mark.parametrize("key", [b"\xff\xfe", b"a\x80", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"])
def test_keys_of_headers_are_utf8(key):
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(len(key))):
        pair = pa.struct([("key", kind), ("value", pa.binary())])
        headers = pa.array([[], [{"key": key, "value": b"1"}], []], pa.list_(pair))
        assert refusal(ValueError, headers=headers).startswith("headers[1]: the key of a header is not valid UTF-8: ")
    as_text = pa.Array.from_buffers(pa.string(), 1, pa.array([key]).buffers())
    kind = pa.struct([("key", pa.string()), ("value", pa.string())])
    pairs = pa.Array.from_buffers(kind, 1, [None], children=[as_text] * 2)
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 1], pa.int32()), pairs)
    assert refusal(ValueError, headers=lists).startswith("headers[0]: the key of a header is not valid UTF-8: ")
    good = pa.array([[("ä€😀".encode(), key)]] * 3, pa.map_(pa.binary(), pa.binary()))
    assert [key in section for section in column_of("headers", headers=good)] == [True] * 3


def test_parse_arrays_takes_bytes_of_objects_in_lists():
    assert [row[1] for row in parse_arrays("t", list(OBJECTS["object array"])).to_list()] == [b"first", b"second"]
