"""Tests generated arrays and tables, valid, wrong and changing ones, beside an oracle, with fixed seeds.

Longer by hand: `python -m tests.arrays --help`.
"""

from arrays.campaign import play

CALLS = 600


def test_generated_calls():
    met = play(1, CALLS)
    assert sum(met.values()) == CALLS
    for kind in ("sent", "refused: TypeError", "refused: ValueError"):
        assert met[kind] > CALLS // 10
    assert met["changing: sent"] + met["changing: refused"] > CALLS // 100
