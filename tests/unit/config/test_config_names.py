"""Tests unknown setting names, and of values of TLS and SASL settings that may be shown."""

import pytest

from cyproducer.config.secrets import is_secret_name
from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError


def refused(**given):
    with pytest.raises(KafkaConfigurationError) as caught:
        Settings.parse(**{"bootstrap_servers": "localhost", **given})
    return str(caught.value)


@pytest.mark.parametrize("name", ["max.poll.records", "group.id", "auto.offset.reset", "acknowledge", "zookeeper"])
def test_names_unlike_any_setting_get_no_suggestion(name):
    assert "did you mean" not in refused(**{name: "x"})


@pytest.mark.parametrize(
    "name", ["config.providers", "config_providers", "metrics.recording.level", "metric.reporters"]
)
def test_unsupported_settings_of_kafka_are_reported_as_such(name):
    assert f"{name!r} is not supported; leave it out" in refused(**{name: "x"})


def test_values_of_tls_and_sasl_that_are_no_secret_are_shown():
    assert "sasl_kerberos_service_name='kafka' is not supported yet" in refused(sasl_kerberos_service_name="kafka")
    assert "sasl.mechanism='PLAIN' is not supported yet" in refused(**{"sasl.mechanism": "PLAIN"})
    assert "ssl.truststore.location='/etc/t.jks' is not" in refused(**{"ssl.truststore.location": "/etc/t.jks"})
    assert "ssl_keyfile=<hidden>" in refused(ssl_keyfile="/etc/key.pem")
    assert "sasl_mechanism=<hidden>" in refused(sasl_mechanism="secret-word", sasl_plain_password="secret-word")
    assert "acks='kafka'" in refused(acks="kafka", sasl_kerberos_service_name="kafka")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ssl_password", True), ("sasl.oauthbearer.token", True), ("ssl.key", True), ("ssl_key_password", True),
        ("api-key", True), ("key_serializer", False), ("key.serializer", False), ("bootstrap_servers", False),
        ("partitioner_ignore_keys", False),
    ],
)  # fmt: skip
def test_names_of_secrets(name, secret):
    assert is_secret_name(name) == secret
