"""Tests two hundred transactions whose calls are cancelled. More: `python -m tests.cancelled --help`."""

import pytest

from cancelled.campaign import PRODUCERS, Plan, run

SEED = 5


@pytest.mark.parametrize(
    ("transactions", "threads"),
    [(200, 2), pytest.param(10_000, 4, marks=[pytest.mark.long, pytest.mark.timeout(1800)])],
)
def test_no_transaction_is_visible_in_part_and_no_result_is_lost(kafka, runtime_dir, transactions, threads):
    topic = kafka.create_topic(f"cancelled-{transactions}", 1)
    result = run(Plan(transactions, threads, SEED), kafka.bootstrap_servers, topic)
    print(result.text())
    assert not result.defects, result.text()
    assert result.counts["committed"] + result.counts["aborted"] == transactions
    assert result.counts["cancelled calls"] > 0
    assert result.counts["late calls that were refused"] > 0
    assert result.counts["groups with the right offset"] > PRODUCERS / 2
