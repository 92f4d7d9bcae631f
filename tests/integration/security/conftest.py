"""Defines the secure Kafka of the tests in this directory, and the settings of producers for it."""

import functools
from pathlib import Path

import pytest
from support.secure_kafka import SecureKafka, secure_kafka_fixture
from support.secure_settings import SettingsFor, settings_of

secure_kafka = secure_kafka_fixture(max_reauth_ms=1500)


@pytest.fixture
def settings_for(secure_kafka: SecureKafka, runtime_dir: Path) -> SettingsFor:
    """Return ``settings_for(listener, mechanism=None, user="alice", **more)``: the settings of a KafkaProducer."""
    return functools.partial(settings_of, secure_kafka)
