"""Tests unknown setting names, and of values of TLS and SASL settings that may be shown."""

import pytest
from security_samples import refused

from cyproducer.config.secrets import is_secret_name


@pytest.mark.parametrize("name", ["max.poll.records", "group.id", "auto.offset.reset", "acknowledge", "zookeeper"])
def test_names_unlike_any_setting_get_no_suggestion(name):
    assert "did you mean" not in refused(**{name: "x"})


@pytest.mark.parametrize(
    "name", ["config.providers", "config_providers", "metrics.recording.level", "metric.reporters"]
)
def test_unsupported_settings_of_kafka_are_reported_as_such(name):
    assert f"{name!r} is not supported; leave it out" in refused(**{name: "x"})


def test_values_of_tls_and_sasl_that_are_no_secret_are_shown():
    assert "sasl_kerberos_service_name='kaf\\nka': it has a line break" in refused(sasl_kerberos_service_name="kaf\nka")
    assert "sasl.mechanism='DIGEST-MD5': expected one of 'PLAIN'" in refused(**{"sasl.mechanism": "DIGEST-MD5"})
    assert "ssl.truststore.location='~/t.p12': ~ is not" in refused(**{"ssl.truststore.location": "~/t.p12"})
    assert "ssl_keyfile=<hidden>" in refused(ssl_keyfile="~/key.pem")
    assert "sasl_mechanism=<hidden>" in refused(sasl_mechanism="secret-word", sasl_plain_password="secret-word")
    assert "acks='kafka'" in refused(acks="kafka", sasl_kerberos_service_name="kafka")


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ssl_password", True), ("sasl.oauthbearer.token", True), ("ssl.key", True), ("ssl_key_password", True),
        ("api-key", True), ("key_serializer", False), ("key.serializer", False), ("bootstrap_servers", False),
        ("partitioner_ignore_keys", False), ("sasl.jaas.config", True), ("ssl_keydata", True), ("ssl.key.pem", True),
        ("sasl_oauthbearer_token_endpoint_url", False), ("sasl.oauthbearer.client.id", False), ("ssl.ca.pem", False),
        ("sasl.oauthbearer.client.secret", True), ("ssl_keyfile", False), ("ssl.keystore.password", True),
    ],
)  # fmt: skip
def test_names_of_secrets(name, secret):
    assert is_secret_name(name) == secret


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("api.version.request.timeout.ms", "leave it out"),
        ("servers", "bootstrap.servers"),
        ("enabled_events", "leave"),
        ("key_deserializer", "consumers"),
        ("value.deserializer", "consumers"),
        ("auto.include.jmx.reporter", "metrics()"),
    ],
)
def test_the_most_similar_name_is_not_always_meant(name, told):
    message = refused(**{name: 1})
    assert told in message and "did you mean" not in message
