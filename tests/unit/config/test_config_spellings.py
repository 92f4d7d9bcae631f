"""Tests that each spelling of a setting of TLS and SASL is accepted, and that two spellings contradict."""

import re
from pathlib import Path

import pytest
from security_samples import PASSWORD, parse, refused

from cyproducer.config.kafka_settings import OF_OTHER_CLIENTS
from cyproducer.config.security_table import OTHER_SPELLINGS, SECURITY_SETTINGS
from cyproducer.config.settings import SETTINGS, Settings

#: Kafka's, librdkafka's and confluent-kafka's spelling -> the setting.
SPELLINGS = {setting.kafka_name: setting.name for setting in SECURITY_SETTINGS if setting.attribute} | {
    spelling if spelling.endswith("_cb") else spelling.replace("_", "."): name
    for spelling, name in OTHER_SPELLINGS.items()
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


def test_the_documentation_names_each_spelling():
    """No spelling of another client can disappear from the table unnoticed."""
    page = (Path(__file__).parents[3] / "docs/reference/settings.md").read_text().partition("| Also written as |")[2]
    rows = re.findall(r"^\| `(\w+)` \| (`.*) \|$", page, re.MULTILINE)
    named = {spelling: name for name, cell in rows for spelling in re.findall(r"`([a-z_.]+[._][a-z_.]+)`", cell)}
    other = {spelling: SPELLINGS[spelling] for spelling in SPELLINGS if spelling.replace(".", "_") in OTHER_SPELLINGS}
    assert named == {**other, "sasl.mechanism": "sasl_mechanism"}
    assert not set(OTHER_SPELLINGS) & {s.name for s in SETTINGS}


@pytest.mark.parametrize("row", OF_OTHER_CLIENTS, ids=lambda row: row.name)
def test_settings_that_only_other_clients_have(row):
    for spelling in (row.name, row.name.replace(".", "_")):
        assert refused(**{spelling: "x17"}) == f"{spelling!r} is a setting of another Kafka client: {row.note}"
        for value in (None, *row.accepted):
            assert parse(**{spelling: value}) == parse()


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
