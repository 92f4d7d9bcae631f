"""Tests that errors of `send_array` and `send_arrow` name what was given as users know it, and the way that works."""

import datetime
import json

import numpy as np
import pyarrow as pa
import pytest
from support.columns import column_of, refusal, values_of

from cyproducer.producer.producer import parse_table

# ------------------------------------------------------------------ times


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_before_1970(unit):
    """The unit stands beside the number, because the name of the argument has another one."""
    words = f"-5 ({unit} since 1970) is not a valid timestamp; Kafka has no times before 1970, and null means now"
    ticks = np.array([0, -5, 1])
    for times in (ticks.view(f"M8[{unit}]"), pa.array(ticks, pa.timestamp(unit))):
        assert refusal(ValueError, timestamps_ms=times) == f"timestamps_ms[1]: {words}"
    with pytest.raises(ValueError) as caught:
        parse_table(pa.table({"value": [b"v"] * 3, "timestamp": pa.array(ticks, pa.timestamp(unit))}), "t")
    assert str(caught.value) == f"column 'timestamp'[1]: {words}"
    assert "timestamps_ms[1]: -5 (ms since 1970)" in refusal(ValueError, timestamps_ms=ticks)


def test_one_time_for_all_rows():
    class Timestamp(datetime.datetime):
        """pandas has such a class."""

    words = "timestamps_ms: expected int (ms since 1970) for all rows"
    for time in (np.datetime64(1_500, "ms"), np.datetime64(5, "ns"), np.array(5, "M8[us]"), np.datetime64("NaT")):
        message = refusal(TypeError, timestamps_ms=time)
        assert message.startswith(f"{words}, got numpy.")
        assert message.endswith("give int(time.astype('datetime64[ms]').astype('int64'))")
    time = np.datetime64(1_500_999, "us")
    assert column_of("timestamp", timestamps_ms=int(time.astype("datetime64[ms]").astype("int64"))) == [1_500] * 3
    for kind in (datetime.datetime, Timestamp):
        time = kind(2026, 1, 1, tzinfo=datetime.UTC)
        message = refusal(TypeError, timestamps_ms=time)
        assert message.startswith(f"{words}, got ")
        assert message.endswith("give int(time.timestamp() * 1000)")
        message = refusal(TypeError, timestamps_ms=[1, time, None])
        assert message.startswith("timestamps_ms[1]: expected int or None, got ")
        assert message.endswith("give int(time.timestamp() * 1000)")
    message = refusal(TypeError, timestamps_ms=[np.datetime64(1, "s"), 1, 2])
    assert message.endswith("got datetime64; give int(time.astype('datetime64[ms]').astype('int64'))")
    assert refusal(TypeError, partition=[np.datetime64(1, "s"), 1, 2]).endswith("got datetime64")


# ------------------------------------------------------------------ tuples of two


@pytest.mark.parametrize(
    ("rows", "row", "words"),
    [
        ((bytearray(b"a"), bytearray(b"b")), 0, "got bytearray; give bytes(value)"),
        ((b"a", bytearray(b"b")), 1, "got bytearray; give bytes(value)"),
        ((memoryview(b"\0\1"), memoryview(b"\0\1")), 0, "got memoryview; give bytes(value)"),
        ((b"a", memoryview(b"\0\1")), 1, "got memoryview; give bytes(value)"),
        (("a", "b"), 0, "got str; encode it"),
        ((b"a", "b"), 1, "got str; encode it"),
        ([b"a", bytearray(b"b")], 1, "got bytearray; give bytes(value)"),
        ([b"a", "b", b"c"], 1, "got str; encode it"),
        ([b"a", 5], 1, "got int"),
    ],
)
def test_two_values_are_no_pair(rows, row, words):
    assert refusal(TypeError, rows) == f"values[{row}]: expected bytes or None, {words}"


def test_pairs_with_offsets_in_buffers():
    offsets = np.array([0, 1, 3], "u1")
    for each in (offsets, offsets.astype("i8"), memoryview(offsets.astype("i4")), memoryview(offsets.astype("u2"))):
        assert values_of((bytearray(b"abc"), each)) == [b"a", b"bc"]


# ------------------------------------------------------------------ text, tables and other objects


def test_arrays_of_text():
    text = np.array(["a", "bcd"])
    for array in (text, text.astype(np.dtypes.StringDType())):
        for arguments in ({"values": array}, {"values": [b"v", b"w"], "keys": array}):
            message = refusal(TypeError, **arguments)
            assert "holds text; give [text.encode() for text in array], or pyarrow.array(array)" in message
        assert values_of(pa.array(array)) == values_of([each.encode() for each in array]) == [b"a", b"bcd"]
        assert "expected a 1-D array of integers" in refusal(TypeError, [b"v", b"w"], partition=array)
    message = refusal(TypeError, (text.astype(np.dtypes.StringDType()), [0, 1]))
    assert message.startswith("values: ")
    assert "holds text" in message


@pytest.mark.parametrize(
    "table",
    [pa.table({"value": [b"x"] * 3}), pa.record_batch({"value": [b"x"] * 3}), pa.array([{"value": b"x"}] * 3)],
    ids=["table", "record batch", "struct array"],
)
def test_tables_in_place_of_one_column(table):
    words = "holds rows of named columns; send a table with send_arrow(), or give one of its columns"
    for arguments, name in (
        ({"values": table}, "values"),
        ({"values": (b"abc", table)}, "values offsets"),
        ({"keys": table}, "keys"),
        ({"partition": table}, "partition"),
        ({"timestamps_ms": table}, "timestamps_ms"),
        ({"headers": table}, "headers"),
    ):
        message = refusal(TypeError, **arguments)
        assert message.startswith(f"{name}: pyarrow.lib.")
        assert message.endswith(words)


class Series:
    """What a column of pandas looks like: a dtype and a shape, but neither a buffer nor an Arrow array."""

    def __init__(self, dtype):
        self.dtype, self.shape, self.ndim = np.dtype(dtype), (3,), 1

    def to_numpy(self):
        return np.zeros(3, self.dtype)

    def view(self, dtype):
        return Series(dtype)


@pytest.mark.parametrize("dtype", ["i8", "f8", "M8[ns]", "m8[ns]", "S2"])
def test_columns_of_pandas(dtype):
    words = "or an Arrow array.*, got .*Series of dtype .* and shape .*; give it as pyarrow.array\\(column\\), or as "
    for name in ("values", "keys", "partition", "timestamps_ms"):
        with pytest.raises(TypeError, match=f"^{name}: expected a 1-D array .*{words}column.to_numpy"):
            column_of("value", **{name: Series(dtype)}) if name != "values" else values_of(Series(dtype))


def test_an_index_of_times_of_pandas():
    """Unlike a column, its view is an array."""

    class Index(Series):
        def view(self, dtype):
            return np.array([0, 5_999, -(2**63)]).view(dtype)

    assert column_of("timestamp", timestamps_ms=Index("M8[us]")) == [0, 5, -1]
    assert column_of("key", keys=Index("M8[us]"))[1] == (5_999).to_bytes(8, "little")


# ------------------------------------------------------------------ tables with other columns


class Frame:
    """A frame of another library, with the method that makes JSON of its rows."""

    def __init__(self, table):
        self.table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self.table.__arrow_c_stream__(requested_schema)


class PandasFrame(Frame):
    def to_json(self, orient, lines):
        assert (orient, lines) == ("records", True)
        return self.write_ndjson()

    def write_ndjson(self):
        return "".join(json.dumps(row) + "\n" for row in self.table.to_pylist())


class PolarsFrame(Frame):
    write_ndjson = PandasFrame.write_ndjson


@pytest.mark.parametrize("kind", [Frame, PandasFrame, PolarsFrame, pa.table, pa.Table.to_reader])
def test_rows_as_json(kind):
    """The text has an expression that makes what send_array() takes."""
    source = pa.table({"name": ["ä\n\u2028", "b"], "value": [1, None]})
    with pytest.raises(ValueError) as caught:
        parse_table(kind(source), "t")
    text, _, recipe = str(caught.value).partition("; to send rows as JSON: send_array(topic, ")
    assert text.startswith("table: column 'name' is not part of a Kafka record; remove it or rename it to one of")
    assert recipe.endswith(")")
    rows = eval(recipe[:-1], {"json": json, "pyarrow": pa, "table": kind(source)})
    assert [json.loads(row) for row in values_of(rows)] == source.to_pylist()


def test_columns_that_need_another_type():
    for column in ([1], [1.5], [True], [{"a": 1}], [[b"a"]]):
        with pytest.raises(TypeError, match=r"^column 'value': .*; cast or encode it$"):
            parse_table(pa.table({"value": column}), "t")


def test_objects_that_are_no_tables():
    for source in ({"value": [b"x"]}, [{"value": b"x"}]):
        with pytest.raises(TypeError, match=r"got (dict|list); make one with pyarrow.table\(\)"):
            parse_table(source, "t")
