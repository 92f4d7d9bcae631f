"""Draws columns of bytes, numbers and headers in every form that `send_array` takes, and the rows they stand for."""

import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

Rows = list[bytes | None]
PAIR = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
BINARY = (pa.binary(), pa.large_binary(), pa.binary_view(), pa.string(), pa.large_string(), pa.string_view())
LISTS = {"list": pa.list_, "large": pa.large_list, "view": pa.list_view, "large view": pa.large_list_view}
INTEGERS = ("i1", "<i2", ">i4", "<i8", ">i8", "u1", ">u2", "u4", "<u8", ">u8")
FIXED = ("i1", ">i4", "<f8", "?", "c16", "S3", "V7", "M8[s]", "m8[us]")
STRUCTURES: tuple[Any, ...] = (
    [("O", "i2"), ("b", "S5")],
    [("a", "M8[ns]"), ("b", "i1")],
    [("a", [("x", ">m8[s]"), ("y", "S1")]), ("b", "?")],
    {"names": ["a", "b"], "formats": ["i4", "i2"], "offsets": [2, 0]},
)
UNITS = {"s": 1_000, "ms": 1, "us": -1_000, "ns": -1_000_000}


def draw_rows(draw: random.Random, count: int, *, text: bool = False, nulls: bool = True) -> Rows:
    """Return values of all sizes, some of which are null."""
    sizes = draw.choice([(0, 3), (0, 20), (10, 200), (0, 3_000)])
    rows: Rows = []
    for _ in range(count):
        size = draw.randint(*sizes)
        rows.append(bytes(draw.choices(b"abcdef", k=size)) if text else draw.randbytes(size))
        if nulls and draw.random() < 0.2:
            rows[-1] = None
    return rows


# ------------------------------------------------------------------ bytes


def as_list(draw: random.Random, count: int) -> tuple[Any, Rows]:
    rows = draw_rows(draw, count)
    return (list(rows) if count == 2 or draw.random() < 0.5 else tuple(rows)), rows


def as_fixed(draw: random.Random, count: int) -> tuple[Any, Rows]:
    """Elements of one width: with gaps, backwards, masked, read-only."""
    dtype = np.dtype(draw.choice([*FIXED, *STRUCTURES]))
    step = draw.choice([1, 1, 2, 3, -1, -2])
    whole = np.frombuffer(
        bytearray(draw.randbytes(count * abs(step) * dtype.itemsize)), np.dtype(("V", dtype.itemsize))
    )
    part = whole[::step]
    rows: Rows = [part[row : row + 1].tobytes() for row in range(count)]
    array = whole.view(dtype)[::step]
    if draw.random() < 0.3:
        mask = [draw.random() < 0.3 for _ in range(count)]
        array = np.ma.masked_array(
            array, mask=np.array(mask, bool) if dtype.names is None else [(one,) * len(dtype.names) for one in mask]
        )
        rows = [None if masked else row for masked, row in zip(mask, rows, strict=True)]
    elif draw.random() < 0.3:
        array.flags.writeable = False
    return array, rows


def as_matrix(draw: random.Random, count: int) -> tuple[Any, Rows]:
    width = draw.randint(0, 20)
    matrix = np.frombuffer(draw.randbytes(count * width), "u1").reshape(count, width)
    matrix = draw.choice([matrix, matrix[::-1], matrix[:, ::-1], matrix[:, 1::2], np.asfortranarray(matrix)])
    return matrix, [row.tobytes() for row in matrix]


def as_pair(draw: random.Random, count: int) -> tuple[Any, Rows]:
    rows = draw_rows(draw, count, nulls=False)
    before = draw.randint(0, 9)
    offsets = np.cumsum([before, *map(len, rows)])
    data = draw.choice([bytes, bytearray, lambda each: np.frombuffer(each, "u1")])(
        draw.randbytes(before) + b"".join(rows) + draw.randbytes(draw.randint(0, 9))
    )
    return (data, draw_offsets(draw, offsets)), rows


def draw_offsets(draw: random.Random, offsets: Any) -> Any:
    """Return the offsets as an array of another type, a list, or of Arrow."""
    kind = draw.choice(["<i4", "<i8", ">i4", ">i8", "u4", "u8", "list", "strided", "arrow", "chunks"])
    if kind == "list":
        return offsets.tolist()
    if kind == "strided":
        return np.repeat(offsets, 2)[::2]
    if kind == "arrow":
        return pa.array(offsets, draw.choice([pa.int32(), pa.int64(), pa.uint64()]))
    if kind == "chunks":
        return pa.chunked_array([offsets[:1], offsets[1:]])
    return offsets.astype(kind)


def as_arrow(draw: random.Random, count: int) -> tuple[Any, Rows]:
    if draw.random() < 0.15:
        width = draw.randint(0, 9)
        rows: Rows = [draw.choice([None, draw.randbytes(width)]) for _ in range(count)]
        return chunked(draw, pa.array(rows, pa.binary(width))), rows
    if draw.random() < 0.05:
        return pa.nulls(count), [None] * count
    kind = draw.choice(BINARY)
    before = draw.randint(0, 9)
    rows = draw_rows(draw, before + count, text=True)
    if draw.random() < 0.2:
        rows = draw.choices([*rows[:9], None], k=before + count)
        return as_dictionary(draw, pa.array(rows, pa.binary()), kind)[before:], rows[before:]
    return chunked(draw, pa.array(rows, pa.binary()).cast(kind)[before:]), rows[before:]


def as_dictionary(draw: random.Random, array: Any, kind: Any) -> Any:
    """Return the rows as indexes of dictionaries of a type, which have null, or do not."""
    index = draw.choice(["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"])
    encoded = array.dictionary_encode(draw.choice(["mask", "encode"]))
    return chunked(draw, pa.DictionaryArray.from_arrays(encoded.indices.cast(index), encoded.dictionary.cast(kind)))


def chunked(draw: random.Random, array: Any) -> Any:
    """Return the array, or the same rows in several chunks."""
    if draw.random() < 0.5:
        return array
    ends = sorted(draw.randint(0, len(array)) for _ in range(draw.randint(0, 3)))
    return pa.chunked_array([array[start:end] for start, end in pairwise([0, *ends, len(array)])])


BYTES: tuple[Callable[[random.Random, int], tuple[Any, Rows]], ...] = (as_list, as_fixed, as_matrix, as_pair, as_arrow)


# ------------------------------------------------------------------ numbers and headers


def draw_numbers(draw: random.Random, count: int, most: int) -> tuple[Any, list[int | None]]:
    """Return numbers from 0 to `most`, one for all rows or one or null for each row."""
    if draw.random() < 0.2:
        number = draw.randint(0, most)
        return draw.choice([int, np.int64, np.array])(number), [number] * count
    numbers = [draw.randint(0, most) for _ in range(count)]
    mask = [draw.random() < 0.2 for _ in range(count)]
    nulls = [None if masked else number for masked, number in zip(mask, numbers, strict=True)]
    kind = draw.choice(["list", "array", "masked", "arrow", "strided", "dictionary"])
    fitting = [each for each in INTEGERS if np.iinfo(each).max >= most]
    if kind == "list":
        return nulls, nulls
    if kind == "arrow":
        return chunked(draw, pa.array(nulls, draw.choice([pa.int64(), pa.uint64()]))), nulls
    if kind == "dictionary":
        few = draw.choices([*nulls[:9], None], k=count)
        return as_dictionary(draw, pa.array(few, pa.int64()), draw.choice([pa.int64(), pa.uint64()])), few
    array = np.array(numbers, draw.choice(fitting))
    if kind == "masked":
        return np.ma.masked_array(array, mask=np.array(mask, bool)), nulls
    return (np.repeat(array, 3)[::3] if kind == "strided" else array), numbers


def draw_times(draw: random.Random, count: int) -> tuple[Any, list[int | None]]:
    """Return times as integers, datetime64 or Arrow timestamps, and as milliseconds."""
    if draw.random() < 0.4:
        return draw_numbers(draw, count, 2**40)
    unit = draw.choice(list(UNITS))
    ticks = np.array([draw.randint(0, 2**50 if UNITS[unit] < 0 else 2**40) for _ in range(count)], "i8")
    times = [int(each) * UNITS[unit] if UNITS[unit] > 0 else int(each) // -UNITS[unit] for each in ticks]
    nulls = np.array([draw.random() < 0.2 for _ in range(count)], bool)
    wanted = [None if null else time for null, time in zip(nulls, times, strict=True)]
    if draw.random() < 0.5:
        return chunked(draw, pa.array(ticks, pa.timestamp(unit), mask=nulls)), wanted
    ticks[nulls] = np.iinfo("i8").min
    return ticks.view(f"M8[{unit}]").astype(draw.choice("<>") + f"M8[{unit}]"), wanted


def draw_pairs(draw: random.Random, size: int | None = None) -> list[tuple[str, bytes | None]]:
    values = [None, b"", b"v", draw.randbytes(30)]
    size = draw.randint(0, 4) if size is None else size
    return [(draw.choice(["", "a", "käy", "😀" * 5]), draw.choice(values)) for _ in range(size)]


def draw_headers(draw: random.Random, count: int, *, arrow: bool) -> tuple[Any, list[tuple]]:
    """Return headers in a form that is drawn, and those of each row."""
    kind = draw.choice([*(() if arrow else ("all", "rows")), "none", "fixed", "map", "map", *LISTS])
    if kind == "all":
        pairs = draw_pairs(draw)
        given = draw.choice([list, tuple, iter, lambda each: [list(pair) for pair in each]])(pairs)
        return given, [tuple(pairs)] * count
    if kind == "none":
        empty = pa.nulls if draw.random() < 0.5 else lambda count, kind: pa.array([[]] * count, kind)
        none = draw.choice([pa.nulls(count), empty(count, draw.choice([*LISTS.values()])(pa.null()))])
        return chunked(draw, none), [()] * count
    before = draw.randint(0, 5)
    size = draw.randint(0, 4) if kind == "fixed" else None
    rows = [draw.choice([None, draw_pairs(draw, size)]) for _ in range(before + count)]
    wanted = [tuple(each or ()) for each in rows[before:]]
    if kind == "rows":
        return [each if each is None else draw.choice([list, tuple, iter])(each) for each in rows[before:]], wanted
    if kind == "map":
        return chunked(draw, pa.array(rows, pa.map_(pa.string(), pa.binary()))[before:]), wanted
    lists = [each and [{"key": key, "value": value} for key, value in each] for each in rows]
    form = pa.list_(PAIR, size) if size is not None else LISTS[kind](PAIR)
    return chunked(draw, pa.array(lists, form)[before:]), wanted
