"""Tests that each spelling of a setting of TLS and SASL is accepted, and that two spellings contradict."""

import pytest
from security_samples import PASSWORD, parse, refused

from cyproducer.config import hints
from cyproducer.config.settings import Settings
from cyproducer.config.table import OTHER_SPELLINGS, SECURITY_BY_NAME, SETTINGS

#: Kafka's, librdkafka's and confluent-kafka's spelling -> the setting.
SPELLINGS = {setting.kafka_name: setting.name for setting in SECURITY_BY_NAME.values() if setting.attribute} | {
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
        "proxy_url": "socks5://proxy:1080",
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


def test_no_spelling_is_that_of_two_settings():
    assert not set(OTHER_SPELLINGS) & {s.name for s in SETTINGS}


@pytest.mark.parametrize("hint", hints.SETTINGS, ids=lambda hint: hint.name)
def test_settings_that_only_other_clients_have(hint):
    for spelling in {hint.name, hint.name.replace(".", "_"), hint.name.replace("_", ".")}:
        message = refused(**{spelling: "x17"})
        if hint.meant:
            meant = hint.meant if "." in spelling else hint.meant.replace(".", "_")
            assert message == f"{spelling!r} is not a known setting; did you mean {meant!r}?"
            continue
        what = "not supported; leave it out" if hint.client == hints.KAFKA else "a setting of another Kafka client"
        assert message == f"{spelling!r} is {what}: {hint.advice}"
        for value in (None, *hint.accepted):
            assert parse(**{spelling: value}) == parse()


def test_a_setting_that_is_meant_exists():
    names = {setting.kafka_name for setting in SETTINGS}
    assert {hint.meant for hint in hints.SETTINGS if hint.meant} <= names
    assert not {hint.name for hint in hints.SETTINGS} & names
    assert all(bool(hint.meant) != bool(hint.advice) for hint in hints.SETTINGS)


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
