"""Tests that each spelling of a setting of TLS and SASL is accepted, and that two spellings contradict."""

import re
from pathlib import Path

import pytest
from security_samples import PASSWORD, parse, refused

from cyproducer.config.kafka_settings import OF_OTHER_CLIENTS
from cyproducer.config.security_table import OTHER_SPELLINGS, SECURITY_SETTINGS
from cyproducer.config.settings import SETTINGS, Settings

#: Kafka's and librdkafka's spelling -> the setting. Written down again, so that no entry can disappear.
SPELLINGS = {
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.ca.pem": "ssl_cadata",
    "ssl.truststore.certificates": "ssl_cadata",
    "ssl.truststore.location": "ssl_truststore_location",
    "ssl.truststore.password": "ssl_truststore_password",
    "ssl.truststore.type": "ssl_truststore_type",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.certificate.pem": "ssl_certdata",
    "ssl.keystore.certificate.chain": "ssl_certdata",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.pem": "ssl_keydata",
    "ssl.keystore.key": "ssl_keydata",
    "ssl.key.password": "ssl_password",
    "ssl.keystore.location": "ssl_keystore_location",
    "ssl.keystore.password": "ssl_keystore_password",
    "ssl.keystore.type": "ssl_keystore_type",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.cipher.suites": "ssl_ciphers",
    "ssl.enabled.protocols": "ssl_enabled_protocols",
    "ssl.endpoint.identification.algorithm": "ssl_check_hostname",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
    "sasl.kerberos.principal": "sasl_kerberos_principal",
    "sasl.kerberos.keytab": "sasl_kerberos_keytab",
    "sasl.oauthbearer.token.endpoint.url": "sasl_oauthbearer_token_endpoint_url",
    "sasl.oauthbearer.client.id": "sasl_oauthbearer_client_credentials_client_id",
    "sasl.oauthbearer.client.credentials.client.id": "sasl_oauthbearer_client_credentials_client_id",
    "sasl.oauthbearer.client.secret": "sasl_oauthbearer_client_credentials_client_secret",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl_oauthbearer_client_credentials_client_secret",
    "sasl.oauthbearer.scope": "sasl_oauthbearer_scope",
    "sasl.oauthbearer.extensions": "sasl_oauthbearer_extensions",
    "sasl.oauthbearer.header.urlencode": "sasl_oauthbearer_header_urlencode",
    "sasl.login.refresh.window.factor": "sasl_login_refresh_window_factor",
    "sasl.login.refresh.window.jitter": "sasl_login_refresh_window_jitter",
    "sasl.login.refresh.min.period.seconds": "sasl_login_refresh_min_period_seconds",
    "sasl.login.refresh.buffer.seconds": "sasl_login_refresh_buffer_seconds",
    "sasl.login.retry.backoff.ms": "sasl_login_retry_backoff_ms",
    "sasl.login.retry.backoff.max.ms": "sasl_login_retry_backoff_max_ms",
    "sasl.login.connect.timeout.ms": "sasl_login_connect_timeout_ms",
    "sasl.login.read.timeout.ms": "sasl_login_read_timeout_ms",
    "https.ca.location": "https_ca_location",
    "oauth_cb": "sasl_oauth_token_provider",
    "oauthbearer_token_refresh_cb": "sasl_oauth_token_provider",
}


def token():
    return "token"


@pytest.fixture
def values(samples):
    return {
        "security_protocol": "SSL",
        "ssl_cadata": samples.certificate,
        "ssl_certdata": samples.certificate,
        "ssl_keydata": samples.key,
        "ssl_truststore_type": "PEM",
        "ssl_keystore_type": "PEM",
        "ssl_ciphers": "HIGH",
        "ssl_enabled_protocols": "TLSv1.3",
        "ssl_check_hostname": False,
        "sasl_mechanism": "PLAIN",
        "sasl_oauthbearer_token_endpoint_url": "https://idp/token",
        "sasl_oauthbearer_extensions": "a=b",
        "sasl_oauthbearer_header_urlencode": True,
        "sasl_oauth_token_provider": token,
    }


def value_of(name, values, samples):
    number = next(s.default for s in SETTINGS if s.name == name)
    if name.startswith("sasl_login"):
        return number or 5
    return values.get(name, samples("ca.pem") if "location" in name or name.endswith(("file", "keytab")) else "x")


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_spelling_means_the_setting(spelling, values, samples):
    name = SPELLINGS[spelling]
    value = value_of(name, values, samples)
    # A sender that is named needs neither protocol nor credentials, so each setting can be given alone.
    expected = Settings.parse(sender="/s", **{name: value})
    for same in (spelling, spelling.replace(".", "_"), name.replace("_", ".")):
        assert Settings.parse(sender="/s", **{same: value}) == expected
    message = refused(sender="/s", **{name: value, spelling: value}) if name != spelling else ""
    assert message == f"{name} is given twice, as {name!r} and as {spelling!r}"


def test_two_foreign_spellings_contradict_too():
    message = refused(**{"sasl.password": PASSWORD, "sasl_password": PASSWORD})
    assert message == "sasl_plain_password is given twice, as 'sasl.password' and as 'sasl_password'"
    message = refused(**{"ssl.key.pem": "x" * 9, "ssl.keystore.key": PASSWORD})
    assert PASSWORD not in message


def test_what_is_none_is_not_given():
    for spelling, name in SPELLINGS.items():
        assert parse(**{spelling: None, name: None}) == parse()


def test_each_spelling_is_known():
    dotted = {spelling.replace("_", ".") for spelling in OTHER_SPELLINGS}
    tested = {spelling.replace("_", ".") for spelling in SPELLINGS}
    assert dotted <= tested
    assert {s.name for s in SECURITY_SETTINGS} >= set(OTHER_SPELLINGS.values())
    assert not set(OTHER_SPELLINGS) & {s.name for s in SETTINGS}


@pytest.mark.parametrize("row", OF_OTHER_CLIENTS, ids=lambda row: row.name)
def test_settings_that_only_other_clients_have(row):
    for spelling in (row.name, row.name.replace(".", "_")):
        assert refused(**{spelling: "x17"}) == f"{spelling!r} is a setting of another Kafka client: {row.note}"
        for value in (None, *row.accepted):
            assert parse(**{spelling: value}) == parse()


def test_the_documentation_names_the_right_spellings():
    page = (Path(__file__).parents[3] / "docs/reference/settings.md").read_text().partition("| Also written as |")[2]
    rows = re.findall(r"^\| `(\w+)` \| (`.*) \|$", page, re.MULTILINE)
    named = [(spelling, name) for name, cell in rows for spelling in re.findall(r"`([a-z_.]+[._][a-z_.]+)`", cell)]
    assert len(named) == len(rows) + 4
    for spelling, name in named:
        assert SPELLINGS[spelling] == name


def test_connections_without_verification_are_refused():
    for value in (False, "false"):
        message = refused(security_protocol="SSL", **{"enable.ssl.certificate.verification": value})
        assert "give the certificate of the brokers' authority as ssl_cafile" in message
        assert "ssl_check_hostname=False switches off the check of the name only" in message


def test_a_wrong_name_is_reported_with_the_nearest():
    for wrong, near in (("sasl_pasword", "sasl_password"), ("ssl.ca.locations", "ssl.ca.location")):
        message = refused(**{wrong: PASSWORD})
        assert f"{wrong!r} is not a known setting; did you mean {near!r}?" == message


def test_every_setting_of_librdkafka_is_known_or_explained():
    """librdkafka's names, from its CONFIGURATION.md."""
    for name in (
        "ssl.curves.list", "ssl.sigalgs.list", "ssl.providers", "ssl.engine.location", "ssl.engine.id",
        "ssl.ca.certificate.stores", "https.ca.pem", "sasl.oauthbearer.config", "sasl.oauthbearer.method",
        "enable.sasl.oauthbearer.unsecure.jwt", "sasl.oauthbearer.grant.type", "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin", "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.assertion.algorithm", "sasl.oauthbearer.assertion.file",
    ):  # fmt: skip
        message = refused(**{name: "x17"})
        assert "is not a known setting" not in message and "x17" not in message
