"""Tests Arrow structures that a faulty library may give: each is refused with a message, and none is followed."""

import ctypes
import sys

import pyarrow as pa
import pytest
from support.arrow_structures import Foreign, child

from cyproducer.producer.producer import parse_arrays, parse_table

PAIR = pa.struct([pa.field("key", pa.string(), nullable=False), ("value", pa.binary())])
HEADERS = pa.array([[("a", b"b")], None, [("c", None), ("d", b"e")]], pa.list_(PAIR))


def table():
    return pa.record_batch({"value": pa.array([b"a", None, b"c"]), "headers": HEADERS})


def refused(foreign, kind=ValueError):
    """Return the message with which a record batch is refused."""
    with pytest.raises(kind) as caught:
        parse_table(foreign, "t").to_list()
    return str(caught.value)


# ------------------------------------------------------------------ capsules


class SameStream:
    """A table that gives one stream twice."""

    def __init__(self, source):
        self.capsule = source.__arrow_c_stream__()

    def __arrow_c_stream__(self, requested_schema=None):
        return self.capsule


class SameArray:
    """An array that gives chosen capsules each time."""

    def __init__(self, *capsules):
        self.capsules = capsules

    def __arrow_c_array__(self, requested_schema=None):
        return self.capsules


def test_a_stream_that_was_read_before():
    source = SameStream(pa.table({"value": [b"a"] * 3}))
    assert len(parse_table(source, "t").to_list()) == 3
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^table: the capsule of Arrow has been read before; __arrow_c_stream__"):
            parse_table(source, "t")


def test_an_array_that_was_read_before():
    source = SameArray(*pa.array([b"a", b"b"]).__arrow_c_array__())
    first = parse_arrays("t", source)
    for name in ("values", "keys", "partition", "headers"):
        with pytest.raises(ValueError, match=rf"^{name}: the capsule of Arrow has been read before"):
            parse_arrays("t", **{"values": [b"x", b"y"], name: source})
    with pytest.raises(ValueError, match=r"^values offsets: the capsule of Arrow has been read before"):
        parse_arrays("t", (b"abc", source))
    assert [row[1] for row in first.to_list()] == [b"a", b"b"]


@pytest.mark.parametrize("released", [0, 1])
def test_one_capsule_that_was_read_before(released):
    capsules = [pa.array([number]).__arrow_c_array__() for number in (b"a", b"b")]
    parse_arrays("t", SameArray(*capsules[0]))
    mixed = [capsules[1][0], capsules[1][1]]
    mixed[released] = capsules[0][released]
    with pytest.raises(ValueError, match="has been read before"):
        parse_arrays("t", SameArray(*mixed))


@pytest.mark.parametrize(
    "capsules", [(), (1, 2), (None,), tuple(reversed(pa.array([b"a"]).__arrow_c_array__())), (1, 2, 3)]
)
def test_other_objects_than_capsules(capsules):
    with pytest.raises(TypeError, match=r"^values: (expected a capsule 'arrow_schema'|__arrow_c_array__\(\) must)"):
        parse_arrays("t", SameArray(*capsules))
    with pytest.raises(TypeError, match=r"^table: expected a capsule 'arrow_array_stream' of Arrow, got tuple"):
        source = SameStream(pa.table({"value": [b"a"]}))
        source.capsule = capsules
        parse_table(source, "t")


def test_a_structure_is_released_once():
    foreign = Foreign(table())
    rows = parse_table(foreign, "t")
    assert [row[1] for row in rows.to_list()] == [b"a", None, b"c"]
    assert foreign.releases == 0
    del rows
    assert foreign.releases == 1
    foreign.array.n_buffers = 0
    foreign.array.release = None
    assert "has been read before" in refused(foreign)
    assert foreign.releases == 1


# ------------------------------------------------------------------ members

ROOT, VALUE, LISTS, ENTRIES, KEY = (), (0,), (1,), (1, 0), (1, 0, 0)


@pytest.mark.parametrize("path", [ROOT, VALUE, LISTS, ENTRIES, KEY])
@pytest.mark.parametrize(
    ("member", "number", "words"),
    [
        ("length", -1, "its length is -1, its offset 0"),
        ("length", -(2**63), "its length is -9223372036854775808"),
        ("length", 2**62, "its length is 4611686018427387904"),
        ("offset", -1, "its offset -1"),
        ("offset", 2**63 - 1, "its offset 9223372036854775807"),
        ("null_count", -2, "-2 of 3 rows are null"),
        ("null_count", 4, "4 of 3 rows are null"),
        ("n_buffers", 0, "it has 0 buffers, expected"),
        ("n_buffers", -1, "it has -1 buffers, expected"),
        ("n_buffers", 4, "it has 4 buffers, expected"),
    ],
)
def test_wrong_numbers(path, member, number, words):
    foreign = Foreign(table())
    setattr(child(foreign.array, *path), member, number)
    message = refused(foreign)
    assert words in message
    assert "array is malformed" in message
    assert foreign.releases == 1


@pytest.mark.parametrize("path", [VALUE, LISTS, ENTRIES, KEY])
def test_a_released_child(path):
    for part in ("array", "schema"):
        foreign = Foreign(table())
        child(getattr(foreign, part), *path).release = None
        assert "is malformed: it was released" in refused(foreign)


@pytest.mark.parametrize("path", [ROOT, LISTS, ENTRIES])
def test_missing_children(path):
    for part, words in (("array", "array is malformed: it has"), ("schema", "malformed: it has no child 0")):
        foreign = Foreign(table())
        child(getattr(foreign, part), *path).children = None
        assert words in refused(foreign)
    foreign = Foreign(table())
    child(foreign.array, *path).children[0] = None
    assert "or one is missing" in refused(foreign)
    foreign = Foreign(table())
    child(foreign.schema, *path).children[0] = None
    assert "the Arrow schema is malformed" in refused(foreign)
    for count in (0, 3, -1):
        foreign = Foreign(table())
        child(foreign.array, *path).n_children = count
        assert f"it has {count} children, its type has" in refused(foreign)


@pytest.mark.parametrize(("path", "buffer"), [(VALUE, 1), (KEY, 1)])
def test_missing_buffers(path, buffer):
    foreign = Foreign(table())
    child(foreign.array, *path).buffers[buffer] = None
    assert "is malformed: its data or offsets are missing" in refused(foreign)
    foreign = Foreign(table())
    child(foreign.array, *path).buffers = None
    assert "is malformed: its buffers are missing" in refused(foreign)


@pytest.mark.parametrize("path", [ROOT, VALUE, LISTS, ENTRIES, KEY])
def test_nulls_without_a_bitmap(path):
    foreign = Foreign(table())
    array = child(foreign.array, *path)
    array.null_count, array.buffers[0] = 1, None
    assert "1 rows are null, but it has no validity bitmap" in refused(foreign)
    array = child((foreign := Foreign(table())).array, *path)
    array.null_count, array.buffers[0] = -1, None
    assert [row[1] for row in parse_table(foreign, "t").to_list()] == [b"a", b"" if path == VALUE else None, b"c"]


def test_children_that_are_shorter_than_their_struct():
    for path in (VALUE, LISTS):
        foreign = Foreign(table())
        child(foreign.array, *path).length = 2
        child(foreign.array, *path).null_count = -1
        assert "it has 2 rows, its struct has 3" in refused(foreign)
        foreign = Foreign(table())
        foreign.array.offset = 1
        assert "it has 3 rows, its struct has 4" in refused(foreign)


def test_offsets_of_a_struct_and_of_its_children_add_up():
    foreign = Foreign(table())
    foreign.array.offset, foreign.array.length = 1, 1
    child(foreign.array, 0).offset, child(foreign.array, 0).length = 1, 2
    assert [row[1] for row in parse_table(foreign, "t").to_list()] == [b"c"]


@pytest.mark.parametrize(
    ("spelling", "kind", "words"),
    [
        (None, ValueError, "values: the Arrow schema is malformed: it was released, or has no format"),
        (b"", TypeError, "values: Arrow type of format '' cannot be read here"),
        (b"\xff", TypeError, r"values: Arrow type of format '\\xff' cannot be read here"),
        (b"w:", TypeError, "'w:' cannot be read here"),
        (b"w:-4", TypeError, "'w:-4' cannot be read here"),
        (b"w:x", TypeError, "'w:x' cannot be read here"),
        (b"w:4x", TypeError, "'w:4x' cannot be read here"),
        (b"w:99999999999999999999", TypeError, "cannot be read here"),
        (b"ts", TypeError, "'ts' cannot be read here"),
        (b"tsx:", TypeError, "'tsx:' cannot be read here"),
        (b"tss", TypeError, "'tss' cannot be read here"),
        (b"zz", TypeError, "'zz' cannot be read here"),
        (b"vz", ValueError, "it has 2 buffers, expected 3 or more"),
        (b"z", ValueError, "it has 2 buffers, expected 3"),
        (b"+s", TypeError, "values: support.arrow_structures.Foreign holds rows of named columns"),
        (b"b", TypeError, "Arrow bool cannot be read here"),
    ],
)
def test_malformed_formats(spelling, kind, words):
    foreign = Foreign(pa.array([b"ab"], pa.binary(2)))
    foreign.schema.format = spelling
    if spelling == b"+s":
        foreign.array.n_buffers = 1
    with pytest.raises(kind) as caught:
        parse_arrays("t", foreign)
    assert words in str(caught.value)


@pytest.mark.parametrize("count", [-1, 2, 2**31, 2**60 + 3, 2**63 - 1])
def test_wrong_numbers_of_buffers_of_views(count):
    foreign = Foreign(pa.array(["more than twelve bytes"], pa.string_view()))
    foreign.array.n_buffers = count
    with pytest.raises(ValueError, match=f"it has {count} buffers, expected 3 or more"):
        parse_arrays("t", foreign)


def test_names_that_are_not_utf8():
    foreign = Foreign(table())
    child(foreign.schema, 0).name = b"\xff"
    assert r"column '\\xff' is not part of a Kafka record" in refused(foreign)
    child((foreign := Foreign(table())).schema, 0).name = None
    assert "column '' is not part of a Kafka record" in refused(foreign)


def test_rows_whose_bytes_no_process_can_have():
    foreign = Foreign(pa.array([b"ab"], pa.binary(2)))
    foreign.schema.format, foreign.array.length = b"w:2147483647", 2**40
    with pytest.raises(ValueError, match="1099511627776 rows of 2147483647 bytes"):
        parse_arrays("t", foreign)


# ------------------------------------------------------------------ streams


class Stream(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_void_p) for name in ("get_schema", "get_next", "get_last_error", "release", "private_data")
    )


@pytest.mark.parametrize("function", ["get_schema", "get_next", "get_last_error"])
def test_a_stream_without_a_function(function):
    source = SameStream(pa.table({"value": [b"a"]}))
    address = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(source.capsule), b"arrow_array_stream")
    setattr(Stream.from_address(address), function, None)
    with pytest.raises(ValueError, match="table: the Arrow stream is malformed: a function is missing"):
        parse_table(source, "t")


def number(count):
    return count.to_bytes(4, sys.byteorder, signed=True)


@pytest.mark.parametrize(
    "metadata",
    [
        None,
        number(0),
        number(-1),
        number(1) + number(-1),
        number(1) + number(6) + b"pandas" + number(-1),
        number(2) + number(0) + number(-(2**31)),
    ],
)
def test_malformed_metadata_is_not_followed(metadata):
    foreign = Foreign(pa.record_batch({"value": [b"a"], "id": [1]}))
    text = None if metadata is None else ctypes.create_string_buffer(metadata, len(metadata))
    foreign.schema.metadata = text and ctypes.addressof(text)
    assert refused(foreign).startswith("table: column 'id' is not part of a Kafka record")


def test_a_fixed_size_list_with_too_few_elements():
    lists = pa.array([[("a", b"b")]] * 3, pa.list_(PAIR, 1))
    for kind in (b"+w:2", b"+w:9999999999"):
        foreign = Foreign(pa.record_batch({"value": [b"a"] * 3, "headers": lists}))
        child(foreign.schema, 1).format = kind
        assert f"3 lists of {int(kind[3:])} have 3 elements" in refused(foreign)
    for kind in (b"+w:-1", b"+w:", b"+w:x", b"+w:" + b"9" * 11):
        foreign = Foreign(pa.record_batch({"value": [b"a"] * 3, "headers": lists}))
        child(foreign.schema, 1).format = kind
        assert refused(foreign, TypeError).startswith("column 'headers': expected list<struct")
    foreign = Foreign(pa.record_batch({"value": [b"a"] * 3, "headers": lists}))
    child(foreign.array, 1).offset = 1
    assert "4 lists of 1 have 3 elements" in refused(foreign)


@pytest.mark.parametrize(("buffer", "words"), [(1, "its offsets are missing"), (2, "its sizes are missing")])
def test_a_list_view_without_a_buffer(buffer, words):
    lists = pa.array([[("a", b"b")]] * 3, pa.list_view(PAIR))
    foreign = Foreign(pa.record_batch({"value": [b"a"] * 3, "headers": lists}))
    child(foreign.array, 1).buffers[buffer] = None
    assert f"the Arrow list_view array is malformed: {words}" in refused(foreign)
