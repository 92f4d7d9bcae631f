"""Tests varints: boundary tables, agreement with the twin, and a reader that takes only the one valid encoding."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe import native
from support import record_twin as twin

VARINT_TABLE = [
    (0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-65, "8101"), (8191, "fe7f"),
    (-8192, "ff7f"), (8192, "808001"), (-8193, "818001"), (1048575, "feff7f"), (-1048576, "ffff7f"),
    (1048576, "80808001"), (134217727, "feffff7f"), (134217728, "8080808001"), (2147483647, "feffffff0f"),
    (-2147483648, "ffffffff0f"),
]  # fmt: skip
VARLONG_TABLE = [
    *VARINT_TABLE,
    (2147483648, "8080808010"),
    (17179869183, "feffffff7f"),
    (17179869184, "808080808001"),
    (9223372036854775807, "feffffffffffffffff01"),
    (-9223372036854775808, "ffffffffffffffffff01"),
]
UVARINT_TABLE = [
    (0, "00"), (127, "7f"), (128, "8001"), (16383, "ff7f"), (16384, "808001"), (2097151, "ffff7f"),
    (2097152, "80808001"), (268435455, "ffffff7f"), (268435456, "8080808001"), (4294967295, "ffffffff0f"),
]  # fmt: skip
CODECS = [
    (native.encode_varint, native.decode_varint, VARINT_TABLE),
    (native.encode_varlong, native.decode_varlong, VARLONG_TABLE),
    (native.encode_uvarint, native.decode_uvarint, UVARINT_TABLE),
]


@pytest.mark.parametrize(("encode", "decode", "table"), CODECS)
def test_boundary_tables(encode, decode, table):
    for value, text in table:
        data = bytes.fromhex(text)
        assert encode(value) == data
        assert decode(data) == (value, len(data))
        assert decode(data + b"\xff\xff") == (value, len(data))


@pytest.mark.parametrize(("encode", "decode", "table"), CODECS)
def test_a_cut_encoding_is_refused(encode, decode, table):
    for _, text in table:
        data = bytes.fromhex(text)
        for cut in range(len(data)):
            assert decode(data[:cut]) is None


@pytest.mark.parametrize(("encode", "decode", "table"), CODECS)
def test_a_padded_encoding_is_refused(encode, decode, table):
    for _, text in table:
        data = bytes.fromhex(text)
        padded = data[:-1] + bytes([data[-1] | 0x80, 0])
        assert decode(padded) is None


@pytest.mark.parametrize(
    ("decode", "text"),
    [
        (native.decode_varint, "ffffffff10"),
        (native.decode_varint, "8080808080"),
        (native.decode_varint, "808080808001"),
        (native.decode_uvarint, "ffffffff1f"),
        (native.decode_uvarint, "ffffffff7f"),
        (native.decode_varlong, "ffffffffffffffffff02"),
        (native.decode_varlong, "ffffffffffffffffff7f"),
        (native.decode_varlong, "ffffffffffffffffffff01"),
    ],
)
def test_too_many_bits_are_refused(decode, text):
    assert decode(bytes.fromhex(text)) is None


@settings(deadline=None)
@given(st.integers(-(2**31), 2**31 - 1))
def test_varint_equals_the_twin(value):
    data = native.encode_varint(value)
    assert data == twin.varint(value)
    assert native.decode_varint(data) == (value, len(data))


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_varlong_equals_the_twin(value):
    data = native.encode_varlong(value)
    assert data == twin.varlong(value)
    assert native.decode_varlong(data) == (value, len(data))


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_uvarint_equals_the_twin(value):
    data = native.encode_uvarint(value)
    assert data == twin.uvarint(value)
    assert native.decode_uvarint(data) == (value, len(data))


edges = st.lists(st.sampled_from([0, 1, 2, 15, 16, 127, 128, 255]), max_size=12).map(bytes)


@settings(deadline=None)
@given(st.binary(max_size=12) | edges)
def test_whatever_a_reader_accepts_is_the_one_encoding(data):
    for encode, decode, _ in CODECS:
        read = decode(data)
        if read is not None:
            value, used = read
            assert encode(value) == data[:used]
