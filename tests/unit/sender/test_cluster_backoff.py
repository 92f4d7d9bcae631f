"""Tests exponential backoff: growth, jitter and limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cyproducer.sender.cluster.backoff import ExponentialBackoff


def test_doubles_up_to_the_maximum():
    backoff = ExponentialBackoff(100, 1000, jitter=0)
    assert [backoff.delay_ms(attempts) for attempts in range(6)] == [100, 200, 400, 800, 1000, 1000]


def test_jitter_spreads_to_both_sides():
    low = ExponentialBackoff(100, 1000, source=lambda: 0.0)
    high = ExponentialBackoff(100, 1000, source=lambda: 0.999999)
    assert (low.delay_ms(0), low.delay_ms(1)) == (80, 160)
    assert (high.delay_ms(0), high.delay_ms(1)) == (119, 239)


def test_jitter_never_exceeds_the_maximum():
    assert ExponentialBackoff(100, 1000, source=lambda: 0.999999).delay_ms(9) == 1000


@pytest.mark.parametrize("base", [1000, 1001, 60_000])
def test_a_base_that_is_not_below_the_maximum_gives_the_maximum(base):
    backoff = ExponentialBackoff(base, 1000, source=lambda: 0.0)
    assert [backoff.delay_ms(attempts) for attempts in range(3)] == [1000] * 3


@given(st.integers(0, 10_000), st.integers(0, 100_000), st.integers(0, 10_000), st.floats(0, 0.99))
def test_bounds(base, maximum, attempts, jitter):
    delay = ExponentialBackoff(base, maximum, jitter).delay_ms(attempts)
    assert int(min(base, maximum) * (1 - jitter)) - 1 <= delay <= maximum


@pytest.mark.parametrize(("base", "maximum", "jitter"), [(-1, 10, 0.2), (1, -1, 0.2), (1, 2, 1), (1, 2, -0.1)])
def test_nonsense_is_refused(base, maximum, jitter):
    with pytest.raises(ValueError, match=r"backoff|jitter"):
        ExponentialBackoff(base, maximum, jitter)
