"""Tests `cyproducer doctor` on secured listeners of a real Kafka: what is well, a wrong password, a wrong authority."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.process import cyproducer
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor

TIMEOUT_S = 120


@pytest.fixture
def settings_file(tmp_path: Path) -> Path:
    path = tmp_path / "settings"
    path.touch(0o600)
    return path


def doctor(settings_file: Path, settings: dict[str, Any], *arguments: str) -> tuple[int, list[dict[str, Any]], str]:
    """Run the command. Return its status, what it has found about brokers, and all that it has printed."""
    settings_file.write_text("".join(f"{name.replace('_', '.')}={value}\n" for name, value in settings.items()))
    done = cyproducer(
        *("doctor", "--json", f"--timeout={TIMEOUT_S}", "--config", str(settings_file), *arguments),
        timeout=3 * TIMEOUT_S,
    )
    assert done.stderr == ""
    rows = [row for row in json.loads(done.stdout)["findings"] if row["check"] == "brokers"]
    return done.returncode, rows, done.stdout


def test_the_handshake_and_the_credentials(
    secure_kafka: SecureKafka, settings_for: SettingsFor, settings_file: Path
) -> None:
    settings = settings_for("SASL_SSL", "SCRAM-SHA-512")
    status, found, printed = doctor(settings_file, settings, "--topic", secure_kafka.topic_for("User:alice"))
    assert status == 0, found
    seen = "\n".join(row["text"] for row in found)
    assert "TLSv1.3, certificate of " in seen and "localhost" in seen and ", valid until " in seen
    assert "the brokers accept the credentials (SCRAM-SHA-512)" in seen
    assert "has 1 partition, each with a leader" in seen
    assert settings["sasl_plain_password"] not in printed


def test_a_wrong_password(secure_kafka: SecureKafka, settings_for: SettingsFor, settings_file: Path) -> None:
    settings = settings_for("SASL_SSL", "SCRAM-SHA-512", sasl_plain_password="hush")
    status, found, printed = doctor(settings_file, settings)
    assert status == 1
    assert "refuses the credentials (SCRAM-SHA-512)" in "\n".join(
        row["text"] for row in found if row["status"] == "problem"
    )
    assert "hush" not in printed


def test_a_sender_with_other_credentials_is_not_used(
    secure_kafka: SecureKafka, settings_for: SettingsFor, settings_file: Path, make_producer: Callable[..., Any]
) -> None:
    topic = secure_kafka.topic_for("User:alice")
    make_producer(**settings_for("SASL_SSL", "SCRAM-SHA-512")).send(topic, b"0").result(60)
    _, _, printed = doctor(settings_file, settings_for("SASL_SSL", "SCRAM-SHA-512", user="bob"))
    (row,) = [row for row in json.loads(printed)["findings"] if row["check"] == "sharing" and row["advice"]]
    assert row["status"] == "warning"
    assert "differ in: credentials; " in row["text"] and "sasl_plain_username ('bob' and 'alice')" in row["text"]
    assert "give all processes the same credentials" in row["advice"]
    _, _, printed = doctor(settings_file, settings_for("SASL_SSL", "SCRAM-SHA-512"))
    assert "a producer with these settings uses the sender with PID" in printed


def test_a_wrong_authority(secure_kafka: SecureKafka, settings_for: SettingsFor, settings_file: Path) -> None:
    other = secure_kafka.keys.client("doctor", other_ca=True)
    settings = settings_for("SSL", ssl_cafile=str(other.certificate))
    status, found, _ = doctor(settings_file, settings)
    assert status == 1
    (row,) = [row for row in found if row["status"] == "problem"]
    assert "the broker's certificate is refused: " in row["text"]
    assert row["advice"] == "give the certificate of the broker's authority as ssl_cafile"


def test_a_topic_that_the_user_may_not_see(
    secure_kafka: SecureKafka, settings_for: SettingsFor, settings_file: Path
) -> None:
    topic = secure_kafka.new_topic()
    status, found, _ = doctor(settings_file, settings_for("SASL_SSL", "SCRAM-SHA-512"), "--topic", topic)
    assert status == 1
    (row,) = [row for row in found if row["status"] == "problem"]
    assert f"topic {topic}: TOPIC_AUTHORIZATION_FAILED" in row["text"]
