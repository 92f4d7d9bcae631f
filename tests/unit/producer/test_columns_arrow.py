"""Tests Arrow data of any library as values, keys and headers, and of whole tables for `send_arrow`, as rows."""

import array
import gc
import json

import pyarrow as pa
import pytest
from support.columns import column_of, values_of

from cyproducer import errors
from cyproducer.producer.producer import parse_arrays, parse_table

# ------------------------------------------------------------------ Arrow

ARROW_TYPES = [
    pa.binary(), pa.large_binary(), pa.string(), pa.large_string(), pa.binary_view(), pa.string_view(),
]  # fmt: skip
TEXTS = [None, "", "a", "exactly12byt", "more than twelve bytes", None, "z" * 100]


@pytest.mark.parametrize("kind", ARROW_TYPES, ids=str)
def test_arrow_types(kind):
    whole = pa.array(TEXTS * 3, pa.string()).cast(kind)
    wanted = [None if text is None else text.encode() for text in TEXTS * 3]
    assert values_of(whole) == wanted
    assert values_of(whole[5:18]) == wanted[5:18]
    assert values_of(whole[2:3]) == wanted[2:3]
    chunks = pa.chunked_array([whole[:4], whole[4:4], whole[4:9], whole[9:]])
    assert values_of(chunks) == wanted
    assert values_of(chunks[3:17]) == wanted[3:17]


def test_arrow_fixed_size_and_null():
    fixed = pa.array([b"ab", None, b"cd", b"ef"], pa.binary(2))
    assert values_of(fixed) == [b"ab", None, b"cd", b"ef"]
    assert values_of(fixed[1:3]) == [None, b"cd"]
    assert values_of(pa.nulls(3)) == [None] * 3
    assert values_of(pa.array([b"", None], pa.binary(0))) == [b"", None]


class OnlyArray:
    """An object of another library that implements the Arrow protocol and nothing else."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __arrow_c_array__(self, requested_schema=None):
        return self.wrapped.__arrow_c_array__(requested_schema)


class OnlyStream:
    """The same with the stream protocol."""

    def __init__(self, wrapped):
        self.wrapped = wrapped

    def __arrow_c_stream__(self, requested_schema=None):
        return self.wrapped.__arrow_c_stream__(requested_schema)


def test_foreign_arrow():
    rows = pa.array([b"a", None, b"c"])
    assert values_of(OnlyArray(rows)) == [b"a", None, b"c"]


def test_arrow_memory_is_released_once_and_only_after_use():
    pool = pa.system_memory_pool()
    before = pool.bytes_allocated()
    rows = pa.array([b"x" * 1000] * 1000, memory_pool=pool)
    parsed = parse_arrays("t", rows)
    table = parse_table(pa.table({"value": pa.chunked_array([rows, rows[10:]])}), "t")
    del rows
    gc.collect()
    assert pool.bytes_allocated() > before
    assert parsed.to_list()[999][1] == b"x" * 1000
    assert table.to_list()[1989][1] == b"x" * 1000
    del parsed, table
    gc.collect()
    assert pool.bytes_allocated() == before


def test_failing_stream():
    def batches():
        yield pa.record_batch({"value": [b"a"]})
        raise OSError("the disk is gone")

    reader = pa.RecordBatchReader.from_batches(pa.schema({"value": pa.binary()}), batches())
    with pytest.raises(ValueError, match=r"table: the Arrow stream failed: .*the disk is gone"):
        parse_table(reader, "t")


@pytest.mark.parametrize("large", [False, True])
def test_headers_of_arrow(large):
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kind = pa.large_list(pair) if large else pa.list_(pair)
    rows = [
        [{"key": "a", "value": b"bc"}],
        None,
        [],
        [{"key": "x", "value": None}, {"key": "y", "value": b""}],
    ]
    wanted = [b"\x02\x02a\x04bc", b"\0", b"\0", b"\x04\x02x\x01\x02y\x00"]
    column = pa.array(rows * 2, kind)
    assert column_of("headers", headers=column, count=8) == wanted * 2
    chunks = pa.chunked_array([column[1:4], column[4:4], column[3:]])
    assert column_of("headers", headers=chunks, count=8) == wanted[1:] + wanted[3:] + wanted
    if not large:
        as_map = pa.array([[("a", b"bc")], None, [], [("x", None), ("y", b"")]], pa.map_(pa.string(), pa.binary()))
        assert column_of("headers", headers=as_map, count=4) == wanted


# ------------------------------------------------------------------ tables


def test_table():
    table = pa.table(
        {
            "timestamp": pa.array([1_500, None], pa.timestamp("us", "UTC")),
            "topic": ["x", "y"],
            "value": [b"1", None],
            "partition": pa.array([None, 3], pa.int32()),
            "key": ["k", None],
            "headers": pa.array(
                [None, [{"key": "a", "value": b"bc"}]],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    wanted = [("x", b"1", b"k", b"\0", -1, 1), ("y", None, None, b"\x02\x02a\x04bc", 3, -1)]
    for source in (
        table,
        table.to_batches()[0],
        table.to_reader(),
        OnlyStream(table),
        OnlyArray(table.to_struct_array().chunk(0)),
    ):
        assert parse_table(source).to_list() == wanted
    assert [row[0] for row in parse_table(table, "z").to_list()] == ["z", "z"]
    assert parse_table(table.slice(1)).to_list() == wanted[1:]
    assert parse_table(table.to_struct_array().chunk(0)[1:]).to_list() == wanted[1:]


def test_many_topics_in_any_order():
    names = [f"topic-{number % 97}" for number in range(5_000)]
    table = pa.table({"value": [b"v"] * 5_000, "topic": pa.chunked_array([names[:1_234], names[1_234:]])})
    rows = parse_table(table)
    assert len(rows.topics) == 97
    assert [row[0] for row in rows.to_list()] == names


def test_chunks_that_do_not_match():
    rows = [str(number).encode() for number in range(100)]
    table = pa.table(
        {
            "value": pa.chunked_array([rows[:10], rows[10:11], rows[11:]]),
            "key": pa.chunked_array([rows[:50], rows[50:]]),
        }
    )
    parsed = parse_table(table, "t")
    assert [row[1:3] for row in parsed.to_list()] == [(row, row) for row in rows]
    # at most 18 bytes of overhead in each record, 3 bytes each of key and value with their lengths, and so on
    assert parsed.largest() == (10, 28)


def test_wrong_tables():
    def message(table, topic="t", kind=ValueError):
        with pytest.raises(kind) as caught:
            parse_table(table, topic)
        return str(caught.value)

    assert message([1], kind=TypeError).startswith("table: expected something with __arrow_c_stream__")
    assert message(pa.array([b"x"]), kind=TypeError).endswith("got Arrow binary")
    assert message(pa.table({"key": [b"x"]})) == "table: no column 'value'; its columns are ['key']"
    assert "column 'valu' is not part of a Kafka record" in message(pa.table({"valu": [b"x"]}))
    assert (
        message(pa.table([[b"x"], [b"y"]], names=["value", "value"]))
        == "table: column 'value' occurs twice; remove one of them"
    )
    assert "column 'value': Arrow float64 cannot be read here" in message(pa.table({"value": [1.5]}), kind=TypeError)
    assert "got Arrow int64" in message(pa.table({"value": [1]}), kind=TypeError)
    assert "neither a column 'topic' nor" in message(pa.table({"value": [b"x"]}), None)
    null_topic = pa.table({"value": [b"x", b"y"], "topic": ["a", None]})
    assert "column 'topic'[1]: the topic is null" in message(null_topic, None)
    wrong_topic = pa.table({"value": [b"x"] * 3, "topic": ["a", "a", "b c"]})
    assert "column 'topic'[2]: the topic's name 'b c' has" in message(wrong_topic, None, errors.InvalidTopicError)
    assert "got Arrow string" in message(pa.table({"value": [b"x"], "partition": ["1"]}), kind=TypeError)
    assert "expected integers, got Arrow timestamp[s]" in message(
        pa.table({"value": [b"x"], "partition": pa.array([1], pa.timestamp("s"))}), kind=TypeError
    )
    null_row = pa.StructArray.from_arrays([pa.array([b"x", b"y"])], ["value"], mask=pa.array([False, True]))
    assert "row 1 of chunk 0 is null as a whole" in message(null_row)
    keyless = pa.array(
        [[{"key": None, "value": b""}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    assert "column 'headers'[0]: a header's key is null" in message(pa.table({"value": [b"x"], "headers": keyless}))
    whole = pa.array([[{"key": "k", "value": b""}, None]], keyless.type)
    assert "column 'headers'[0]: a header is null" in message(pa.table({"value": [b"x"], "headers": whole}))


def with_index(table, *columns, text=None):
    """Return the table with pandas's metadata, in which `columns` are those of the index."""
    text = json.dumps({"index_columns": list(columns), "columns": []}) if text is None else text
    return table.replace_schema_metadata({"other": "x" * 300, "pandas": text})


def test_columns_of_the_index_of_pandas():
    """What a frame of pandas exports after dropna() or a filter, and with a named index."""
    table = pa.table({"value": [b"a", b"b"], "__index_level_0__": [0, 7], "id": ["x", "y"], "key": ["k", None]})
    ranges = {"kind": "range", "name": None, "start": 0, "stop": 2, "step": 1}
    for source in (table, table.to_reader(), table.to_batches()[0]):
        with pytest.raises(ValueError, match="column '__index_level_0__' is not part of a Kafka record"):
            parse_table(source, "t")
    wanted = [("t", b"a", b"k", None, -1, -1), ("t", b"b", None, None, -1, -1)]
    indexed = with_index(table, ranges, "__index_level_0__", "id")
    for source in (indexed, indexed.to_reader(), indexed.to_batches()[0]):
        assert parse_table(source, "t").to_list() == wanted
    # The index has the name of a record's part, and is used as such.
    assert parse_table(with_index(table, "__index_level_0__", "id", "key"), "t").to_list() == wanted
    with pytest.raises(ValueError, match="column 'id' is not part of a Kafka record"):
        parse_table(with_index(table, "__index_level_0__"), "t")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, "null", "1", '["id"]', "{}", '{"index_columns": null}', '{"index_columns": "id"}',
     '{"index_columns": {"id": 1}}', '{"index_columns": [["id"], {"name": "id"}, null]}', b"\xff\xfe\x00"],
)  # fmt: skip
def test_metadata_of_pandas_that_names_no_index(text):
    with pytest.raises(ValueError, match="column 'id' is not part of a Kafka record"):
        parse_table(with_index(pa.table({"value": [b"a"], "id": [1]}), text=text), "t")


# ------------------------------------------------------------------ headers of other types

PAIR = pa.struct([("key", pa.string()), ("value", pa.binary())])
SECTIONS = {"a": b"\x02\x02a\x02b", "two": b"\x04\x02x\x01\x04\xc3\xa4\x00"}
A, TWO = [{"key": "a", "value": b"b"}], [{"key": "x", "value": None}, {"key": "ä", "value": b""}]


def headers_in_both_calls(headers):
    """Return the header sections that send_array() and send_arrow() make of a column; both must be the same."""
    found = column_of("headers", headers=headers, count=len(headers))
    table = pa.table({"value": [b"v"] * len(headers), "headers": headers})
    assert [row[3] for row in parse_table(table, "t").to_list()] == found
    return found


@pytest.mark.parametrize(
    "kind",
    [pa.list_, pa.large_list, pa.list_view, pa.large_list_view, lambda each: pa.map_(pa.string(), each)],
    ids=["list", "large_list", "list_view", "large_list_view", "map"],
)
def test_tables_without_any_header(kind):
    """pyarrow, pandas and Polars infer these types if no row has a header."""
    for rows in ([None, None], [[], []], [[], None]):
        column = pa.array(rows, kind(pa.null()))
        assert [each or b"\0" for each in headers_in_both_calls(column)] == [b"\0"] * 2
        assert [each or b"\0" for each in headers_in_both_calls(pa.chunked_array([column, column[1:]]))] == [b"\0"] * 3
    assert column_of("headers", headers=pa.array([], kind(pa.null())), count=0) == []


def test_headers_of_type_null():
    assert headers_in_both_calls(pa.nulls(3)) == [None] * 3
    assert headers_in_both_calls(pa.nulls(2, pa.list_(pa.null(), 0))) == [None] * 2
    assert headers_in_both_calls(pa.nulls(2, pa.list_(pa.null(), 3))) == [None] * 2


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list, pa.list_view, pa.large_list_view, lambda x: pa.list_(x, 1)])
def test_a_header_that_is_null(kind):
    one, other = pa.array([[None], None], kind(pa.null())), pa.array([None, [None]], kind(pa.null()))
    for headers, row in ((one, 0), (other, 1), (pa.chunked_array([other[:1], other[:0], one[1:], one]), 2)):
        with pytest.raises(ValueError, match=rf"^headers\[{row}\]: a header is null; give a struct of key and value"):
            column_of("headers", headers=headers, count=len(headers))


@pytest.mark.parametrize("kind", [pa.list_view, pa.large_list_view])
def test_headers_of_list_views(kind):
    column = pa.array([A, None, [], TWO, A], kind(PAIR))
    wanted = [SECTIONS["a"], b"\0", b"\0", SECTIONS["two"], SECTIONS["a"]]
    assert headers_in_both_calls(column) == wanted
    assert headers_in_both_calls(column[1:4]) == wanted[1:4]
    assert headers_in_both_calls(pa.chunked_array([column[3:], column[:0], column[:2]])) == wanted[3:] + wanted[:2]
    # Rows that share elements, in any order, with elements before and behind them.
    made = pa.ListViewArray if kind is pa.list_view else pa.LargeListViewArray
    width = pa.int32() if kind is pa.list_view else pa.int64()
    offsets, sizes = pa.array([4, 1, 2, 1, 5], width), pa.array([1, 2, 0, 2, 0], width)
    shared = made.from_arrays(offsets, sizes, pa.array([*A, *TWO, *A, *A], PAIR))
    assert headers_in_both_calls(shared) == [SECTIONS["a"], SECTIONS["two"], b"\0", SECTIONS["two"], b"\0"]
    assert headers_in_both_calls(shared[1:3]) == [SECTIONS["two"], b"\0"]


@pytest.mark.parametrize("kind", [pa.list_view, pa.large_list_view])
@pytest.mark.parametrize(
    ("start", "size"), [(-1, 1), (0, -1), (2, 2), (4, 0), (3, 1), (2**31 - 1, 2**31 - 1), (0, -(2**31)), (0, 4)]
)
def test_list_views_that_lead_out_of_their_elements(kind, start, size):
    letter = "i" if kind is pa.list_view else "q"
    offsets, sizes = array.array(letter, [3, 0, start]), array.array(letter, [0, 3, size])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(sizes)]
    views = pa.Array.from_buffers(kind(PAIR), 3, buffers, children=[pa.array([*A, *TWO], PAIR)])
    with pytest.raises(ValueError, match=r"^headers\[2\]: the Arrow (large_)?list_view array is malformed: "):
        column_of("headers", headers=views)
    with pytest.raises(ValueError, match=r"^headers\[1\]: the Arrow (large_)?list_view array is malformed: "):
        column_of("headers", headers=pa.chunked_array([views[:1], views[2:], views[:1]]))


def test_headers_of_fixed_size_lists():
    column = pa.array([TWO, None, TWO[::-1], TWO], pa.list_(PAIR, 2))
    wanted = [SECTIONS["two"], b"\0", b"\x04\x04\xc3\xa4\x00\x02x\x01", SECTIONS["two"]]
    assert headers_in_both_calls(column) == wanted
    assert headers_in_both_calls(column[1:3]) == wanted[1:3]
    assert headers_in_both_calls(pa.chunked_array([column[2:], column[:0], column[:3]])) == wanted[2:] + wanted[:3]
    assert headers_in_both_calls(pa.array([[], None], pa.list_(PAIR, 0))) == [b"\0", b"\0"]


@pytest.mark.parametrize(
    "kind",
    [pa.map_(pa.string(), pa.binary()), pa.map_(pa.large_string(), pa.string_view()),
     pa.map_(pa.binary(), pa.binary_view())],
)  # fmt: skip
def test_headers_of_maps(kind):
    column = pa.array([[("a", "b")], None, [], [("x", None), ("ä", "")]], kind)
    wanted = [SECTIONS["a"], b"\0", b"\0", SECTIONS["two"]]
    assert headers_in_both_calls(column) == wanted
    assert headers_in_both_calls(column[1:]) == wanted[1:]
