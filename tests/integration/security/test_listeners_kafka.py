"""Tests that a producer reaches each secure listener of a real Kafka, and says why if it does not."""

from collections.abc import Callable

import pytest
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor

from cyproducer import KafkaProducer, errors

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
Make = Callable[..., KafkaProducer]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_each_mechanism(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, listener: str, mechanism: str
) -> None:
    user = secure_kafka.tokens.client_id if mechanism == "OAUTHBEARER" else "alice"
    topic = secure_kafka.topic_for(f"User:{user}")
    producer = make_producer(**settings_for(listener, mechanism))
    assert [producer.send(topic, b"%d" % n).result(30).offset for n in range(3)] == [0, 1, 2]
    assert secure_kafka.read(topic, 3).value == [b"0", b"1", b"2"]


@pytest.mark.parametrize("versions", [["TLSv1.2"], ["TLSv1.3"]])
def test_tls(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, versions: list[str]) -> None:
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    producer = make_producer(**settings_for("SSL", ssl_enabled_protocols=versions))
    producer.send(topic, b"x" * 500_000).result(30)  # more than the socket takes at once
    assert secure_kafka.read(topic, 1).value == [b"x" * 500_000]


@pytest.mark.parametrize("kind", ["keystore", "two files", "encrypted", "pkcs12", "text"])
def test_a_client_certificate(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, kind: str
) -> None:
    """The broker knows the client by its certificate, in each form in which it can be given."""
    name = f"client-{kind.replace(' ', '-')}"
    identity = secure_kafka.keys.client(name, password="of the key" if kind == "encrypted" else None)
    certificate, key = str(identity.certificate), str(identity.key)
    given = {
        "keystore": {"ssl_certfile": str(identity.keystore)},
        "two files": {"ssl_certfile": certificate, "ssl_keyfile": key},
        "encrypted": {"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_password": "of the key"},
        "pkcs12": {},
        "text": {"ssl_certdata": identity.certificate.read_text(), "ssl_keydata": identity.key.read_text()},
    }[kind]
    if kind == "pkcs12":
        store = secure_kafka.keys.pkcs12(identity, "of the store")
        given = {"ssl_keystore_location": str(store), "ssl_keystore_password": "of the store"}
        given["ssl_keystore_type"] = "PKCS12"
    topic = secure_kafka.topic_for(f"User:CN={name}")
    producer = make_producer(**settings_for("MTLS", **given))
    producer.send(topic, b"by certificate").result(30)
    assert secure_kafka.read(topic, 1).value == [b"by certificate"]


def refused(make_producer: Make, topic: str, settings: dict[str, object]) -> str:
    """Return why a producer with these settings cannot send."""
    producer = make_producer(**settings | {"max_block_ms": 2000})
    with pytest.raises(errors.KafkaError) as caught:
        producer.send(topic, b"never").result(10)
    return str(caught.value)


def test_a_refusal_is_raised_at_once(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor) -> None:
    """The limits are longer than the time limit of the test. A user that is created later is accepted."""
    topic = secure_kafka.topic_for("User:alice")
    patient = {"max_block_ms": 3_600_000}
    wrong = make_producer(**settings_for("SASL_SSL", "PLAIN", sasl_plain_password="wrong") | patient)
    for attempt in range(2):
        with pytest.raises(errors.AuthenticationFailedError, match=r"no broker can be used.* refuses the credentials"):
            wrong.send(topic, b"%d" % attempt)
    with pytest.raises(errors.AuthenticationFailedError, match="refuses the credentials"):
        wrong.partitions_for(topic)
    untrusted = make_producer(**settings_for("SSL", ssl_cafile=str(secure_kafka.keys.other_ca)) | patient)
    with pytest.raises(errors.AuthenticationFailedError, match="the broker's authority as ssl_cafile"):
        untrusted.send(topic, b"0")
    transactional = make_producer(
        **settings_for("SASL_SSL", "SCRAM-SHA-256", sasl_plain_password="wrong", transactional_id="refused") | patient
    )
    with pytest.raises(errors.AuthenticationFailedError, match="refuses the credentials"):
        transactional.init_transactions()
    counted = wrong.metrics()["producer-metrics"]
    assert counted["failed-authentication-total"] >= 2
    assert counted["successful-authentication-total"] == counted["failed-reauthentication-total"] == 0


def test_one_broker_that_refuses_does_not_matter(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor
) -> None:
    """The first servers have no SASL. The last one accepts the client, whichever is asked first."""
    topic = secure_kafka.topic_for("User:alice")
    right, wrong = secure_kafka.bootstrap("SASL_SSL"), secure_kafka.bootstrap("SSL")
    settings = settings_for("SASL_SSL", "PLAIN") | {"bootstrap_servers": [wrong, wrong, wrong, right]}
    producer = make_producer(**settings)
    assert producer.send(topic, b"0").result(30).offset == 0
    assert producer.metrics()["producer-metrics"]["successful-authentication-total"] >= 1


def test_a_wrong_password(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor) -> None:
    topic = secure_kafka.topic_for("User:alice")
    for mechanism in MECHANISMS[:-1]:
        settings = settings_for("SASL_SSL", mechanism, sasl_plain_password="marked-wrong-password")
        text = refused(make_producer, topic, settings)
        assert f"refuses the credentials ({mechanism})" in text
        assert "marked-wrong-password" not in text


def test_a_wrong_secret_of_the_token_endpoint(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor
) -> None:
    wrong = settings_for("SASL_SSL", "OAUTHBEARER", sasl_oauthbearer_client_credentials_client_secret="marked-wrong")
    text = refused(make_producer, "any", wrong)
    assert "HTTP status 401" in text
    assert "marked-wrong" not in text


def test_an_unknown_authority(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor) -> None:
    text = refused(make_producer, "any", settings_for("SSL", ssl_cafile=str(secure_kafka.keys.other_ca)))
    assert "the broker's authority as ssl_cafile" in text
    assert "ssl_cafile" in text


def test_no_client_certificate(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor) -> None:
    assert "ssl_certfile" in refused(make_producer, "any", settings_for("MTLS"))


def test_listeners_that_do_not_fit(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor) -> None:
    """Each combination of a client and a listener that cannot work is explained."""

    def at(listener: str, settings: dict[str, object]) -> str:
        return refused(make_producer, "any", settings | {"bootstrap_servers": secure_kafka.bootstrap(listener)})

    assert "the listener uses TLS" in at("SSL", {"security_protocol": "PLAINTEXT"})
    assert "the listener may not use TLS" in at("PLAINTEXT", settings_for("SSL"))
    assert "the listener does not use SASL" in at("SSL", settings_for("SASL_SSL", "PLAIN"))
    assert "the listener may require SASL" in at("SASL_SSL", settings_for("SSL"))
