"""Tests that a secret is in no repr, error, warning or setting that is not secret, wherever it is given."""

import itertools
import json
import pickle
import traceback

import pytest
from security_samples import PASSWORD, Samples, parse, refused
from support.recorded import recorded_locals

from cyproducer.config.secrets import ConcealedBytes, ConcealedText, is_secret_name
from cyproducer.config.settings import Settings
from cyproducer.config.table import OTHER_SPELLINGS, SECURITY_BY_NAME, SENDER, SETTINGS
from cyproducer.errors import KafkaConfigurationError

SECRET = "Zq7Marked-secret"
SECRETS = [setting for setting in SETTINGS if setting.secret]
SPELLINGS = {
    name: [name, name.replace("_", "."), *(o for o, n in OTHER_SPELLINGS.items() if n == name)]
    for name in (setting.name for setting in SECRETS)
}
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
#: Values that each setting refuses, or accepts and then contradicts others.
WRONG = [
    SECRET, SECRET.encode(), [SECRET], {SECRET: SECRET}, f"{SECRET}\0", f"\ud800{SECRET}", 7, object(), (SECRET, 1)
]  # fmt: skip


def texts_of(error, with_locals=True):
    """Yield all that a program can print or record of an error."""
    yield "".join(traceback.format_exception(error))
    if with_locals:
        yield from recorded_locals(error)
    while error is not None:
        yield f"{error} {error!r} {error.args!r}"
        error = error.__cause__ or error.__context__


def outcome(given, with_locals=True):
    """Return all texts that come of settings: of an error, or of the result."""
    try:
        settings = Settings.parse(**{"bootstrap_servers": "b", **given})
    except KafkaConfigurationError as error:
        return "\n".join(texts_of(error, with_locals))
    public = [settings.sender_settings(), settings.front_end_settings(), settings.explicit_sender_settings()]
    return f"{settings!r} {settings} {public} {sorted(settings.explicit)}"


def test_the_secret_settings():
    assert {setting.name for setting in SECRETS} == {
        "ssl_keydata", "ssl_password", "ssl_keystore_password", "ssl_truststore_password", "sasl_plain_password",
        "sasl_jaas_config", "sasl_oauthbearer_client_credentials_client_secret", "proxy_password",
    }  # fmt: skip
    assert all(setting.side == SENDER and not setting.shown for setting in SECRETS)
    for setting in SECURITY_BY_NAME.values():
        for name in (setting.name, setting.kafka_name, setting.name.replace("_", ".")):
            assert is_secret_name(name) == setting.secret, name
    for other, name in OTHER_SPELLINGS.items():
        assert is_secret_name(other) == (name in SPELLINGS)


PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = (None, "PLAIN", "SCRAM-SHA-256", "OAUTHBEARER", "GSSAPI")


@pytest.mark.parametrize("spelling", list(itertools.chain.from_iterable(SPELLINGS.values())))
def test_no_text_has_a_secret(spelling, caplog):
    for protocol, mechanism, value in itertools.product(PROTOCOLS, MECHANISMS, WRONG):
        given = {"security_protocol": protocol, "sasl_mechanism": mechanism, spelling: value}
        assert SECRET not in outcome(given)
        assert SECRET not in outcome({**given, "sasl_plain_username": "x", "acks": 7})
        assert SECRET not in outcome({**given, "sasl_plain_username": "x", "sasl_oauthbearer_scope": "x"})
    assert SECRET not in caplog.text


@pytest.mark.parametrize("spelling", list(itertools.chain.from_iterable(SPELLINGS.values())))
def test_no_other_setting_shows_a_secret(spelling):
    """A secret that is given, by mistake, as another setting too is not shown if that setting is refused."""
    for setting in SETTINGS:
        given = {"security_protocol": "SASL_SSL", spelling: SECRET, "sasl_mechanism": "PLAIN"}
        text = outcome({**given, setting.name: f"{SECRET}\0"})
        if not text.startswith("Settings("):
            assert SECRET not in text, setting.name


JAAS = [
    f'{PLAIN} username="x" password="{SECRET}";',
    f'{PLAIN} username="x" password="{SECRET}"',
    f"{PLAIN} username=x password={SECRET}!;",
    f"{PLAIN} username=x password={SECRET} {SECRET};",
    f"{PLAIN} {SECRET}=x;",
    f"{SECRET} required;",
    f"a.{SECRET}LoginModule required;",
    f"{PLAIN} username=x password={SECRET}; {PLAIN};",
    f'{PLAIN} username="x" password="{SECRET};',
    f"org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientSecret={SECRET} {SECRET}=x;",
    f'com.sun.security.auth.module.Krb5LoginModule required keyTab="/no/such/{SECRET}" principal="x";',
    SECRET,
]


@pytest.mark.parametrize("text", JAAS)
def test_no_text_has_a_secret_of_a_jaas_configuration(text, caplog):
    for mechanism in MECHANISMS:
        given = {"security_protocol": "SASL_SSL", "sasl.mechanism": mechanism, "sasl.jaas.config": text}
        for more in ({}, {"acks": SECRET}, {"client_id": f"{SECRET}\n"}, {"sasl_plain_password": "other"}):
            assert SECRET not in outcome({**given, **more}, with_locals="keyTab" not in text)  # a path is no secret
    assert SECRET not in caplog.text


def test_a_key_in_the_place_of_a_certificate_is_not_shown(samples):
    key = samples.key
    for name in ("ssl_cafile", "ssl_cadata", "ssl_certfile", "ssl_certdata", "ssl_keyfile", "ssl_crlfile", "acks"):
        for text in (key, " ".join(key.split("\n")), samples.certificate + key):
            found = outcome({"security_protocol": "SSL", name: text})
            assert key.split("\n")[1] not in found and repr(key.split("\n")[1])[1:-1] not in found


def usable(samples: Samples):
    yield {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "x",
           "sasl_plain_password": SECRET}  # fmt: skip
    yield {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER",
           "sasl_oauthbearer_token_endpoint_url": "https://idp/token", "sasl.oauthbearer.client.id": "x",
           "sasl.oauthbearer.client.secret": SECRET}  # fmt: skip
    yield {"security_protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS[0]}
    yield {"security_protocol": "SSL", "ssl_certdata": samples.certificate, "ssl_keydata": samples.encrypted_key,
           "ssl_password": SECRET}  # fmt: skip
    yield {"proxy_url": "http://proxy:3128", "proxy_username": "x", "proxy_password": SECRET}
    for store in ("keystore", "truststore"):
        yield {"security_protocol": "SSL", f"ssl_{store}_location": samples("store.p12"),
               f"ssl_{store}_password": SECRET}  # fmt: skip


def test_a_secret_goes_to_the_sender_apart_from_the_rest(samples, caplog):
    seen = set()
    for given in usable(samples):
        settings = parse(**given)
        seen |= set(settings.secrets())
        assert SECRET in settings.secrets().values()
        assert SECRET not in outcome(given) and "<hidden>" in repr(settings)
        assert not set(settings.secrets()) & set(settings.sender_settings())
        assert all(is_secret_name(name) for name in settings.secrets())
        pickled = pickle.dumps(settings)
        assert SECRET.encode() in pickled and b"Concealed" not in pickled, "another version may not know the wrapper"
        assert pickle.loads(pickled) == settings
        assert all(repr(secret) == "<hidden>" for secret in pickle.loads(pickled).secrets().values())
        sender = Settings.for_sender({**settings.sender_settings(), **settings.secrets()})
        assert sender.secrets() == settings.secrets()
        assert SECRET not in repr(sender)
    assert seen == {setting.name for setting in SECRETS if setting.attribute}
    assert SECRET not in caplog.text


def test_a_secret_is_not_shown_by_a_path_that_has_it(samples):
    (samples.directory / SECRET).mkdir()
    given = {"security_protocol": "SSL", "ssl_certfile": samples("ca.pem"), "ssl_keyfile": samples("encrypted.pem")}
    assert SECRET not in refused(**given, ssl_password=SECRET, ssl_crlfile=samples(f"{SECRET}/crl"))
    assert "<hidden>" in repr(parse(**given, ssl_password=PASSWORD))


def test_a_concealed_text_is_the_text():
    text = ConcealedText(SECRET)
    assert text == SECRET and hash(text) == hash(SECRET) and json.dumps([text]) == json.dumps([SECRET])
    assert f"{text}" == str(text) == SECRET and type(str(text)) is str
    assert repr(text) == repr(text[:5]) == repr(pickle.loads(pickle.dumps(text))) == "<hidden>"


def test_the_parts_of_concealed_bytes_are_hidden():
    """Some programs store the beginning of a long value: the repr() of a slice."""
    data = ConcealedBytes(SECRET.encode())
    assert data[:5] == SECRET.encode()[:5] and data[0] == SECRET.encode()[0] and type(data[0]) is int
    assert repr(data) == repr(data[:5]) == repr(data[:-1][1:]) == "<hidden>"


def test_the_query_of_a_url_is_not_shown():
    url = "https://idp.example.com/oauth"
    given = {
        "bootstrap_servers": "b", "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_client_credentials_client_id": "x", "sasl_oauthbearer_client_credentials_client_secret": "y",
        "sasl_oauthbearer_token_endpoint_url": f"{url}?key={SECRET}",
    }  # fmt: skip
    settings = Settings.parse(**given)
    assert settings.sasl_oauthbearer_token_endpoint_url == f"{url}?key={SECRET}"
    assert f"'{url}?<hidden>'" in repr(settings) and SECRET not in repr(settings)
    assert SECRET not in outcome({**given, "sasl_oauthbearer_token_endpoint_url": f"{url}?key={SECRET} "[:-1] + " x"})
    assert SECRET not in outcome({**given, "acks": 7})
