"""Defines the secure Kafka of the tests in this directory, and the settings of a producer for each listener."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.secure_kafka import SecureKafka, secure_kafka_fixture

secure_kafka = secure_kafka_fixture(scope="session", max_reauth_ms=1500)

Settings = Callable[..., dict[str, Any]]


@pytest.fixture
def settings_for(secure_kafka: SecureKafka, runtime_dir: Path, tmp_path: Path) -> Settings:
    """Return ``settings_for(listener, mechanism=None, user="alice", **more)``: the settings of a KafkaProducer."""

    def settings(listener: str, mechanism: str | None = None, user: str = "alice", **more: Any) -> dict[str, Any]:
        protocol = "SSL" if listener == "MTLS" else listener
        found: dict[str, Any] = {
            "bootstrap_servers": secure_kafka.bootstrap(listener),
            "security_protocol": protocol,
            "max_block_ms": 20_000,
        }
        if protocol.endswith("SSL"):
            found["ssl_cafile"] = str(secure_kafka.keys.ca)
        if mechanism == "OAUTHBEARER":
            found |= {
                "sasl_mechanism": mechanism,
                "sasl_oauthbearer_token_endpoint_url": secure_kafka.tokens.url,
                "sasl_oauthbearer_client_credentials_client_id": secure_kafka.tokens.client_id,
                "sasl_oauthbearer_client_credentials_client_secret": secure_kafka.tokens.client_secret,
            }
        elif mechanism is not None:
            found |= {
                "sasl_mechanism": mechanism,
                "sasl_plain_username": user,
                "sasl_plain_password": secure_kafka.users[user],
            }
        return found | more

    return settings
