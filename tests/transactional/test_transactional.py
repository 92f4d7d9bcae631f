"""Tests dozens of kills of transactional front-ends, senders and brokers. More: `python -m tests.transactional`."""

from pathlib import Path

import pytest
from devkafka.node import KafkaCluster

from transactional.check import Outcome, Report, _judge
from transactional.run import KINDS, Plan, Result, run

KILLS, SECONDS, SEED = 15, 20.0, 7


def check(result: Result) -> None:
    """Check what is visible, and that each kind of process was killed, so that a clean run says something of it."""
    print(result.text())
    assert result.clean, result.text()
    kinds = result.monkey.kinds()
    assert all(kinds[name] for name in KINDS), result.text()
    assert kinds.total() >= KILLS


@pytest.mark.timeout(420)
def test_kills(kafka3, runtime_dir, tmp_path: Path):
    check(run(Plan(KILLS, SEED, SECONDS), kafka3, tmp_path / "run"))


@pytest.mark.long
@pytest.mark.timeout(420)
def test_kills_with_the_protocol_before_kip_890(register_cluster, runtime_dir, tmp_path: Path):
    with KafkaCluster(3, features={"transaction.version": 1}) as cluster, register_cluster(cluster):
        check(run(Plan(KILLS, SEED, SECONDS, may_be_fenced=True), cluster, tmp_path / "run"))


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (Outcome(3, True, "committed"), [0, 1]),
        (Outcome(3, True, "committed"), [0, 1, 1, 2]),
        (Outcome(3, True, "committed"), []),
        (Outcome(3, True, "aborted"), [0, 1, 2]),
        (Outcome(3, False, ""), [0, 1, 2]),
        (Outcome(3, True, ""), [2]),
        (Outcome(3, True, "unknown"), [2]),
    ],
)
def test_the_check_finds_what_is_wrong(outcome: Outcome, found: list[int]):
    report = Report()
    _judge(report, "t", outcome, found)
    assert report.defects


@pytest.mark.parametrize(
    ("outcome", "found"),
    [
        (Outcome(3, True, "committed"), [0, 1, 2]),
        (Outcome(3, True, "aborted"), []),
        (Outcome(3, True, ""), [0, 1, 2]),
        (Outcome(3, True, ""), []),
        (Outcome(3, True, "unknown"), [0, 1, 2]),
        (Outcome(3, True, "unknown"), []),
    ],
)
def test_the_check_accepts_what_is_right(outcome: Outcome, found: list[int]):
    report = Report()
    _judge(report, "t", outcome, found)
    assert report.defects == []
