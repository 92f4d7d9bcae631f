"""Tests the settings of rack-aware partitioning (KIP-1123)."""

import pytest

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError


@pytest.mark.parametrize("rack", [{}, {"client_rack": " "}])
def test_rack_aware_partitioning_needs_a_rack(rack: dict[str, str]) -> None:
    with pytest.raises(KafkaConfigurationError, match=r"needs client_rack; use the broker\.rack"):
        Settings.parse(bootstrap_servers="localhost:9092", partitioner_rack_aware=True, **rack)


def test_the_rack_is_a_setting_of_the_sender() -> None:
    settings = Settings.parse(bootstrap_servers="localhost:9092", partitioner_rack_aware=True, client_rack="a")
    assert settings.sender_settings()["client_rack"] == "a"


def test_a_rack_is_a_short_text() -> None:
    for rack in ("x" * 256, 3):
        with pytest.raises(KafkaConfigurationError, match=r"client_rack=.*expected a str"):
            Settings.parse(bootstrap_servers="localhost:9092", client_rack=rack)
