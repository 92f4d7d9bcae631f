"""Tests fifty kills: eight front-ends, three brokers, 48 partitions. Longer runs: `python -m tests.chaos --help`."""

from pathlib import Path

import pytest

from chaos.run import Plan, run

KILLS = 50
SECONDS = 60.0
SEED = 20


@pytest.mark.timeout(280)
def test_fifty_kills(kafka3, runtime_dir, tmp_path: Path):
    result = run(Plan(KILLS, SEED, SECONDS, rate=200), kafka3, tmp_path / "run")
    print(result.text())
    assert result.clean, result.text()
    assert result.monkey.killed >= KILLS
    assert result.report.counts["accepted"] > 10_000
