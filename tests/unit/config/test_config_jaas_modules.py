"""Tests what `sasl.jaas.config` means: the texts of documentations, each login module, and conflicts."""

import pytest
from security_samples import changed, parse, refused

from cyproducer.config.jaas import JaasError
from cyproducer.config.jaas_modules import login_of

KAFKA = "org.apache.kafka.common.security."
PLAIN, SCRAM = KAFKA + "plain.PlainLoginModule", KAFKA + "scram.ScramLoginModule"
OAUTH, KERBEROS = KAFKA + "oauthbearer.OAuthBearerLoginModule", "com.sun.security.auth.module.Krb5LoginModule"
CLIENT = "sasl_oauthbearer_client_credentials_client"


def sasl(text, **given):
    return parse(**{"security.protocol": "SASL_SSL", "sasl.jaas.config": text, **given})


def sasl_refused(text, **given):
    return refused(**{"security.protocol": "SASL_SSL", "sasl.jaas.config": text, **given})


# ---------------------------------------------------------------- documentations


@pytest.mark.parametrize(
    ("module", "mechanism"),
    [
        (f'{SCRAM} required username="alice" password="c/flt+SEC=RET//x";', "SCRAM-SHA-512"),  # Amazon MSK, Strimzi
        (f"{PLAIN} required username='alice' password='c/flt+SEC=RET//x';", "PLAIN"),  # Confluent Cloud
        (f'kafkashaded.{PLAIN} required username="alice" password="c/flt+SEC=RET//x";', "PLAIN"),  # Databricks
    ],
)
def test_user_and_password(module, mechanism):
    assert changed(sasl(module, **{"sasl.mechanism": mechanism, "client.dns.lookup": "use_all_dns_ips"})) == {
        "sasl_mechanism": mechanism, "sasl_plain_username": "alice", "sasl_plain_password": "c/flt+SEC=RET//x",
    }  # fmt: skip


def test_amazon_msk_with_iam():
    message = sasl_refused("software.amazon.msk.auth.iam.IAMLoginModule required;")
    assert message.startswith("sasl.jaas.config=<hidden>: IAMLoginModule is a class of Java; use sasl_mechanism=")
    assert "aws-msk-iam-sasl-signer-python" in message


def test_confluent_cloud_with_oauth():
    text = f"""{OAUTH} required \
        clientId='app' scope='kafka' clientSecret='Zq7' extension_logicalCluster='lkc-1' \
        extension_identityPoolId='pool-2';"""
    given = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        "sasl.login.callback.handler.class": KAFKA + "oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    }
    assert changed(sasl(text, **given)) == {
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": "https://idp/token",
        CLIENT + "_id": "app",
        CLIENT + "_secret": "Zq7",
        "sasl_oauthbearer_scope": "kafka",
        "sasl_oauthbearer_extensions": {"identityPoolId": "pool-2", "logicalCluster": "lkc-1"},
    }


def test_strimzi_with_oauth(samples):
    text = f"""{OAUTH} required
        oauth.client.id="team-a-client"
        oauth.client.secret="Zq7"
        oauth.scope="any"
        oauth.ssl.truststore.location="{samples("ca.pem")}"
        oauth.ssl.truststore.type="PEM"
        oauth.token.endpoint.uri="https://keycloak:8443/realms/kafka/protocol/openid-connect/token";"""
    given = {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "io.strimzi.kafka.oauth.client.JaasClientOauthLoginCallbackHandler",
    }
    assert changed(sasl(text, **given)) == {
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauthbearer_token_endpoint_url": "https://keycloak:8443/realms/kafka/protocol/openid-connect/token",
        CLIENT + "_id": "team-a-client",
        CLIENT + "_secret": "Zq7",
        "sasl_oauthbearer_scope": "any",
        "https_ca_location": samples("ca.pem"),
    }


def test_kafka_with_kerberos(samples, monkeypatch):
    monkeypatch.delenv("KRB5CCNAME", raising=False)
    text = f"""{KERBEROS} required \
        useKeyTab=true \
        storeKey=true  \
        keyTab="{samples("token")}" \
        principal="kafka-client-1@EXAMPLE.COM";"""
    keytab = {"sasl_kerberos_keytab": samples("token"), "sasl_kerberos_principal": "kafka-client-1@EXAMPLE.COM"}
    assert changed(sasl(text, **{"sasl.kerberos.service.name": "kafka"})) == keytab
    ticket = f"{KERBEROS} required useTicketCache=true;"
    assert changed(sasl(ticket, **{"sasl.kerberos.service.name": "kafka"})) == {}
    assert changed(sasl(ticket, **{"sasl.mechanism": "GSSAPI"})) == {}


# ---------------------------------------------------------------- modules


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ('useKeyTab=true keyTab="/k" principal=p', {"sasl_kerberos_keytab": "/k", "sasl_kerberos_principal": "p"}),
        ('keyTab="FILE:/k"', {"sasl_kerberos_keytab": "/k"}),
        ('useKeyTab=false keyTab="/k"', {}),
        ('useTicketCache=true ticketCache="/c"', {"sasl_kerberos_ticket_cache": "/c"}),
        ('useTicketCache=false ticketCache="/c"', {}),
        ('ticketCache="/c" keyTab="/k"', {"sasl_kerberos_keytab": "/k"}),
        ('serviceName="broker" debug=true', {"sasl_kerberos_service_name": "broker"}),
    ],
)
def test_options_of_kerberos(options, settings):
    assert login_of(f"{KERBEROS} required {options};") == (("GSSAPI",), settings, [])


def test_options_without_effect_are_counted_and_not_named(caplog):
    given = {"sasl.mechanism": "PLAIN"}
    sasl(f'{PLAIN} required username="a" password=b user_hunter2=x serviceName="y";', **given)
    assert "2 of the options of sasl_jaas_config have no effect" in caplog.text
    assert "hunter2" not in caplog.text
    assert login_of(f"{KERBEROS} required hunter2=x;").notes
    assert login_of(f'{SCRAM} required tokenauth="false";') == (("SCRAM-SHA-256", "SCRAM-SHA-512"), {}, [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"{PLAIN} required; {PLAIN} required;", "it has 2 login modules; a client uses one"),
        (
            "com.example.OwnLoginModule required;",
            "none of PlainLoginModule, ScramLoginModule, OAuthBearerLoginModule, ",
        ),
        (f"Not{PLAIN} required;", "its login module is none of"),
        (f'{SCRAM} required username="a" password="b" tokenauth="true";', "delegation tokens (tokenauth)"),
        (f"{KERBEROS} required useKeyTab=true;", "useKeyTab needs keyTab"),
        (f'{PLAIN} required username="a\\nb";', "username: it has a line break"),
        (f'{KERBEROS} required keyTab="~/k";', "keyTab: ~ is not replaced"),
        (
            f'{OAUTH} required extension_auth="x";',
            "extension_NAME: a name has other characters than letters, or is auth",
        ),
        (f'{OAUTH} required unsecuredLoginStringClaim_sub="alice";', "unsecuredLoginStringClaim_sub is not supported"),
        (f'{OAUTH} required oauth.refresh.token="Zq7";', "oauth.refresh.token is not supported; use clientId"),
        (f'{OAUTH} required ssl.truststore.type="JKS";', "ssl.truststore.type is not supported"),
        (f'{OAUTH} required Zq7="x";', "one of its options is not supported"),
        (f'{OAUTH} required clientId="a" oauth.client.id="b";', "an option is given twice, once with Strimzi's name"),
    ],
)
def test_modules_that_are_refused(text, reason):
    with pytest.raises(JaasError) as caught:
        login_of(text)
    assert reason in str(caught.value) and "Zq7" not in str(caught.value)
    message = sasl_refused(text)
    assert message == f"sasl.jaas.config=<hidden>: {caught.value}"


def test_empty_options_are_not_given():
    for module in (PLAIN, SCRAM):
        assert login_of(f'{module} required username="" password="";').settings == {}
    assert login_of(f'{OAUTH} required clientId="" scope="";').settings == {}
    message = sasl_refused(f'{PLAIN} required username="a" password="";', **{"sasl.mechanism": "PLAIN"})
    assert message == "sasl.mechanism='PLAIN' needs sasl_plain_password"
    assert parse(sasl_jaas_config="").explicit == {"bootstrap_servers"}


# ---------------------------------------------------------------- together with other settings


@pytest.mark.parametrize(
    ("module", "mechanism"),
    [(PLAIN, "SCRAM-SHA-256"), (SCRAM, "PLAIN"), (OAUTH, "GSSAPI"), (KERBEROS, "PLAIN"), (PLAIN, "GSSAPI")],
)
def test_module_and_mechanism_agree(module, mechanism):
    message = sasl_refused(f"{module} required;", **{"sasl.mechanism": mechanism})
    assert message.startswith("the login module of sasl.jaas.config is for ")
    assert message.endswith(f"sasl.mechanism is {mechanism!r}; make them agree")


def test_the_mechanism_must_be_given_but_for_kerberos():
    assert "needs sasl_mechanism" in sasl_refused(f'{PLAIN} required username="a" password="b";')
    assert sasl(f"{KERBEROS} required;").sasl_mechanism == "GSSAPI"


@pytest.mark.parametrize(
    ("text", "given", "name"),
    [
        (f'{PLAIN} required username="a";', {"sasl.username": "a"}, "sasl_plain_username"),
        (f'{PLAIN} required password="Zq7";', {"sasl_plain_password": "Zq7"}, "sasl_plain_password"),
        (f'{OAUTH} required clientId="a";', {"sasl.oauthbearer.client.id": "a"}, CLIENT + "_id"),
        (f'{OAUTH} required scope="a";', {"sasl.oauthbearer.scope": "a"}, "sasl_oauthbearer_scope"),
        (f'{KERBEROS} required serviceName="a";', {"sasl.kerberos.service.name": "b"}, "sasl_kerberos_service_name"),
        (f'{KERBEROS} required principal="a";', {"sasl_kerberos_principal": "a"}, "sasl_kerberos_principal"),
    ],
)
def test_an_option_and_its_setting_contradict(text, given, name):
    (spelling,) = given
    message = sasl_refused(text, **given)
    assert message == f"{name} is given twice, in sasl.jaas.config and as {spelling!r}; leave one of them out"


def test_the_same_service_may_be_in_both_places():
    settings = sasl(f'{KERBEROS} required serviceName="b";', **{"sasl.kerberos.service.name": "b"})
    assert settings.sasl_kerberos_service_name == "b"


def test_a_copy_has_the_settings_and_not_the_text():
    settings = sasl(f'{PLAIN} required username="a" password="Zq7";', **{"sasl.mechanism": "PLAIN"})
    assert settings.explicit == {
        "bootstrap_servers", "security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password",
    }  # fmt: skip
    assert settings == parse(
        security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_plain_username="a", sasl_plain_password="Zq7"
    )
