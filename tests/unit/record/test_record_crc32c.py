"""Tests CRC-32C: published vectors, every implementation against the twin, continuation and combination."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cyproducer.record import crc32c, twin

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


@pytest.fixture(params=crc32c.implementations())
def implementation(request):
    before = crc32c.implementation()
    crc32c.use_implementation(request.param)
    yield request.param
    crc32c.use_implementation(before)


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
    assert crc32c.implementation() == crc32c.implementations()[-1]
    assert crc32c.implementations()[0] == "portable"


def test_an_unknown_implementation_is_refused():
    before = crc32c.implementation()
    with pytest.raises(ValueError, match="abacus"):
        crc32c.use_implementation("abacus")
    assert crc32c.implementation() == before


def test_the_published_vectors(implementation):
    for data, crc in VECTORS:
        assert crc32c.crc32c(data) == crc
        assert twin.crc32c(data) == crc


def test_every_length_at_every_alignment(implementation, expected):
    view = memoryview(DATA)
    for start, row in expected.items():
        for n, crc in enumerate(row):
            assert crc32c.crc32c(view[start : start + n]) == crc, (start, n)


def test_long_input_crosses_blocks(implementation):
    whole = twin.crc32c(DATA)
    assert crc32c.crc32c(DATA) == whole
    for n in (3 * 2048 - 1, 3 * 2048, 3 * 2048 + 1, 6 * 2048 + 215, 6 * 2048 + 216, 39_999):
        assert crc32c.crc32c(DATA[n:], crc32c.crc32c(DATA[:n])) == whole
        assert crc32c.combine(crc32c.crc32c(DATA[:n]), crc32c.crc32c(DATA[n:]), len(DATA) - n) == whole


def test_every_split_continues_and_combines(implementation):
    data = DATA[:2048]
    whole = twin.crc32c(data)
    for n in range(2049):
        head, tail = crc32c.crc32c(data[:n]), crc32c.crc32c(data[n:])
        assert crc32c.crc32c(data[n:], head) == whole
        assert crc32c.combine(head, tail, 2048 - n) == whole


@pytest.mark.parametrize("power", range(64))
def test_combining_any_length_agrees_among_implementations(power):
    before = crc32c.implementation()
    try:
        found = set()
        for name in crc32c.implementations():
            crc32c.use_implementation(name)
            found.add(crc32c.combine(0x12345678, 0x9ABCDEF0, (1 << power) | (1 << (power // 2))))
        assert len(found) == 1
    finally:
        crc32c.use_implementation(before)


def test_combining_a_great_length_is_combining_its_halves():
    one = crc32c.crc32c(bytes(1 << 20))
    crc = one
    for doubling in range(20, 45):
        crc = crc32c.combine(crc, crc, 1 << doubling)
    # 2^45 zero bytes, combined from the small end
    other = 0
    for _ in range(2):
        half = one
        for doubling in range(20, 44):
            half = crc32c.combine(half, half, 1 << doubling)
        other = crc32c.combine(other, half, 1 << 44)
    assert crc == other


@settings(deadline=None)
@given(st.lists(st.binary(max_size=700), max_size=6))
def test_pieces_make_the_whole(pieces):
    running = combined = 0
    for piece in pieces:
        running = crc32c.crc32c(piece, running)
        combined = crc32c.combine(combined, crc32c.crc32c(piece), len(piece))
    assert running == combined == twin.crc32c(b"".join(pieces))
