"""Draws calls of `send_array` and `send_arrow`: valid ones with their records, and wrong ones."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from support.arrow_structures import Foreign, child, words

from arrays.columns import BYTES, PAIR, as_arrow, draw_headers, draw_numbers, draw_times

PARTITIONS = 4
LEAST = -(2**63)


@dataclass
class Case:
    """A call. `records` has (value, key, headers, partition or None, timestamp or None) of each row."""

    arguments: dict[str, Any]
    records: list[tuple] | None = None  # None: the call must raise
    table: Any = None  # of send_arrow; else `arguments` are those of send_array
    name: str = ""  # with which the error's message must begin
    changing: list[Any] = field(default_factory=list)  # (array, wrong number) that another thread writes


def valid(draw: random.Random) -> Case:
    """Return a call with rows of all kinds."""
    count = draw.choice([0, 1, 2, 2, 3, draw.randint(4, 60), draw.randint(60, 300)])
    arrow = draw.random() < 0.4
    form = as_arrow if arrow else draw.choice(BYTES)
    values, rows = form(draw, count)
    given: dict[str, Any] = {"value" if arrow else "values": values}
    keys, headers, partitions, times = [None] * count, [()] * count, [None] * count, [None] * count
    if draw.random() < 0.5:
        given["key" if arrow else "keys"], keys = (as_arrow if arrow else draw.choice(BYTES))(draw, count)
    if draw.random() < 0.5:
        given["headers"], headers = draw_headers(draw, count, arrow=arrow)
    if draw.random() < 0.4:
        given["partition"], partitions = draw_numbers(draw, count, PARTITIONS - 1)
    if draw.random() < 0.4:
        given["timestamp" if arrow else "timestamps_ms"], times = draw_times(draw, count)
    records = list(zip(rows, keys, headers, partitions, times, strict=True))
    if not arrow:
        return Case(given, records)
    # A column of a table has a number for each row.
    columns = {
        name: pa.array(records_of(records, name)) if is_scalar(each) else as_column(each)
        for name, each in given.items()
    }
    return Case({}, records, draw_table(draw, pa.table(columns)))


def records_of(records: list[tuple], name: str) -> list[Any]:
    return [record[{"partition": 3, "timestamp": 4}[name]] for record in records]


def is_scalar(each: Any) -> bool:
    return isinstance(each, int | np.integer) or getattr(each, "ndim", 1) == 0


def as_column(each: Any) -> Any:
    """Return what a table takes: Arrow data, or a NumPy array in the machine's byte order and without gaps."""
    if isinstance(each, np.ma.MaskedArray):
        return pa.array(each.data.astype("i8"), mask=np.ascontiguousarray(np.ma.getmaskarray(each)))
    if isinstance(each, np.ndarray):
        return pa.array(np.ascontiguousarray(each.astype(each.dtype.newbyteorder("="))))
    return each


def draw_table(draw: random.Random, table: Any) -> Any:
    return draw.choice([table, table.to_reader(), table.combine_chunks()])


# ------------------------------------------------------------------ wrong calls


def wrong(draw: random.Random) -> Case:
    """Return a call of which one argument is wrong."""
    return draw.choice(WRONG)(draw)


def wrong_offsets(draw: random.Random) -> Case:
    """Return offsets that descend, begin below 0, or lead out of the data or the elements."""
    count = draw.choice([1, 2, 5, 1_024, 1_500])
    width = draw.choice(["i4", "i8"])
    offsets = np.arange(count + 1, dtype=width)
    place = draw.randint(0, count)
    largest = np.iinfo(width).max
    most = {"i4": largest, "i8": 2**60}[width]
    offsets[place] = draw.choice([-1, np.iinfo(width).min, *([0, place - 2] if place > 1 else [])])
    kind = draw.choice(["pair", "bytes", "headers"])
    if kind != "bytes" and draw.random() < 0.5:
        offsets = np.arange(count + 1, dtype=width)
        offsets[place:] = most
    if kind == "pair":
        name = draw.choice(["values", "keys"])
        pair = (bytes(count), draw.choice([np.array, pa.array, list])(offsets))
        return Case({"values": [b"v"] * count, name: pair}, name=f"{name} offsets[{place}]: ")
    memory = np.zeros_like(offsets)
    buffers = [None, pa.py_buffer(memory)]
    if kind == "bytes":
        name = draw.choice(["values", "keys"])
        types = {"i4": [pa.binary(), pa.string()], "i8": [pa.large_binary(), pa.large_string()]}
        made = pa.Array.from_buffers(draw.choice(types[width]), count, [*buffers, pa.py_buffer(bytes(count))])
    else:
        name = "headers"
        elements = pa.array([{"key": "k", "value": b"v"}] * count, PAIR)
        types = {"i4": [pa.list_(PAIR), pa.map_(pa.string(), pa.binary())], "i8": [pa.large_list(PAIR)]}
        made = pa.Array.from_buffers(draw.choice(types[width]), count, buffers, children=[elements])
    memory[:] = offsets
    return Case({"values": [b"v"] * count, name: made}, name=f"{name}[{max(place - 1, 0)}]: ")


def wrong_view(draw: random.Random) -> Case:
    count = draw.randint(1, 200)
    views = np.zeros((count, 4), "i4")
    views[:, 0] = draw.randint(0, 12)
    row = draw.randrange(count)
    size = draw.randint(13, 40)
    views[row] = draw.choice(
        [(-size, 0, 0, 0), (size, 0, 1, 0), (size, 0, -1, 0), (size, 0, 0, 41 - size), (size, 0, 0, -1)]
    )
    column = pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(views), pa.py_buffer(bytes(40))])
    return Case({"values": column}, name=f"values[{row}]: ")


def wrong_structure(draw: random.Random) -> Case:
    """Return a table with a member of an Arrow structure, at any place, that cannot be right."""
    kind = draw.choice([pa.map_(pa.string(), pa.binary()), pa.list_view(PAIR), pa.large_list_view(PAIR)])
    headers = pa.array([[("a", b"b")], None, [("c", None)]], kind)
    keys = pa.array(["x", "y", None]).dictionary_encode()
    foreign = Foreign(pa.record_batch({"value": [b"a", None, b"c"], "key": keys, "headers": headers}))
    path = draw.choice([(), (0,), (1,), (2,), (2, 0), (2, 0, 0), (2, 0, 1)])
    array, schema = child(foreign.array, *path), child(foreign.schema, *path)
    if path == (1,) and draw.random() < 0.5:
        array, schema = words(array), words(schema)
    children = [lambda: setattr(array, "n_children", draw.choice([-1, 0, 7, LEAST]))] if array.n_children else []
    change = draw.choice(
        [
            *children,
            lambda: setattr(array, "length", draw.choice([-1, LEAST, 2**63 - 1, 2**55])),
            lambda: setattr(array, "offset", draw.choice([-1, LEAST, 2**63 - 1, 2**55])),
            lambda: setattr(array, "null_count", draw.choice([-2, LEAST, 2**63 - 1])),
            lambda: setattr(array, "n_buffers", draw.choice([-1, 0, 7, LEAST])),
            lambda: setattr(array, "buffers", None),
            lambda: setattr(array, "release", None),
            lambda: setattr(schema, "release", None),
            lambda: setattr(schema, "format", draw.choice([b"", b"w:", b"\xff", b"tsx:", None, b"+", b"d:1,1"])),
        ]
    )
    change()
    return Case({}, table=foreign)


def wrong_number(draw: random.Random) -> Case:
    """Return a partition or time that is out of range or no integer, for all rows or for one of them."""
    name = draw.choice(["partition", "timestamps_ms"])
    count = draw.randint(1, 20)
    row = draw.randrange(count)
    numbers: list[Any] = [0] * count
    numbers[row] = draw.choice([-1, LEAST, LEAST + 1, -(2**31)])
    kind = draw.choice(["scalar", "list", "array", "arrow", "unit", "type", "rows"])
    given: Any = numbers
    prefix = f"{name}[{row}]: "
    if kind == "scalar":
        given, prefix = (
            draw.choice([numbers[row], True, 1.5, "1", np.array(1.5), np.ma.masked, np.array(1, "m8[s]")]),
            name,
        )
    elif kind == "array":
        given = np.array(numbers).astype(draw.choice(["<i8", ">i8"]))
    elif kind == "arrow":
        given = pa.chunked_array([pa.array(numbers[: row + 1]), pa.array(numbers[row + 1 :], pa.int64())])
    elif kind == "unit":
        name, prefix = "timestamps_ms", f"timestamps_ms[{row}]: "
        numbers[row] = draw.choice([2**62, -1])
        given = draw.choice([np.array(numbers).view("M8[s]"), pa.array(numbers, pa.timestamp("s"))])
    elif kind == "type":
        prefix = name
        types = ["m8[s]", "f8", "?", "S3", "O", "c16", "M8[Y]"]
        given = np.zeros(count, draw.choice(types))
    elif kind == "rows":
        given, prefix = [0] * (count + 1), name
    return Case({"values": [b"v"] * count, name: given}, name=prefix)


def wrong_headers(draw: random.Random) -> Case:
    count = draw.randint(2, 9)
    row = draw.randrange(count)
    bad = draw.choice([[("a", 1)], [(b"a", b"")], [("a",)], {"a": 1}, "text", 5.5, [("\ud800", b"")]])
    rows: list[Any] = [None] * count
    if draw.random() < 0.5:
        rows[0] = ()
        rows[row or 1] = bad
        return Case({"values": [b"v"] * count, "headers": rows}, name=f"headers[{row or 1}]")
    if draw.random() < 0.5:
        return Case({"values": [b"v"] * count, "headers": bad}, name="headers")
    lists = [[{"key": b"k", "value": None}]] * count
    lists[row] = [{"key": draw.choice([b"\xff", b"a\x80", b"\xc3"]), "value": b""}]
    kind = pa.list_(pa.struct([("key", draw.choice([pa.binary(), pa.binary_view()])), ("value", pa.binary())]))
    return Case({"values": [b"v"] * count, "headers": pa.array(lists, kind)}, name=f"headers[{row}]: ")


def wrong_bytes(draw: random.Random) -> Case:
    """Return values or keys that hold no bytes, or have another number of rows."""
    objects = np.array([b"a", b"b"], object)
    given = draw.choice(
        [
            objects,
            memoryview(objects),
            (objects, [0, 8, 16]),
            (np.zeros(2, [("a", "O")]), [0, 4, 8]),
            np.array(["a", "b"]),
            [b"a", "b"],
            pa.array([1, 2]),
            pa.array([1, 2]).dictionary_encode(),
            np.zeros((2, 2)),
            np.zeros((2, 2, 2), "u1"),
            np.array(b"a"),
            (np.zeros(8, "u1")[::2], [0, 1, 2]),
            b"ab",
            5,
        ]
    )
    if draw.random() < 0.5:
        return Case({"values": given}, name="values")
    given = draw.choice([given, [b"a"] * 3, np.zeros(1), pa.array([b"a"])])
    return Case({"values": [b"v", b"w"], "keys": given}, name="keys")


WRONG: tuple[Callable[[random.Random], Case], ...] = (
    wrong_offsets,
    wrong_view,
    wrong_structure,
    wrong_number,
    wrong_headers,
    wrong_bytes,
)


# ------------------------------------------------------------------ arrays that change


def changing(draw: random.Random) -> Case:
    """Return a call with numbers that another thread overwrites meanwhile. It may send their state at any time."""
    count = 3_000
    width = draw.choice(["i4", "i8"])
    offsets = np.arange(count + 1, dtype=width)
    data = b"d" * (count + 1)
    form = draw.choice(["pair", "arrow", "dictionary"])
    if form == "pair":
        values: Any = (data, offsets)
    elif form == "dictionary":
        kind = pa.dictionary(pa.int32() if width == "i4" else pa.int64(), pa.binary())
        entries = pa.array([b"d" * (at % 3) for at in range(count)], pa.binary())
        values = pa.DictionaryArray.from_buffers(kind, count, [None, pa.py_buffer(offsets)], entries)
    else:
        kind = pa.binary() if width == "i4" else pa.large_binary()
        values = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    partition = np.zeros(count, "i4")
    return Case({"values": values, "partition": partition}, changing=[(offsets, 2**31 - 1), (partition, -5)])
