"""Tests the sender's check of a batch before it makes the CRC, against a slow reading of the same bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from probe.native import RecordBatchBuilder, check


class BadError(Exception):
    """The bytes are not valid records."""


def plain_varint(data: bytes, at: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if shift >= bits or at >= len(data):
            raise BadError
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if (byte == 0 and shift) or value >> bits:
                raise BadError
            return (value >> 1) ^ -(value & 1), at
        shift += 7


def plain_field(data: bytes, at: int, least: int) -> int:
    length, at = plain_varint(data, at, 32)
    if length < least or at + max(length, 0) > len(data):
        raise BadError
    return at + max(length, 0)


def plain_check(data: bytes, count: int, first: int) -> bool:
    """Make the same check with simple, slow code."""
    try:
        at = 0
        for number in range(count):
            length, at = plain_varint(data, at, 32)
            if length < 1 or at + length > len(data) or data[at] != 0:
                raise BadError
            record = data[: at + length]
            _, at = plain_varint(record, at + 1, 64)
            delta, at = plain_varint(record, at, 32)
            if delta != first + number:
                raise BadError
            at = plain_field(record, plain_field(record, at, -1), -1)
            headers, at = plain_varint(record, at, 32)
            if headers < 0:
                raise BadError
            for _ in range(min(headers, len(record))):
                at = plain_field(record, plain_field(record, at, 0), -1)
            if at != len(record):
                raise BadError
        return at == len(data)
    except BadError:
        return False


sizes = st.integers(60, 70) | st.sampled_from([8191, 8192])
content = st.one_of(st.none(), st.binary(max_size=6), sizes.map(bytes))
records = st.lists(
    st.tuples(
        st.integers(-(2**40), 2**40) | st.integers(-70, 70),
        content,
        content,
        st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3)), max_size=2),
    ),
    min_size=1,
    max_size=80,
)


def built(rows: list[tuple]) -> bytes:
    builder = RecordBatchBuilder(4 << 20)
    for row in rows:
        builder.append(*row)
    return builder.records()


@given(records)
def test_records_are_records(rows: list[tuple]) -> None:
    data = built(rows)
    assert check(data, len(rows), 0)
    assert plain_check(data, len(rows), 0)
    assert not check(data, len(rows) + 1, 0)
    assert not check(data, len(rows), 1)
    assert check(data, len(rows) - 1, 0) is False
    assert not check(data[:-1], len(rows), 0)
    assert not check(data + b"\0", len(rows), 0)


@given(records, st.data())
def test_every_changed_byte_is_judged_as_by_the_plain_reading(rows: list[tuple], draw: st.DataObject) -> None:
    data = bytearray(built(rows))
    for at in draw.draw(st.lists(st.integers(0, min(len(data), 300) - 1), min_size=1, max_size=4)):
        data[at] = draw.draw(st.integers(0, 255))
    assert check(bytes(data), len(rows), 0) == plain_check(bytes(data), len(rows), 0)


@given(st.binary(max_size=200), st.integers(0, 5), st.integers(0, 2))
def test_noise_is_judged_as_by_the_plain_reading(data: bytes, count: int, first: int) -> None:
    assert check(data, count, first) == plain_check(data, count, first)


@pytest.mark.parametrize("first", [0, 1, 63, 64, 8191, 8192, 1 << 20, (1 << 31) - 2])
def test_offset_deltas_go_on_from_any_first(first: int) -> None:
    """The records are those of a later chunk of a chain: with and without a key, long ones, and with headers."""
    data = b""
    for delta in (first, first + 1):
        zigzag, offset = delta << 1, b""
        while zigzag >= 0x80:
            offset += bytes([zigzag & 0x7F | 0x80])
            zigzag >>= 7
        offset += bytes([zigzag])
        body = b"\0\x08" + offset + b"\x01" + b"\x28" + b"v" * 20 + b"\0"
        data += bytes([len(body) << 1]) + body
    assert check(data, 2, first)
    assert plain_check(data, 2, first)
    assert not check(data, 2, first + 1)


@pytest.mark.parametrize(
    "falsify",
    [
        pytest.param(lambda data: data[:3] + b"\x02" + data[4:], id="offset delta"),
        pytest.param(lambda data: data[:1] + b"\x01" + data[2:], id="attributes"),
        pytest.param(lambda data: data[:4] + b"\x03" + data[5:], id="key of -2 bytes"),
        pytest.param(lambda data: data[:-1] + b"\x02", id="a header that is not there"),
        pytest.param(lambda data: b"\x80\x00" + data[1:], id="varint longer than need be"),
    ],
)
def test_fields_that_no_broker_checks(falsify) -> None:
    data = built([(0, None, b"v" * 20, [])])
    assert check(data, 1, 0)
    assert not check(falsify(data), 1, 0)
