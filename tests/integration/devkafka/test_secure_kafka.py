"""Tests the secure listeners of the real Kafka nodes with librdkafka: who may connect, as which user, to do what."""

import socket
import ssl
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from devkafka.node import KafkaCluster
from devkafka.security import Security
from support.secure_kafka import SPECIAL, secure_kafka_fixture

REAUTH_MS = 4000
SASL = ("SASL_PLAINTEXT", "SASL_SSL")
PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
SCRAM = PASSWORDS[1:]

secure_kafka = secure_kafka_fixture(max_reauth_ms=REAUTH_MS)
secure_kafka3 = secure_kafka_fixture(nodes=3)


def send(settings: dict[str, Any], topic: str, value: bytes = b"a", partition: int = 0) -> KafkaError | None:
    """Send one record and return its error, None if there is none. Fail if there is no answer."""
    results, errors = [], []
    producer = Producer({"message.timeout.ms": 20_000, "error_cb": errors.append, **settings})
    producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: results.append(error))
    assert producer.flush(30) == 0
    if results[0] is not None and results[0].code() == KafkaError._MSG_TIMED_OUT:
        raise AssertionError(f"no answer to the record; errors of the connections: {errors}")
    return results[0]


def read_one(settings: dict[str, Any], topic: str) -> bytes:
    """Return the value of the first record of partition 0."""
    consumer = Consumer({"group.id": "reader", "enable.auto.commit": False, **settings})
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        message = consumer.poll(20)
        assert message is not None, "no record arrived"
        assert message.error() is None, message.error()
        return message.value()
    finally:
        consumer.close()


def refusal(settings: dict[str, Any]) -> KafkaError:
    """Return the first error of a client's connection."""
    errors: list[KafkaError] = []
    client = Producer({**settings, "error_cb": errors.append})
    deadline = time.monotonic() + 20
    while not errors:
        assert time.monotonic() < deadline, "the client reported no error"
        client.poll(0.05)
    return errors[0]


def assert_refuses_the_broker(settings: dict[str, Any]) -> None:
    """Check that a client does not accept the broker's certificate. librdkafka has two codes for that."""
    error = refusal(settings)
    assert error.code() in (KafkaError._SSL, KafkaError._TRANSPORT)
    assert "certificate verify failed" in error.str()


def assert_works(settings: dict[str, Any], topic: str) -> None:
    assert send(settings, topic, b"there and back") is None
    assert read_one(settings, topic) == b"there and back"


def assert_denied(error: KafkaError | None) -> None:
    assert error is not None
    assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", PASSWORDS)
@pytest.mark.parametrize("listener", SASL)
def test_password_is_checked(secure_kafka, listener, mechanism):
    topic = secure_kafka.topic_for("User:alice")
    assert_works(secure_kafka.rdkafka(listener, mechanism), topic)
    assert_denied(send(secure_kafka.rdkafka(listener, mechanism, "bob"), topic))
    for user, password in (("alice", secure_kafka.users["bob"]), ("nobody", "x")):
        error = refusal(secure_kafka.rdkafka(listener, mechanism, user, password=password))
        assert error.code() == KafkaError._AUTHENTICATION, error


@pytest.mark.parametrize("listener", SASL)
def test_token_is_checked(secure_kafka, listener):
    tokens = secure_kafka.tokens
    topic = secure_kafka.topic_for(f"User:{tokens.client_id}")
    tokens.forget_requests()
    assert_works(secure_kafka.rdkafka(listener, "OAUTHBEARER"), topic)
    assert [(request.client_id, request.status) for request in tokens.requests] == [(tokens.client_id, 200)] * 2
    token = tokens.token(scope="produce")
    assert_works(secure_kafka.rdkafka(listener, "OAUTHBEARER", token=token), topic)
    assert_denied(send(secure_kafka.rdkafka(listener, "OAUTHBEARER", token=tokens.token("another")), topic))


@pytest.mark.parametrize(
    "wrong",
    [{"expires_in": -5}, {"foreign": True}, {"audience": "others"}, {"issuer": "urn:others"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_wrong_token_is_refused(secure_kafka, wrong):
    token = secure_kafka.tokens.token(**wrong)
    error = refusal(secure_kafka.rdkafka("SASL_SSL", "OAUTHBEARER", token=token))
    assert error.code() == KafkaError._AUTHENTICATION, error
    assert "invalid_token" in error.str()


def test_endpoint_refuses_a_wrong_secret(secure_kafka):
    settings = secure_kafka.rdkafka("SASL_SSL", "OAUTHBEARER")
    secure_kafka.tokens.change_secret()
    error = refusal(settings)
    assert error.code() == KafkaError._AUTHENTICATION, error
    assert secure_kafka.tokens.requests[-1].status == 401


@pytest.mark.parametrize("listener", ["SSL", "MTLS"])
def test_certificate_names_the_user(secure_kafka, listener):
    topic = secure_kafka.topic_for("User:CN=carol")
    assert_works(secure_kafka.rdkafka(listener, identity=secure_kafka.keys.client("carol")), topic)
    assert_denied(send(secure_kafka.rdkafka(listener, identity=secure_kafka.keys.client("dave")), topic))


def test_encrypted_key_and_pkcs12_store_of_a_client(secure_kafka):
    topic = secure_kafka.topic_for("User:CN=erin")
    identity = secure_kafka.keys.client("erin", password="a password")
    assert_works(secure_kafka.rdkafka("MTLS", identity=identity), topic)
    store = secure_kafka.keys.pkcs12(identity, "another password")
    stored = {"ssl.keystore.location": str(store), "ssl.keystore.password": "another password"}
    assert_works(secure_kafka.rdkafka("MTLS", **stored), topic)


def test_client_without_a_certificate(secure_kafka):
    """It is anonymous if a certificate is only requested. Then it is no super user."""
    topic = secure_kafka.topic_for("User:CN=carol")
    settings = secure_kafka.rdkafka("SSL")
    assert_denied(send(settings, topic))
    secure_kafka.grant(topic, "User:ANONYMOUS")
    assert_works(settings, topic)
    secure_kafka.cluster.access.remove("User:ANONYMOUS")
    assert "alert" in refusal(secure_kafka.rdkafka("MTLS")).str()


@pytest.mark.parametrize("wrong", ["expired", "other_ca"])
@pytest.mark.parametrize("listener", ["SSL", "MTLS"])
def test_wrong_certificate_of_a_client_is_refused(secure_kafka, listener, wrong):
    # Not with librdkafka: it does not send a certificate of a CA that the broker does not name.
    identity = secure_kafka.keys.client("mallory", **{wrong: True})
    context = ssl.create_default_context(cafile=str(secure_kafka.keys.ca))
    context.load_cert_chain(identity.certificate, identity.key)
    host, _, port = secure_kafka.bootstrap(listener).rpartition(":")
    with socket.create_connection((host, int(port)), 20) as plain:
        with context.wrap_socket(plain, server_hostname=host) as connection:
            with pytest.raises(ssl.SSLError, match=r"(?i)alert certificate unknown"):
                connection.recv(1)


@pytest.mark.parametrize("listener", ["SSL", "SASL_SSL"])
def test_client_that_trusts_another_ca_refuses_the_broker(secure_kafka, listener):
    mechanism = "PLAIN" if listener == "SASL_SSL" else None
    assert_refuses_the_broker(secure_kafka.rdkafka(listener, mechanism, ca=secure_kafka.keys.other_ca))


@pytest.mark.parametrize("wrong", ["expired", "wrong_host", "other_ca"])
def test_broker_loads_another_certificate(secure_kafka, wrong):
    topic = secure_kafka.topic_for("User:alice")
    settings = secure_kafka.rdkafka("SASL_SSL", "PLAIN")
    secure_kafka.keys.reissue_broker(**{wrong: True})
    assert_works(settings, topic)  # the broker has not loaded it
    try:
        secure_kafka.cluster.access.reload_certificates()
        assert_refuses_the_broker(settings)
    finally:
        secure_kafka.keys.reissue_broker()
        secure_kafka.cluster.access.reload_certificates()
    assert_works(settings, topic)


def test_rule_denies_until_it_is_removed(secure_kafka):
    access, topic = secure_kafka.cluster.access, secure_kafka.new_topic()
    settings = secure_kafka.rdkafka("SASL_PLAINTEXT", "PLAIN")
    access.remove("User:alice")
    assert_denied(send(settings, topic))
    access.allow("User:alice", "READ", "GROUP", "*")
    access.allow("User:alice", "ALL", "TOPIC", topic[:-1], prefixed=True)
    assert send(settings, topic) is None
    access.deny("User:alice", "WRITE", "TOPIC", topic)
    assert_denied(send(settings, topic))
    assert read_one(settings, topic) == b"a"
    access.remove("User:alice")
    access.allow("User:alice", "WRITE", "TOPIC", topic)
    assert send(settings, topic) is None


@pytest.mark.parametrize("operation", ["IDEMPOTENT_WRITE", "ALTER"])
def test_rule_of_the_cluster_is_kept(secure_kafka, operation):
    secure_kafka.cluster.access.allow("User:zoe", operation, "CLUSTER")
    tool = secure_kafka.cluster.tool(
        "org.apache.kafka.tools.AclCommand", "--bootstrap-server", secure_kafka.cluster.bootstrap_servers, "--list",
        "--principal", "User:zoe",
    )  # fmt: skip
    secure_kafka.cluster.access.remove("User:zoe")
    assert "resourceType=CLUSTER, name=kafka-cluster" in tool.stdout
    assert f"operation={operation}" in tool.stdout


def test_scram_password_changes(secure_kafka):
    access, topic = secure_kafka.cluster.access, secure_kafka.topic_for("User:frank")
    old, new = (
        {name: secure_kafka.rdkafka("SASL_SSL", name, "frank", password=password) for name in SCRAM}
        for password in ("old", "new" + SPECIAL)
    )
    access.set_scram_password("frank", "old")
    for settings in old.values():
        assert_works(settings, topic)
    access.set_scram_password("frank", "new" + SPECIAL)
    for name in SCRAM:
        assert refusal(old[name]).code() == KafkaError._AUTHENTICATION
        assert_works(new[name], topic)
    access.remove_scram_user("frank")
    for settings in new.values():
        assert refusal(settings).code() == KafkaError._AUTHENTICATION


def ask(connection: socket.socket, api: int, version: int, body: bytes) -> bytes:
    """Send a request and return its response after the correlation id; empty if the connection ends."""
    request = struct.pack(">hhih", api, version, 7, -1) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    stream = connection.makefile("rb")
    size = stream.read(4)
    return stream.read(struct.unpack(">i", size)[0])[4:] if size else b""


def test_session_ends_without_another_authentication(secure_kafka):
    topic = secure_kafka.topic_for("User:alice")
    host, _, port = secure_kafka.bootstrap("SASL_PLAINTEXT").rpartition(":")
    errors: list[KafkaError] = []
    producer = Producer(secure_kafka.rdkafka("SASL_PLAINTEXT", "PLAIN", error_cb=errors.append))
    producer.produce(topic, b"before")
    assert producer.flush(20) == 0
    with socket.create_connection((host, int(port)), 20) as connection:
        assert ask(connection, 17, 1, struct.pack(">h", 5) + b"PLAIN")[:2] == b"\0\0"  # SaslHandshake
        started = time.monotonic()
        secret = b"\0alice\0" + secure_kafka.users["alice"].encode()
        answer = ask(connection, 36, 1, struct.pack(">i", len(secret)) + secret)  # SaslAuthenticate
        (lifetime,) = struct.unpack(">q", answer[-8:])
        assert answer[:2] == b"\0\0"
        assert 0 < lifetime <= REAUTH_MS
        metadata = struct.pack(">i", 0)
        assert ask(connection, 3, 1, metadata)
        time.sleep(max(0.0, started + REAUTH_MS / 1000 + 0.5 - time.monotonic()))
        assert ask(connection, 3, 1, metadata) == b""
    producer.produce(topic, b"after")  # librdkafka authenticates again on its connection
    assert producer.flush(20) == 0
    assert errors == []
    assert secure_kafka.read(topic, 2).value == [b"before", b"after"]


def test_passwords_are_only_in_private_files(secure_kafka):
    node = secure_kafka.cluster.node(1)
    assert node.properties.stat().st_mode & 0o777 == 0o600
    texts = [node.log.read_text(), repr(secure_kafka.cluster.security), repr(secure_kafka.tokens)]
    texts += [repr(secure_kafka.keys.client("grace", password="very secret"))]
    command = Path(f"/proc/{node.pid}/cmdline").read_text()
    passwords = [password.removesuffix(SPECIAL) for password in secure_kafka.users.values()]
    assert all(password in node.properties.read_text() for password in passwords)
    for secret in (*passwords, secure_kafka.tokens.client_secret, "very secret", "UserScramCredentialRecord"):
        assert not any(secret in text for text in (*texts, command))


def test_restart_keeps_users_rules_and_certificates(secure_kafka):
    topic = secure_kafka.topic_for("User:alice")
    addresses = secure_kafka.bootstrap("SASL_SSL")
    secure_kafka.cluster.access.set_scram_password("heidi", "x")
    secure_kafka.cluster.access.remove_scram_user("heidi")  # a removal in Kafka would end the other users here
    secure_kafka.cluster.restart()
    assert secure_kafka.bootstrap("SASL_SSL") == addresses
    assert_works(secure_kafka.rdkafka("SASL_SSL", "SCRAM-SHA-512"), topic)


@pytest.mark.long
def test_three_nodes_have_applied_a_change_when_the_call_returns(secure_kafka3):
    cluster = secure_kafka3.cluster
    topic = secure_kafka3.topic_for("User:alice", "User:CN=carol", partitions=3, replication=3)
    carol = secure_kafka3.keys.client("carol")
    addresses = cluster.address_of("SASL_SSL").split(",")
    assert addresses == [cluster.address_of("SASL_SSL", number) for number in (1, 2, 3)]
    for password in ("first", "second"):
        cluster.access.set_scram_password("alice", password)
        for address in addresses:
            only = secure_kafka3.rdkafka("SASL_SSL", "SCRAM-SHA-256", password=password)
            found = Producer({**only, "bootstrap.servers": address}).list_topics(topic, timeout=20)
            assert sorted(f"{b.host}:{b.port}" for b in found.brokers.values()) == sorted(addresses)
    leaders = cluster.metadata(topic).leaders
    assert set(leaders.values()) == {1, 2, 3}
    for partition in leaders:
        assert send(secure_kafka3.rdkafka("MTLS", identity=carol, acks="all"), topic, b"x", partition) is None
    cluster.access.remove("User:CN=carol")
    for partition in leaders:
        assert_denied(send(secure_kafka3.rdkafka("MTLS", identity=carol), topic, b"x", partition))
    secure_kafka3.keys.reissue_broker(wrong_host=True)
    cluster.access.reload_certificates()
    for number in (1, 2, 3):
        settings = secure_kafka3.rdkafka("SSL") | {"bootstrap.servers": cluster.address_of("SSL", number)}
        assert_refuses_the_broker(settings)


def test_cluster_without_security_has_no_other_listeners(tmp_path):
    cluster = KafkaCluster(1, tmp_path)
    assert cluster.address_of("PLAINTEXT") == cluster.bootstrap_servers
    with pytest.raises(ValueError, match=r"the nodes have PLAINTEXT$"):
        cluster.address_of("SSL")
    with pytest.raises(ValueError, match=r"KafkaCluster\(security="):
        _ = cluster.access


def test_wrong_arguments_are_refused(secure_kafka):
    with pytest.raises(ValueError, match="client_auth='always': use one of none, requested, required"):
        Security(secure_kafka.keys, client_auth="always")
    with pytest.raises(ValueError, match="users: 'a b' has other characters") as caught:
        Security(secure_kafka.keys, {"a b": "hidden"})
    assert "hidden" not in str(caught.value)
    with pytest.raises(ValueError, match="the nodes have PLAINTEXT, SSL, MTLS, SASL_PLAINTEXT, SASL_SSL"):
        secure_kafka.cluster.address_of("TLS")
