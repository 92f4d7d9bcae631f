"""Tests some scenarios for a short time; `python -m tests.neighbours` runs all of them for a long time.

A busy machine makes any time long: only another front-end's whole backlog or timeout can break the bounds.
"""

from pathlib import Path

import pytest

from neighbours.run import measure
from neighbours.scenarios import SCENARIOS


@pytest.mark.parametrize(
    "name", [pytest.param("frozen", marks=pytest.mark.long), pytest.param("short", marks=pytest.mark.long), "hog"]
)
def test_a_front_end_is_served_beside_noisy_ones(name: str, runtime_dir: Path) -> None:
    outcome = measure(name, SCENARIOS[name], runtime_dir, 3.0)
    (runtime_dir / "neighbours.log").unlink()
    print(outcome.text())
    assert not outcome.beside["failed"]
    assert outcome.beside["n"] >= 10
    assert outcome.beside["p50"] < 500, outcome.text()
    assert outcome.beside["max"] < 10_000, outcome.text()
