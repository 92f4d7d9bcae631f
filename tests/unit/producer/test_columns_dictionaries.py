"""Tests dictionaries of Arrow (categories of pandas and Polars, enums of DuckDB) in every argument and column."""

import numpy as np
import pyarrow as pa
import pytest
from support.arrow_structures import Foreign, child, words
from support.columns import column_of, refusal, values_of

from cyproducer.producer.producer import parse_arrays, parse_table

INDEXES = [pa.int8(), pa.uint8(), pa.int16(), pa.uint16(), pa.int32(), pa.uint32(), pa.int64(), pa.uint64()]
WORDS = ["", "more than twelve bytes", None, "a", "never used"]
PLACES = [3, None, 0, 2, 1, 3, 3, 0]
WANTED = [b"a", None, b"", None, b"more than twelve bytes", b"a", b"a", b""]


def dictionary(places, entries, index="int32", kind="string"):
    return pa.DictionaryArray.from_arrays(pa.array(places, index), pa.array(entries, pa.string()).cast(kind))


@pytest.mark.parametrize("index", INDEXES, ids=str)
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view"])
def test_words_of_each_type(index, kind):
    column = dictionary(PLACES, WORDS, index, kind)
    assert values_of(column) == WANTED
    assert values_of(column[2:7]) == WANTED[2:7]
    assert column_of("key", keys=column, count=8) == WANTED
    assert [row[1:3] for row in parse_table(pa.table({"value": column, "key": column}), "t").to_list()] == [
        (word, word) for word in WANTED
    ]


def test_words_of_a_part_of_a_longer_array():
    part = pa.array(["x", "y", *WORDS, "z"])[2:7]
    assert values_of(pa.DictionaryArray.from_arrays(pa.array(PLACES, "int8"), part)) == WANTED


def test_words_of_one_width_and_null():
    fixed = pa.DictionaryArray.from_arrays(pa.array([1, 0, None], "int8"), pa.array([b"ab", b"cd"], pa.binary(2)))
    assert values_of(fixed) == [b"cd", b"ab", None]
    assert values_of(pa.DictionaryArray.from_arrays(pa.array([0, None], "int8"), pa.nulls(1))) == [None, None]
    empty = pa.DictionaryArray.from_arrays(pa.nulls(2, "int8"), pa.array([], "string"))
    assert values_of(empty) == [None, None]
    assert values_of(empty[:0]) == []
    assert parse_table(pa.table({"value": empty[:0], "topic": empty[:0], "key": empty[:0]})).to_list() == []


def test_chunks_with_dictionaries_of_their_own():
    table = pa.table({"value": dictionary(PLACES, WORDS)})
    other = pa.table({"value": dictionary([1, 0, None], ["q", "p" * 40])})
    batches = [*table.to_batches(), *table.slice(3, 0).to_batches(), *other.to_batches(), *table.slice(4).to_batches()]
    reader = pa.RecordBatchReader.from_batches(table.schema, batches)
    assert [row[1] for row in parse_table(reader, "t").to_list()] == [*WANTED, b"p" * 40, b"q", None, *WANTED[4:]]


def test_topics():
    table = pa.table({"value": [b"v"] * 5, "topic": dictionary([1, 1, 0, 1, 0], ["x", "y"])})
    rows = parse_table(table)
    assert [row[0] for row in rows.to_list()] == ["y", "y", "x", "y", "x"]
    assert rows.topics == ["y", "x"]
    for places, topics in (([1, None], ["x", "y"]), ([1, 0], [None, "y"])):
        with pytest.raises(ValueError, match=r"column 'topic'\[1\]: the topic is null"):
            parse_table(pa.table({"value": [b"v"] * 2, "topic": dictionary(places, topics)}))


def test_keys_and_values_of_headers():
    keys = dictionary([0, 1, 0, 2], ["a", "b", "ä"])
    pairs = pa.StructArray.from_arrays([keys, dictionary([0, None, 1, 0], [None, "v"])], ["key", "value"])
    wanted = [b"\x04\x02a\x01\x02b\x01", b"\0", b"\x04\x02a\x02v\x04\xc3\xa4\x01"]
    for made, width in ((pa.ListArray, "int32"), (pa.LargeListArray, "int64")):
        headers = made.from_arrays(pa.array([0, 2, 2, 4], width), pairs)
        assert column_of("headers", headers=headers) == wanted
        assert column_of("headers", headers=headers[1:], count=2) == wanted[1:]


def test_numbers_and_times():
    numbers = pa.array([7, None, 5, 7], "int32").dictionary_encode()
    assert column_of("partition", partition=numbers, count=4) == [7, -1, 5, 7]
    assert column_of("timestamp", timestamps_ms=numbers.cast(pa.dictionary("int8", "int64")), count=4) == [7, -1, 5, 7]
    times = pa.array([7_000, None, 5_999], pa.timestamp("us")).dictionary_encode()
    assert column_of("timestamp", timestamps_ms=times) == [7, -1, 5]
    assert "partition: expected integers, got Arrow dictionary of timestamp[us]" in refusal(TypeError, partition=times)
    assert "partition[1]: -3 is not from 0" in refusal(ValueError, partition=pa.array([0, -3, 1]).dictionary_encode())
    offsets = pa.array([0, 2, 2, 3], "int64").dictionary_encode()
    assert values_of((b"abc", offsets)) == [b"ab", b"", b"c"]


def test_words_that_are_no_bytes():
    numbers = pa.array([1, 2]).dictionary_encode()
    assert "expected a binary or string type" in refusal(TypeError, numbers)
    assert "got Arrow dictionary of int64; cast or encode it" in refusal(TypeError, numbers)
    assert "Arrow float64 cannot be read here" in refusal(TypeError, pa.array([1.5]).dictionary_encode())
    with pytest.raises(TypeError, match=r"^column 'value' dictionary: Arrow bool cannot be read here"):
        parse_table(pa.table({"value": pa.DictionaryArray.from_arrays([0], [True])}), "t")


@pytest.mark.parametrize("index", INDEXES, ids=str)
def test_indexes_that_lead_out_of_the_dictionary(index):
    for wrong in (2, 100, *(() if str(index).startswith("u") else (-1, -100))):
        places = pa.array([0, 1, wrong, 1], index)
        kind = pa.dictionary(index, pa.string())
        column = pa.DictionaryArray.from_buffers(kind, 4, places.buffers(), pa.array(["a", "b"]))
        text = rf"the Arrow dictionary of string array is malformed: index {wrong} leads out of its dictionary"
        with pytest.raises(ValueError, match=rf"^values\[2\]: {text}"):
            parse_arrays("t", column)
        with pytest.raises(ValueError, match=rf"^keys\[1\]: {text}"):
            parse_arrays("t", [b"v"] * 2, keys=pa.chunked_array([column[:1], column[:0], column[2:3]]))
        assert values_of(column[3:]) == [b"b"]
    null = pa.DictionaryArray.from_buffers(
        pa.dictionary(pa.int8(), pa.string()), 2, [pa.py_buffer(b"\1"), pa.py_buffer(b"\0\x64")],
        pa.array(["a"]),
    )  # fmt: skip
    assert values_of(null) == [b"a", None]


@pytest.mark.parametrize("index", ["int8", "int32", "uint32", "uint64"])
def test_indexes_that_change_afterwards(index):
    places = np.array([1, 0, 1], index)
    kind = pa.dictionary(pa.from_numpy_dtype(places.dtype), pa.string())
    column = pa.DictionaryArray.from_buffers(kind, 3, [None, pa.py_buffer(places)], pa.array(["a", "b"]))
    rows = parse_arrays("t", column, keys=column)
    places[:] = 100
    assert [row[1:3] for row in rows.to_list()] == [(b"b", b"b"), (b"a", b"a"), (b"b", b"b")]


def refused(change, kind=ValueError):
    """Return the message for a dictionary of which `change` has changed the array or the schema."""
    foreign = Foreign(pa.record_batch({"value": dictionary(PLACES, WORDS)}))
    change(child(foreign.array, 0), child(foreign.schema, 0))
    with pytest.raises(kind) as caught:
        parse_table(foreign, "t")
    assert str(caught.value).startswith("column 'value'")
    return str(caught.value)


def test_malformed_dictionaries():
    def of_itself(array, schema):
        words(schema).dictionary = schema.dictionary

    assert "a dictionary of dictionaries cannot be read; decode it" in refused(of_itself, TypeError)
    assert "its dictionary is missing" in refused(lambda array, schema: setattr(array, "dictionary", None))
    for spelling in (b"n", b"g", b""):
        message = refused(lambda array, schema, spelling=spelling: setattr(schema, "format", spelling))
        assert f"malformed: the indexes of a dictionary have the format {spelling.decode()!r}" in message
    assert "it was released" in refused(lambda array, schema: setattr(words(array), "release", None))
    assert "it was released, or has no format" in refused(lambda array, schema: setattr(words(schema), "format", None))
    for length in (1, 3):
        message = refused(lambda array, schema, length=length: setattr(words(array), "length", length))
        assert "[0]: the Arrow dictionary of string array is malformed: index 3 leads out of its" in message
    for member, number in (("length", -1), ("offset", -1), ("null_count", 6), ("n_buffers", 2), ("buffers", None)):
        message = refused(lambda array, schema, member=member, number=number: setattr(words(array), member, number))
        assert message.startswith("column 'value' dictionary: the Arrow string array is malformed: ")
