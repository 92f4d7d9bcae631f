"""Tests CRC-32C: published vectors, every implementation against the twin, continuation and combination."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe import native
from support import record_twin as twin

# RFC 3720 B.4 and the check value of the CRC catalogue
VECTORS = [
    (b"", 0x00000000),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]
DATA = random.Random(1).randbytes(40_000)


@pytest.fixture(params=native.implementations())
def implementation(request):
    before = native.implementation()
    native.use_implementation(request.param)
    yield request.param
    native.use_implementation(before)


@pytest.fixture(scope="module")
def expected():
    """Return the CRCs by the twin of every prefix of DATA up to 2048 bytes, started at each of 16 alignments."""
    table = {}
    for start in range(16):
        crc, row = 0, [0]
        for at in range(start, start + 2048):
            crc = twin.crc32c(DATA[at : at + 1], crc)
            row.append(crc)
        table[start] = row
    return table


def test_the_fastest_is_chosen():
    assert native.implementation() == native.implementations()[-1]
    assert native.implementations()[0] == "portable"


def test_an_unknown_implementation_is_refused():
    before = native.implementation()
    with pytest.raises(ValueError, match="abacus"):
        native.use_implementation("abacus")
    assert native.implementation() == before


def test_the_published_vectors(implementation):
    for data, crc in VECTORS:
        assert native.crc32c(data) == crc
        assert twin.crc32c(data) == crc


def test_every_length_at_every_alignment(implementation, expected):
    view = memoryview(DATA)
    for start, row in expected.items():
        for n, crc in enumerate(row):
            assert native.crc32c(view[start : start + n]) == crc, (start, n)


def test_long_input_crosses_blocks(implementation):
    whole = twin.crc32c(DATA)
    assert native.crc32c(DATA) == whole
    for n in (3 * 2048 - 1, 3 * 2048, 3 * 2048 + 1, 6 * 2048 + 215, 6 * 2048 + 216, 39_999):
        assert native.crc32c(DATA[n:], native.crc32c(DATA[:n])) == whole
        assert native.combine(native.crc32c(DATA[:n]), native.crc32c(DATA[n:]), len(DATA) - n) == whole


def test_every_split_continues_and_combines(implementation):
    data = DATA[:2048]
    whole = twin.crc32c(data)
    for n in range(2049):
        head, tail = native.crc32c(data[:n]), native.crc32c(data[n:])
        assert native.crc32c(data[n:], head) == whole
        assert native.combine(head, tail, 2048 - n) == whole


@pytest.mark.parametrize("power", range(64))
def test_combining_any_length_agrees_among_implementations(power):
    before = native.implementation()
    try:
        found = set()
        for name in native.implementations():
            native.use_implementation(name)
            found.add(native.combine(0x12345678, 0x9ABCDEF0, (1 << power) | (1 << (power // 2))))
        assert len(found) == 1
    finally:
        native.use_implementation(before)


def test_combining_a_great_length_is_combining_its_halves():
    one = native.crc32c(bytes(1 << 20))
    crc = one
    for doubling in range(20, 45):
        crc = native.combine(crc, crc, 1 << doubling)
    # 2^45 zero bytes, combined from the small end
    other = 0
    for _ in range(2):
        half = one
        for doubling in range(20, 44):
            half = native.combine(half, half, 1 << doubling)
        other = native.combine(other, half, 1 << 44)
    assert crc == other


@settings(deadline=None)
@given(st.lists(st.binary(max_size=700), max_size=6))
def test_pieces_make_the_whole(pieces):
    running = combined = 0
    for piece in pieces:
        running = native.crc32c(piece, running)
        combined = native.combine(combined, native.crc32c(piece), len(piece))
    assert running == combined == twin.crc32c(b"".join(pieces))
