"""Tests the settings of SASL: mechanisms, credentials, Kerberos, OAuth tokens, and the rules between them."""

import copy
import json
import pickle

import pytest
from security_samples import changed, parse, refused, round_trip

from cyproducer.config.settings import Settings
from cyproducer.errors import KafkaConfigurationError

USER = {"sasl_plain_username": "alice", "sasl_plain_password": "Zq7"}
ENDPOINT = {
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauthbearer_token_endpoint_url": "https://idp.example/token",
    "sasl_oauthbearer_client_credentials_client_id": "app",
    "sasl_oauthbearer_client_credentials_client_secret": "Zq7",
}


class Provider:
    def token(self):
        return "token"

    @staticmethod
    def token_of_a_function():
        return "token"


@pytest.fixture(autouse=True)
def no_kerberos_in_the_environment(monkeypatch):
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    monkeypatch.delenv("KRB5_CONFIG", raising=False)


def sasl(**given):
    return parse(**{"security_protocol": "SASL_SSL", **given})


def sasl_refused(**given):
    return refused(**{"security_protocol": "SASL_SSL", **given})


# ---------------------------------------------------------------- mechanism


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("given", [{}, USER, {"sasl_mechanism": None}, {"sasl_kerberos_service_name": "kafka"}])
def test_a_mechanism_must_be_chosen(protocol, given):
    message = sasl_refused(security_protocol=protocol, **given)
    assert message.startswith(f"security_protocol={protocol!r} needs sasl_mechanism: PLAIN, SCRAM-SHA-256,")
    assert "Kafka's default is GSSAPI (Kerberos): set it" in message


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("PLAIN,GSSAPI", "a client uses one mechanism"),
        ("PLAIN SCRAM-SHA-256", "a client uses one mechanism"),
        ("AWS_MSK_IAM", "aws-msk-iam-sasl-signer-python"),
        ("DIGEST-MD5", "expected one of 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512', 'OAUTHBEARER', 'GSSAPI'"),
        (5, "expected one of"),
    ],
)
def test_other_mechanisms_are_refused(value, reason):
    for name in ("sasl_mechanism", "sasl.mechanism", "sasl.mechanisms"):
        message = sasl_refused(**USER, **{name: value})
        assert message.startswith(f"{name}={value!r}: ") and reason in message


# ---------------------------------------------------------------- user and password


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "plain", "scram-sha-512"])
def test_user_and_password(mechanism, caplog):
    settings = sasl(sasl_mechanism=mechanism, **USER)
    assert changed(settings) == {"sasl_mechanism": mechanism.upper(), **USER}
    assert settings.secrets() == {"sasl_plain_password": "Zq7"}
    assert "sasl_plain_password" not in settings.sender_settings()
    for missing in USER:
        message = sasl_refused(
            sasl_mechanism=mechanism, **{missing: None, **{n: USER[n] for n in USER if n != missing}}
        )
        assert message == f"sasl_mechanism={mechanism.upper()!r} needs {missing}"
    assert not caplog.records
    for empty in USER:
        assert f"needs {empty}" in sasl_refused(sasl_mechanism=mechanism, **{**USER, empty: ""})


def test_characters_of_user_and_password(caplog):
    given = {"sasl_mechanism": "SCRAM-SHA-256"}
    assert sasl(**given, sasl_plain_username="ü=,'", sasl_plain_password="\\\"' \x01").sasl_plain_username == "ü=,'"
    for value in ("a\nb", "alice\n", "a\r"):
        assert "it has a line break" in sasl_refused(**given, sasl_plain_username=value)
    for name in USER:
        assert "it has a NUL character" in sasl_refused(**given, **{**USER, name: "a\0b"})
        assert "it has a surrogate" in sasl_refused(**given, **{**USER, name: "\ud800"})
        assert "expected None, or a str" in sasl_refused(**given, **{**USER, name: b"x"})
    assert not caplog.records
    assert sasl(**given, **{**USER, "sasl_plain_password": "Zq7\n"}).sasl_plain_password == "Zq7\n"
    assert "sasl_plain_password ends with a line break, as the content of a file does" in caplog.text


@pytest.mark.parametrize(("mechanism", "warned"), [("PLAIN", True), ("SCRAM-SHA-256", False)])
def test_a_password_without_encryption_is_warned_of(mechanism, warned, caplog):
    sasl(sasl_mechanism=mechanism, **USER)
    assert not caplog.records
    sasl(security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, **USER)
    assert ("sends the password without encryption over security_protocol='SASL_PLAINTEXT'" in caplog.text) == warned


# ---------------------------------------------------------------- Kerberos


def test_kerberos_with_a_ticket(monkeypatch):
    settings = sasl(sasl_mechanism="GSSAPI")
    assert changed(settings) == {}
    assert (settings.sasl_kerberos_service_name, settings.sasl_kerberos_ticket_cache) == ("kafka", None)
    monkeypatch.setenv("KRB5CCNAME", "FILE:/tmp/one")
    first = sasl(sasl_mechanism="GSSAPI")
    assert changed(first) == {"sasl_kerberos_ticket_cache": "FILE:/tmp/one"}
    assert "sasl_kerberos_ticket_cache" not in first.explicit
    assert round_trip(first).sender_settings() == first.sender_settings()
    assert changed(sasl(sasl_kerberos_ticket_cache="KEYRING:x")) == {"sasl_kerberos_ticket_cache": "KEYRING:x"}
    assert changed(sasl(sasl_mechanism="PLAIN", **USER)) == {"sasl_mechanism": "PLAIN", **USER}
    assert parse().sasl_kerberos_ticket_cache is None
    pickled = pickle.dumps(first)
    monkeypatch.setenv("KRB5CCNAME", "FILE:/tmp/two")
    assert pickle.loads(pickled).sasl_kerberos_ticket_cache == "FILE:/tmp/two"


def test_the_configuration_of_kerberos(monkeypatch, tmp_path):
    """It is a part of the identity: processes of different realms do not share a sender."""
    assert sasl(sasl_mechanism="GSSAPI").sasl_kerberos_config is None
    monkeypatch.setenv("KRB5_CONFIG", "/etc/one.conf:/etc/two.conf")
    settings = sasl(sasl_mechanism="GSSAPI")
    assert changed(settings) == {"sasl_kerberos_config": "/etc/one.conf:/etc/two.conf"}
    assert "sasl_kerberos_config" not in settings.explicit
    assert changed(sasl(sasl_mechanism="GSSAPI", sasl_kerberos_config="/x")) == {"sasl_kerberos_config": "/x"}
    assert changed(sasl(sasl_mechanism="PLAIN", **USER)) == {"sasl_mechanism": "PLAIN", **USER}


@pytest.mark.parametrize(
    ("given", "absolute"),
    [("cache", "{}/cache"), ("FILE:cache", "FILE:{}/cache"), ("/c", "/c"), ("KCM:", "KCM:"), ("DIR:/c", "DIR:/c")],
)
def test_the_files_of_kerberos_do_not_depend_on_the_directory_of_the_sender(monkeypatch, tmp_path, given, absolute):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KRB5_CONFIG", "krb5.conf:/etc/krb5.conf")
    settings = sasl(sasl_kerberos_ticket_cache=given)
    assert settings.sasl_kerberos_ticket_cache == absolute.format(tmp_path)
    assert settings.sasl_kerberos_config == f"{tmp_path}/krb5.conf:/etc/krb5.conf"


def test_kerberos_with_a_keytab(samples, monkeypatch):
    monkeypatch.setenv("KRB5CCNAME", "FILE:/tmp/one")
    given = {"sasl_kerberos_keytab": samples("token"), "sasl_kerberos_principal": "app@EXAMPLE.COM"}
    settings = sasl(**given)
    assert (settings.sasl_mechanism, changed(settings)) == ("GSSAPI", given)
    assert "sasl_kerberos_keytab needs sasl_kerberos_principal" in sasl_refused(sasl_kerberos_keytab=samples("token"))
    missing = sasl_refused(**{**given, "sasl_kerberos_keytab": samples("missing")})
    assert missing.startswith(f"sasl_kerberos_keytab={samples('missing')!r}: the file cannot be read")
    both = sasl_refused(**given, sasl_kerberos_ticket_cache="FILE:/x")
    assert "sasl_kerberos_keytab and sasl_kerberos_ticket_cache exclude each other" in both


def test_kafka_pythons_name_of_the_service():
    settings = sasl(sasl_mechanism="GSSAPI", sasl_kerberos_name="kafka2@broker.example")
    assert changed(settings) == {
        "sasl_kerberos_service_name": "kafka2",
        "sasl_kerberos_domain_name": "broker.example",
    }
    # kafka-python passes the default of the service's name along.
    assert (
        sasl(
            sasl_mechanism="GSSAPI", sasl_kerberos_name="kafka2/broker.example", sasl_kerberos_service_name="kafka"
        ).sender_settings()
        == settings.sender_settings()
    )
    message = sasl_refused(sasl_mechanism="GSSAPI", sasl_kerberos_name="a@b", sasl_kerberos_service_name="c")
    assert "sasl_kerberos_name contradicts sasl_kerberos_service_name" in message
    assert "a realm comes from the Kerberos configuration" in sasl_refused(sasl_kerberos_name="kafka/host@REALM")
    for value in ("", None):
        assert changed(sasl(sasl_mechanism="GSSAPI", sasl_kerberos_name=value)) == {}
    for value in ("kafka", 5, "a b@c"):
        assert "expected None, or a str service@host" in sasl_refused(sasl_kerberos_name=value)


def test_kafka_pythons_name_of_the_service_as_an_object():
    class Name:
        __module__ = "gssapi.names"

        def __str__(self):
            return "kafka2@broker.example"

    assert sasl(sasl_mechanism="GSSAPI", sasl_kerberos_name=Name()).sasl_kerberos_domain_name == "broker.example"


# ---------------------------------------------------------------- OAuth


def test_tokens_of_an_endpoint(samples, caplog):
    assert changed(sasl(**ENDPOINT)) == ENDPOINT
    more = {
        "sasl_oauthbearer_scope": "kafka write",
        "sasl_oauthbearer_extensions": {"logicalCluster": "lkc-1", "pool": "p"},
        "sasl_oauthbearer_header_urlencode": True,
        "https_ca_location": samples("ca.pem"),
        "sasl_login_refresh_window_factor": 0.5,
        "sasl_login_refresh_window_jitter": 0.25,
        "sasl_login_refresh_min_period_seconds": 0,
        "sasl_login_refresh_buffer_seconds": 3600,
        "sasl_login_retry_backoff_ms": 1,
        "sasl_login_retry_backoff_max_ms": 2,
        "sasl_login_connect_timeout_ms": 3,
        "sasl_login_read_timeout_ms": 0,
    }
    settings = sasl(**ENDPOINT, **more)
    assert changed(settings) == {**ENDPOINT, **more}
    dotted = {n.replace("_", "."): str(v) if isinstance(v, bool | int | float) else v for n, v in more.items()}
    assert sasl(**ENDPOINT, **dotted) == settings
    assert not caplog.records


def test_an_endpoint_without_encryption_is_warned_of(caplog):
    sasl(**{**ENDPOINT, "sasl_oauthbearer_token_endpoint_url": "http://idp:8080/token"})
    assert "begins with http: the client's secret and the token are sent without encryption" in caplog.text
    caplog.clear()
    sasl(security_protocol="SASL_PLAINTEXT", **ENDPOINT)
    assert "sasl_mechanism='OAUTHBEARER' sends the token without encryption" in caplog.text


def test_an_endpoint_needs_credentials_and_they_need_an_endpoint():
    client = [name for name in ENDPOINT if "client" in name]
    for name in client:
        message = sasl_refused(**{**ENDPOINT, name: None})
        assert message == f"sasl_oauthbearer_token_endpoint_url needs {name}"
    message = sasl_refused(**{**ENDPOINT, "sasl_oauthbearer_token_endpoint_url": None})
    assert message == f"{' and '.join(client)} needs sasl_oauthbearer_token_endpoint_url, where tokens are requested"


def test_a_token_in_a_file(samples, caplog):
    for url in (f"file://{samples('token')}", f"file:{samples('token')}", f"file://localhost{samples('token')}"):
        given = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": url}
        canonical = {**given, "sasl_oauthbearer_token_endpoint_url": f"file://{samples('token')}"}
        assert changed(sasl(**given)) == canonical
    assert not caplog.records
    assert changed(sasl(**{**ENDPOINT, **given})) == canonical
    assert "client_secret have no effect with sasl_oauthbearer_token_endpoint_url" in caplog.text
    for name, reason in (("missing", "No such file"), ("empty", "the file with the token is empty")):
        message = sasl_refused(**{**given, "sasl_oauthbearer_token_endpoint_url": f"file://{samples(name)}"})
        assert reason in message and message.startswith("sasl_oauthbearer_token_endpoint_url=")


@pytest.mark.parametrize(
    "url",
    ["idp/token", "ftp://idp/x", "https://", "https:///x", "https://idp/a b", "https://idp:x/", "https://idp/#a",
     "https://[::1", "https://idp\n/x", "file://host/x", "file:x", "file:///x?y", 5, b"https://idp/"],
)  # fmt: skip
def test_urls_that_are_refused(url):
    message = sasl_refused(**{**ENDPOINT, "sasl_oauthbearer_token_endpoint_url": url})
    assert message.startswith("sasl_oauthbearer_token_endpoint_url=")
    assert "expected None, or a URL https://..., http://... or file:///..." in message


def test_credentials_of_a_url_are_not_shown():
    url = "https://user:hunter2@idp/token"
    message = sasl_refused(**{**ENDPOINT, "sasl_oauthbearer_token_endpoint_url": url})
    assert "it contains credentials" in message and "hunter2" not in message


def test_exactly_one_source_of_tokens():
    message = sasl_refused(sasl_mechanism="OAUTHBEARER")
    assert message.startswith("sasl_mechanism='OAUTHBEARER' needs a source of tokens: sasl_oauth_token_provider, or ")
    message = sasl_refused(**ENDPOINT, sasl_oauth_token_provider=Provider())
    assert "sasl_oauth_token_provider and sasl_oauthbearer_token_endpoint_url exclude each other" in message


def test_a_provider_of_tokens_stays_in_the_producer(caplog):
    provider = Provider()
    settings = sasl(sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=provider)
    assert settings.sasl_oauth_token_provider is provider
    assert changed(settings) == {"sasl_mechanism": "OAUTHBEARER"}
    assert "sasl_oauth_token_provider" not in {**settings.sender_settings(), **settings.front_end_settings()}
    assert round_trip(settings).sender_settings() == settings.sender_settings()
    with pytest.raises(KafkaConfigurationError, match="sasl_oauth_token_provider is a setting of the producer"):
        Settings.for_sender({**settings.sender_settings(), "sasl_oauth_token_provider": provider})
    assert "sasl_oauth_token_provider=<Provider>" in repr(settings)
    assert not caplog.records
    more = {name: ENDPOINT[name] for name in ENDPOINT if "client" in name}
    sasl(sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=provider, **more, sasl_oauthbearer_scope="x")
    assert "sasl_oauthbearer_scope have no effect with sasl_oauth_token_provider" in caplog.text


@pytest.mark.parametrize(
    ("value", "pairs"),
    [
        ({"b": "2", "a": "1"}, {"a": "1", "b": "2"}),
        ("a=1,b=x=y", {"a": "1", "b": "x=y"}),
        (" a=1 , ", {"a": "1"}),
        ("", {}),
        ({}, {}),
        ([("a", "1")], {"a": "1"}),
    ],
)
def test_extensions(value, pairs):
    settings = sasl(**ENDPOINT, sasl_oauthbearer_extensions=value)
    assert settings.sender_settings()["sasl_oauthbearer_extensions"] == pairs
    assert hash(settings.sasl_oauthbearer_extensions) is not None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("auth=x", "or is auth"), ("a1=x", "other characters than letters"), ("=x", "other characters than letters"),
        ("a=", "a value is empty"), ("a", "a value is empty"), ({"a": "ü"}, "not in ASCII"), ("a=1,a=2", "given twice"),
        ({"a": 1}, "expected a dict"), (5, "expected a dict"), (["a"], "expected a dict"),
    ],
)  # fmt: skip
def test_extensions_that_are_refused(value, reason):
    message = sasl_refused(**ENDPOINT, sasl_oauthbearer_extensions=value)
    assert message.startswith("sasl_oauthbearer_extensions=") and reason in message


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("sasl_login_refresh_window_factor", [0.49, 1.01, "x", True, float("nan")]),
        ("sasl_login_refresh_window_jitter", [-0.01, 0.26, "0.1"]),
        ("sasl_login_refresh_min_period_seconds", [-1, 901, 1.5]),
        ("sasl_login_refresh_buffer_seconds", [-1, 3601]),
        ("sasl_login_connect_timeout_ms", [-1, 2**31, "5"]),
    ],
)
def test_ranges_of_the_refresh(name, values):
    for value in values:
        assert sasl_refused(**ENDPOINT, **{name: value}).startswith(f"{name}=")
    assert type(sasl(**ENDPOINT, sasl_login_refresh_window_factor=1).sasl_login_refresh_window_factor) is float


# ---------------------------------------------------------------- what has no effect, copies


@pytest.mark.parametrize(
    ("mechanism", "given", "names"),
    [
        ({"sasl_mechanism": "GSSAPI"}, USER, "sasl_plain_username and sasl_plain_password have"),
        ({"sasl_mechanism": "PLAIN", **USER}, {"sasl_kerberos_domain_name": "x"}, "sasl_kerberos_domain_name has"),
        ({"sasl_mechanism": "SCRAM-SHA-256", **USER}, {"https_ca_location": "/no/such"}, "https_ca_location has"),
        (ENDPOINT, {"sasl.username": "x"}, "sasl.username has"),
    ],
)
def test_settings_of_other_mechanisms_have_no_effect(mechanism, given, names, caplog):
    assert sasl(**mechanism, **given).sender_settings() == sasl(**mechanism).sender_settings()
    (record,) = caplog.records
    assert record.getMessage() == f"{names} no effect with sasl_mechanism={mechanism['sasl_mechanism']!r}"


def test_settings_without_sasl_have_no_effect(caplog):
    for protocol in ("PLAINTEXT", "SSL"):
        caplog.clear()
        settings = parse(security_protocol=protocol, sasl_jaas_config="nonsense", https_ca_location="/no", **USER)
        assert settings.sender_settings() == parse(security_protocol=protocol).sender_settings()
        (record,) = caplog.records
        assert "sasl_plain_password have no effect with security_protocol=" in record.getMessage()
        assert "Zq7" not in record.getMessage()


def test_the_defaults_of_kafka_python_are_accepted_silently(caplog):
    kafka = pytest.importorskip("kafka")
    names = ("ssl_", "sasl_", "security_")
    given = {n: v for n, v in kafka.KafkaProducer.DEFAULT_CONFIG.items() if n.startswith(names)}
    assert len(given) > 10
    assert parse(**given).sender_settings() == parse().sender_settings()
    assert sasl(**{**given, "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **USER}).secrets()
    assert not caplog.records


def test_copies_and_the_sender_have_the_same_settings(samples, caplog):
    for given in (
        {"sasl_mechanism": "SCRAM-SHA-512", **USER},
        {"sasl_mechanism": "GSSAPI", "sasl_kerberos_name": "a@b"},
        {"sasl_kerberos_keytab": samples("token"), "sasl_kerberos_principal": "x"},
        {**ENDPOINT, "sasl_oauthbearer_extensions": "a=b"},
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_token_endpoint_url": f"file://{samples('token')}"},
        {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Provider.token_of_a_function},
    ):
        settings = sasl(**given)
        assert json.loads(json.dumps(settings.sender_settings())) == settings.sender_settings()
        assert list(settings.secrets()) == sorted(settings.secrets())
        for other in (pickle.loads(pickle.dumps(settings)), copy.deepcopy(settings)):
            assert other == settings and other.secrets() == settings.secrets()
        sender = round_trip(settings)
        assert (sender.sender_settings(), sender.secrets()) == (settings.sender_settings(), settings.secrets())
    assert not caplog.records


def test_a_sender_says_what_is_not_secure(caplog):
    round_trip(sasl(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", **USER))
    assert len([r for r in caplog.records if "without encryption" in r.getMessage()]) == 2


def test_a_sender_needs_credentials():
    front_end = sasl(sasl_mechanism="PLAIN", **USER)
    with pytest.raises(KafkaConfigurationError, match="needs sasl_plain_password"):
        Settings.for_sender(front_end.sender_settings())


def test_a_sender_that_is_named_has_its_own_credentials(caplog):
    for given in ({}, {"sasl_mechanism": "PLAIN"}, {"sasl_mechanism": "OAUTHBEARER"}, {"sasl_plain_username": "x"}):
        settings = Settings.parse(sender="/s", **given)
        assert settings.explicit_sender_settings() == given
        assert Settings.parse(sender="/s", security_protocol="SASL_SSL", **given).explicit_sender_settings() == {
            "security_protocol": "SASL_SSL",
            **given,
        }
    assert not caplog.records
