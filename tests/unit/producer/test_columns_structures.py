"""Tests arrays whose dtypes have no format in the buffer protocol: times in structures, and fields in any order."""

import gc
import weakref

import numpy as np
import pytest
from support.columns import column_of, refusal, values_of

from cyproducer.producer.producer import parse_arrays

TIMES = np.dtype([("id", "<i4"), ("at", "<M8[ns]"), ("took", ">m8[us]")])
DTYPES = {
    "times": TIMES,
    "aligned": np.dtype([("id", "i1"), ("at", "M8[s]")], align=True),
    "nested": np.dtype([("x", TIMES), ("y", [("z", "m8[D]"), ("s", "S3")], (2, 2))]),
    "title": np.dtype([(("a title", "a"), "M8[D]")]),
    "record": np.dtype((np.record, [("at", "M8[s]"), ("id", "i2")])),
    "no unit": np.dtype([("at", "M8"), ("took", "m8")]),
    "any order": np.dtype({"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [4, 1], "itemsize": 9}),
    "overlapping": np.dtype({"names": ["a", "b"], "formats": ["i4", "u1"], "offsets": [0, 2]}),
}


def rows_of(dtype, count=4):
    return np.arange(count * dtype.itemsize, dtype="u1").view(dtype)


def bytes_of(array):
    return [array[row : row + 1].tobytes() for row in range(len(array))]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_structures_are_all_of_the_element(dtype):
    rows = rows_of(dtype)
    raw = np.ascontiguousarray(rows).view(f"V{dtype.itemsize}")
    wanted = bytes_of(raw)
    fixed = rows[:]
    fixed.flags.writeable = False
    for each in (rows, fixed, rows.view(np.recarray)):
        assert values_of(each) == wanted
        assert column_of("key", keys=each, count=4) == wanted
    assert values_of(rows[::-1]) == wanted[::-1]
    assert values_of(rows[::2]) == wanted[::2]
    assert values_of(rows[:0]) == []
    assert values_of(np.broadcast_to(rows[:1], (3,))) == wanted[:1] * 3
    size = dtype.itemsize
    assert values_of((rows, [0, size, 3 * size])) == [wanted[0], wanted[1] + wanted[2]]
    assert column_of("key", keys=(fixed, [0, 1, size]), count=2) == [wanted[0][:1], wanted[0][1:]]


@pytest.mark.parametrize("kind", [kind for kind in DTYPES if kind != "no unit"])  # of which NumPy makes no masked array
def test_masked_structures(kind):
    dtype = DTYPES[kind]
    rows = np.ma.array(rows_of(dtype))
    wanted = bytes_of(np.ascontiguousarray(rows.data).view(f"V{dtype.itemsize}"))
    assert values_of(rows) == wanted
    rows[1] = np.ma.masked
    rows[3] = np.ma.masked
    wanted[1] = wanted[3] = None
    assert values_of(rows) == wanted
    assert column_of("key", keys=rows[::-1], count=4) == wanted[::-1]
    field = dtype.names[0]
    if len(dtype.names) > 1:
        rows.mask[field][0] = True
        assert refusal(ValueError, rows).startswith("values[0]: part of the record is masked")
    words = "the data of a (data, offsets) pair is a masked array; give its attribute data"
    assert words in refusal(TypeError, (rows, [0, 1]))


def test_some_fields_of_a_structure():
    rows = np.zeros(2, TIMES)
    rows["at"] = [1, 2]
    # NumPy makes a view, in which the other fields are still there.
    assert values_of(rows[["at"]]) == bytes_of(rows)
    assert values_of(rows["at"]) == [(1).to_bytes(8, "little"), (2).to_bytes(8, "little")]


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[us]", ">M8[D]"])
def test_times_as_the_data_of_a_pair(dtype):
    times = np.array([1, 2, 3], "i8").view(dtype)
    whole = times.tobytes()
    assert values_of((times, [0, 8, 20, 24])) == [whole[:8], whole[8:20], whole[20:]]


def test_structures_in_two_dimensions_and_none():
    for dtype in (TIMES, DTYPES["any order"]):
        assert refusal(TypeError, np.zeros((2, 2), dtype)).startswith("values: a 2-D array must be of uint8")
        assert refusal(ValueError, np.zeros((), dtype)).startswith("values: expected 1 dimension")
        assert "must be contiguous" in refusal(ValueError, (np.zeros(4, dtype)[::2], [0, 1]))
    assert "must be contiguous" in refusal(ValueError, (np.zeros(4, "M8[s]")[::2], [0, 1]))


def test_structures_with_times_and_objects():
    for dtype in ([("o", "O"), ("at", "M8[s]")], [("at", "M8[s]"), ("x", [("o", "O")])]):
        rows = np.zeros(2, dtype)
        assert "holds Python objects or pointers" in refusal(TypeError, rows)
        assert "holds Python objects or pointers" in refusal(TypeError, keys=(rows, [0, 1]))


def test_structures_are_not_integers():
    for argument in ("partition", "timestamps_ms"):
        assert "expected a 1-D array of integers" in refusal(TypeError, **{argument: np.zeros(3, [("at", "M8[s]")])})
    assert "expected a 1-D array of integers" in refusal(TypeError, (b"abc", np.zeros(2, [("at", "M8[s]")])))


def test_structures_are_kept_alive_and_released():
    rows = rows_of(TIMES)
    wanted, owner = bytes_of(rows), weakref.ref(rows)
    parsed = parse_arrays("t", rows, keys=rows)
    del rows
    gc.collect()
    assert [row[1:3] for row in parsed.to_list()] == [(row, row) for row in wanted]
    del parsed
    gc.collect()
    assert owner() is None
