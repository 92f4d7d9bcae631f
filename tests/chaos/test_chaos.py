"""Tests dozens of kills of eight front-ends, senders and three brokers. More: `python -m tests.chaos --help`."""

from pathlib import Path

import pytest

from chaos.run import Plan, run

KILLS, KILLS_OF_PARTS = 30, 15
SECONDS, SECONDS_OF_PARTS = 36.0, 18.0
SEED = 20


@pytest.mark.timeout(280)
def test_kills(kafka3, runtime_dir, tmp_path: Path):
    result = run(Plan(KILLS, SEED, SECONDS, rate=200), kafka3, tmp_path / "run")
    print(result.text())
    assert result.clean, result.text()
    assert result.monkey.killed >= KILLS
    assert result.report.counts["accepted"] > 10_000


@pytest.mark.timeout(280)
def test_kills_while_batches_are_sent_in_parts(kafka3, runtime_dir, tmp_path: Path):
    plan = Plan(KILLS_OF_PARTS, SEED, SECONDS_OF_PARTS, rate=200, max_message_bytes=2000)
    result = run(plan, kafka3, tmp_path / "run")
    print(result.text())
    assert result.clean, result.text()
    assert result.report.counts["accepted"] > 3_000
