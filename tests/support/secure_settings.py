"""Makes the settings of a KafkaProducer for each listener of the secure Kafka."""

from collections.abc import Callable
from typing import Any

from support.secure_kafka import SecureKafka

__all__ = ["SettingsFor", "settings_of"]

SettingsFor = Callable[..., dict[str, Any]]


def settings_of(
    kafka: SecureKafka, listener: str, mechanism: str | None = None, user: str = "alice", **more: Any
) -> dict[str, Any]:
    """Return the settings for a listener, with the right credentials of the user. `more` replaces some of them."""
    protocol = "SSL" if listener == "MTLS" else listener
    found: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap(listener),
        "security_protocol": protocol,
        "max_block_ms": 20_000,
    }
    if protocol.endswith("SSL"):
        found["ssl_cafile"] = str(kafka.keys.ca)
    if mechanism == "OAUTHBEARER":
        found |= {
            "sasl_mechanism": mechanism,
            "sasl_oauthbearer_token_endpoint_url": kafka.tokens.url,
            "sasl_oauthbearer_client_credentials_client_id": kafka.tokens.client_id,
            "sasl_oauthbearer_client_credentials_client_secret": kafka.tokens.client_secret,
        }
    elif mechanism is not None:
        found |= {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": kafka.users[user],
        }
    return found | more
