"""Tests dozens of kills of eight front-ends, senders and three brokers. More: `python -m tests.chaos --help`."""

from pathlib import Path

import pytest
from support.secure_kafka import SecureKafka, secure_kafka_fixture

from chaos.clients import plain_clients, secure_clients
from chaos.monkey import ACTIONS
from chaos.run import Plan, run

KILLS, KILLS_OF_PARTS = 30, 15
SECONDS, SECONDS_OF_PARTS = 36.0, 18.0
KILLS_SECURE, SECONDS_SECURE = 8, 10.0
SEED = 20

secure_kafka = secure_kafka_fixture(max_reauth_ms=2000)


@pytest.mark.timeout(280)
def test_kills(kafka3, runtime_dir, tmp_path: Path):
    result = run(Plan(KILLS, SEED, SECONDS, rate=200), plain_clients(kafka3), tmp_path / "run")
    print(result.text())
    assert result.clean, result.text()
    assert result.monkey.killed >= KILLS


@pytest.mark.long
@pytest.mark.timeout(280)
def test_kills_while_batches_are_sent_in_parts(kafka3, runtime_dir, tmp_path: Path):
    plan = Plan(KILLS_OF_PARTS, SEED, SECONDS_OF_PARTS, rate=200, max_message_bytes=2000)
    result = run(plan, plain_clients(kafka3), tmp_path / "run")
    print(result.text())
    assert result.clean, result.text()


@pytest.mark.long
@pytest.mark.timeout(280)
def test_kills_over_tls_and_sasl(secure_kafka: SecureKafka, runtime_dir: Path, tmp_path: Path) -> None:
    """Each connection authenticates again every two seconds. The command also kills brokers: `--security SASL_SSL`."""
    actions = {name: weight for name, weight in ACTIONS.items() if not name.endswith("leader")}
    actions |= {"kill sender": 50, "kill both": 10}
    plan = Plan(KILLS_SECURE, SEED, SECONDS_SECURE, rate=100, actions=actions)
    result = run(plan, secure_clients(secure_kafka, "SASL_SSL", "SCRAM-SHA-512"), tmp_path / "run")
    print(result.text())
    assert result.clean, result.text()
