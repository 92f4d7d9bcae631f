"""Tests that `send_array` takes the headers that `send` takes, and tells those of all rows from those of each row."""

from types import MappingProxyType

import pytest
from support.columns import column_of, refusal

PAIRS = (("a", b"b"), ("ä", None))
SECTION = b"\x04\x02a\x02b\x04\xc3\xa4\x01"


class Text(str):
    """A str whose length and encoding are not those of its characters."""

    def __len__(self):
        return 0

    def encode(self, *arguments):
        return b""


class Bytes(bytes):
    """Bytes with another length than theirs."""

    def __len__(self):
        return 1 << 40


@pytest.mark.parametrize(
    "make",
    [
        lambda: PAIRS,
        lambda: list(PAIRS),
        lambda: [list(pair) for pair in PAIRS],
        lambda: iter(PAIRS),
        lambda: dict(PAIRS),
        lambda: MappingProxyType(dict(PAIRS)),
        lambda: dict(PAIRS).items(),
        lambda: (pair for pair in PAIRS),
        lambda: [("a", bytearray(b"b")), ("ä", None)],
        lambda: [("a", memoryview(b"xbx")[1:2]), ("ä", None)],
        lambda: [(Text("a"), Bytes(b"b")), (Text("ä"), None)],
        lambda: [("a", "b"), ("ä", None)],
        lambda: {"a": Text("b"), "ä": None},
    ],
)
def test_headers_of_all_rows_and_of_each_row(make):
    assert column_of("headers", headers=make()) == [SECTION] * 3
    assert column_of("headers", headers=[make(), None, ()]) == [SECTION, b"\0", b"\0"]
    assert column_of("headers", headers=(each for each in ([], make(), make()))) == [b"\0", SECTION, SECTION]
    assert column_of("headers", headers=[None, iter(()), make()]) == [b"\0", b"\0", SECTION]


def test_a_set_of_headers():
    assert column_of("headers", headers={PAIRS[0]}) == [b"\x02\x02a\x02b"] * 3
    assert column_of("headers", headers=[{PAIRS[0]}, set(), None]) == [b"\x02\x02a\x02b", b"\0", b"\0"]


def test_a_list_that_its_own_iteration_changes():
    class Growing(list):
        def __iter__(self):
            for item in tuple(super().__iter__()):
                self.clear()
                yield item

    assert column_of("headers", headers=Growing(PAIRS)) == [SECTION] * 3
    assert column_of("headers", headers=[Growing(PAIRS), None, Growing()]) == [SECTION, b"\0", b"\0"]


@pytest.mark.parametrize(
    ("headers", "kind", "words"),
    [
        ("text", TypeError, "headers must be a dict or a sequence of (str, bytes, str or None), not str"),
        (b"bytes", TypeError, "headers must be a dict or a sequence of (str, bytes, str or None), not bytes"),
        (5, TypeError, "headers must be a dict or a sequence of (str, bytes, str or None), not int"),
        (["text"], TypeError, "headers[0] must be a tuple (str, bytes, str or None), not a str"),
        ([5], TypeError, "headers[0] must be a tuple (str, bytes, str or None), not a int"),
        ([("a",)], TypeError, "headers[0] must be a tuple (str, bytes, str or None), not a tuple of 1"),
        ([("a", b"b", b"c")], TypeError, "headers[0] must be a tuple (str, bytes, str or None), not a tuple of 3"),
        ([(None, b"b")], TypeError, "headers[0]: the key must be a str, not NoneType"),
        ([(b"a", b"b")], TypeError, "headers[0]: the key must be a str, not bytes"),
        ([("a", b"b"), None], TypeError, "headers[1] must be a tuple (str, bytes, str or None), not a NoneType"),
        ([("a", 1)], TypeError, "headers[0] ('a'): the value must be bytes, str or None, not int; encode it"),
        ([("a", "\udfff")], ValueError, "headers[0] ('a'): the value cannot be encoded: 'utf-8' codec"),
        ([("\ud800", b"b")], ValueError, r"headers[0] ('\ud800'): the key cannot be encoded: 'utf-8' codec"),
    ],
)
def test_wrong_headers(headers, kind, words):
    assert refusal(kind, headers=headers).startswith(words)


@pytest.mark.parametrize(
    ("row", "kind", "words"),
    [
        ({1: b"b"}, TypeError, "headers[1][0]: the key must be a str, not int"),
        ("text", TypeError, "headers[1] must be a dict or a sequence of (str, bytes, str or None), not str"),
        ([("a", 1)], TypeError, "headers[1][0] ('a'): the value must be bytes, str or None, not int"),
        ([("a", b"b"), ("\udfff", b"")], ValueError, r"headers[1][1] ('\udfff'): the key cannot be encoded"),
        (("a", b"b"), TypeError, "headers[1][0] must be a tuple (str, bytes, str or None), not a str"),
    ],
)
def test_wrong_headers_of_a_row(row, kind, words):
    assert refusal(kind, headers=[None, row, None]).startswith(words)
