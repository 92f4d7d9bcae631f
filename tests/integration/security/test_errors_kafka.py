"""Tests why send() fails with wrong certificates, tokens, mechanisms and listeners, on a real Kafka.

send() says why. It raises AuthenticationFailedError with the next attempt of the sender that fails, and
KafkaTimeoutError after max_block_ms if the reason may pass by itself. The sender tries again, but without haste.
"""

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.process import wait_until
from support.revocations import revocations
from support.secure_kafka import SecureKafka, secure_kafka_fixture
from support.secure_settings import SettingsFor

from cyproducer import KafkaProducer, errors
from cyproducer.observe.status import status

Make = Callable[..., KafkaProducer]
Settings = dict[str, Any]

OFFERED = {
    "listener.name.sasl_plaintext.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
    "listener.name.ssl.ssl.enabled.protocols": "TLSv1.3",
}
secure_kafka = secure_kafka_fixture(properties=OFFERED)

BLOCK_MS = 3000
# With the default reconnect_backoff_ms (50) and reconnect_backoff_max_ms (1000), and 20 % of jitter.
CONNECTIONS_AT_FIRST, CONNECTIONS_PER_S = 6, 1.25
CLOCK = r"\d{4}-\d\d-\d\d \d\d:\d\d UTC"


def connections(producer: KafkaProducer) -> float:
    """Return how many connections the sender of a producer has made."""
    return float(producer.metrics()["producer-metrics"]["connection-creation-total"])


def refused(make_producer: Make, settings: Settings) -> str:
    """Return why a producer with these settings cannot send. It must be the first one of its sender.

    Each call of send() fails with the next attempt of the sender, or after BLOCK_MS if that is no refusal.
    """
    producer = make_producer(**settings | {"max_block_ms": BLOCK_MS})
    began, text = time.monotonic(), ""
    while not text or time.monotonic() < began + BLOCK_MS / 1000:
        # On a busy machine, the start of the sender may take longer than that.
        with pytest.raises(
            (errors.AuthenticationFailedError, errors.KafkaTimeoutError, errors.SenderUnavailableError)
        ) as caught:
            producer.send("any", b"never")
        if re.search(r"broker \S+:\d+: ", str(caught.value)):  # on a busy machine, the first attempt may take longer
            text = str(caught.value)
    wait_until(lambda: connections(producer) > 1, 30, "another attempt")
    assert connections(producer) <= CONNECTIONS_AT_FIRST + CONNECTIONS_PER_S * (time.monotonic() - began)
    assert "..." not in text, text  # what to do comes last, and must not be cut off
    return text


def check(make_producer: Make, cases: dict[str, tuple[Settings, str]]) -> None:
    """Check that a producer with the settings of each case fails with the case's text, a regular expression."""
    with ThreadPoolExecutor(4) as pool:
        running = {name: pool.submit(refused, make_producer, settings) for name, (settings, _) in cases.items()}
    for name, (_, expected) in cases.items():
        found = running[name].result()
        assert re.search(expected, found), f"{name}: {found}"


# ---------------------------------------------------------------- certificates


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"expired": True}, rf"certificate has expired; renew it, or correct this host's clock \({CLOCK}"),
        (
            {"not_yet_valid": True},
            rf"certificate is not yet valid; renew it, or correct this host's clock \({CLOCK}\)",
        ),
        ({"wrong_host": True}, "Hostname mismatch, .* 'localhost'; use a name of the certificate in bootstrap_servers"),
    ],
    ids=["expired", "not yet valid", "wrong host"],
)
def test_a_certificate_of_the_broker_that_is_refused(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, wrong: dict[str, bool], expected: str
) -> None:
    """As soon as the broker has a good one, the same sender uses it."""
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    settings = settings_for("SSL")
    secure_kafka.keys.reissue_broker(**wrong)
    secure_kafka.cluster.access.reload_certificates()
    try:
        text = refused(make_producer, settings)
        assert re.search(f"the broker's certificate is refused: {expected}", text), text
    finally:
        secure_kafka.keys.reissue_broker()
        secure_kafka.cluster.access.reload_certificates()
    assert make_producer(**settings).send(topic, b"0").result(30).offset == 0
    assert [len(each["front_ends"]) for each in status()] == [2]


def test_a_certificate_of_the_client_that_is_refused(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor
) -> None:
    """The broker does not say why. So the message shows the dates if they are the likely reason.

    As soon as the certificate is renewed in the same file, the same sender uses it.
    """
    topic = secure_kafka.topic_for("User:CN=expired")
    mtls = {
        name: settings_for("MTLS", ssl_certfile=str(secure_kafka.keys.client(name, **{name: True}).keystore))
        for name in ("expired", "other_ca")
    }
    text = "the broker refuses this client's certificate"
    dates = rf"it expired at 2001-01-01 00:00 UTC, and the clock of this host shows {CLOCK}: renew it"
    check(
        make_producer,
        {
            "expired": (mtls["expired"], f"{text}.*{dates}"),
            "expired, TLS 1.2": (mtls["expired"] | {"ssl_enabled_protocols": ["TLSv1.2"]}, f"{text}.*{dates}"),
            "other authority": (mtls["other_ca"], f"{text}.*signed by an authority that the broker trusts"),
        },
    )
    secure_kafka.keys.client("expired")
    assert make_producer(**mtls["expired"]).send(topic, b"0").result(30).offset == 0
    assert sorted(len(each["front_ends"]) for each in status()) == [1, 1, 2]


def test_lists_of_revoked_certificates(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, tmp_path: Path
) -> None:
    """One has the certificate of the broker, one is of another authority, and with one the connection is made."""
    keys = secure_kafka.keys
    lists = {
        "revoked": revocations(keys, tmp_path / "revoked.pem", keys.broker),
        "missing": revocations(keys, tmp_path / "missing.pem", other_ca=True),
        "empty": revocations(keys, tmp_path / "empty.pem"),
    }
    of = {name: settings_for("SSL", ssl_crlfile=str(path)) for name, path in lists.items()}
    text = "the broker's certificate is refused: "
    check(
        make_producer,
        {
            "revoked": (of["revoked"], rf"{text}certificate revoked; replace the certificate, .* \(ssl_crlfile\)"),
            "missing": (of["missing"], rf"{text}unable to get certificate CRL; .* \(ssl_crlfile\)"),
        },
    )
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    assert make_producer(**of["empty"]).send(topic, b"0").result(30).offset == 0


def test_nothing_in_common(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor) -> None:
    """The listener SSL has TLS 1.3 only. The key of the broker is one of elliptic curves, not of RSA."""
    old = {"ssl_enabled_protocols": ["TLSv1.2"]}
    check(
        make_producer,
        {
            "versions": (
                settings_for("SSL", **old),
                "have no TLS version in common; check ssl_enabled_protocols on both sides",
            ),
            "ciphers": (
                settings_for("SASL_SSL", "PLAIN", **old, ssl_ciphers="ECDHE-RSA-AES256-GCM-SHA384"),
                "have no cipher in common, .*; check ssl_ciphers, ssl_certfile and the broker's ssl.cipher.suites",
            ),
        },
    )


# ---------------------------------------------------------------- tokens, mechanisms and listeners


def test_a_token_whose_times_are_wrong(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, tmp_path: Path
) -> None:
    """The broker does not say why. So the message shows the times that do not fit to the clock of this host."""
    later = int(time.time()) + 3600
    tokens = secure_kafka.tokens

    def of_file(name: str, token: str) -> Settings:
        (tmp_path / name).write_text(token)
        url = (tmp_path / name).as_uri()
        return settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=url)

    refusal = r"refuses the credentials \(OAUTHBEARER\): .*invalid_token.*"
    clock = f"{CLOCK}, and the clock of this host shows {CLOCK}"
    tokens.expires_in = -100
    try:
        check(
            make_producer,
            {
                "endpoint": (settings_for("SASL_SSL", "OAUTHBEARER"), f"{refusal}the token expired at {clock}"),
                "exp": (of_file("exp", secure_kafka.token_with()), f"{refusal}the token expired at {clock}"),
                "nbf": (
                    of_file("nbf", secure_kafka.token_with(nbf=later, exp=later + 600)),
                    f"{refusal}the token is not valid before {clock}",
                ),
                # Kafka accepts a token that is issued in the future, so this one is refused for its audience.
                "iat": (
                    of_file("iat", secure_kafka.token_with(iat=later, exp=later + 600, aud="another")),
                    f"{refusal}the token is not valid before {clock}",
                ),
            },
        )
    finally:
        tokens.expires_in = 3600


def test_what_only_a_person_can_repair_fails_at_once(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor, tmp_path: Path
) -> None:
    """Without waiting for max_block_ms. What may pass by itself is waited for."""
    no_jwt = tmp_path / "token"
    no_jwt.write_text("not a token")
    wrong = {
        "HTTP status 401": {"sasl_oauthbearer_client_credentials_client_secret": "wrong"},
        "does not contain a JWT": {"sasl_oauthbearer_token_endpoint_url": no_jwt.as_uri()},
    }
    for text, changes in wrong.items():
        settings = {**settings_for("SASL_SSL", "OAUTHBEARER"), **changes, "max_block_ms": 3_600_000}
        if "sasl_oauthbearer_token_endpoint_url" in changes:
            settings = settings_for("SASL_SSL", sasl_mechanism="OAUTHBEARER", max_block_ms=3_600_000, **changes)
        with pytest.raises(errors.AuthenticationFailedError, match=text):
            make_producer(**settings).send("any", b"never")
    secure_kafka.tokens.failing = 500
    try:
        with pytest.raises(errors.KafkaTimeoutError, match="HTTP status 500"):
            make_producer(**settings_for("SASL_SSL", "OAUTHBEARER", max_block_ms=BLOCK_MS)).send("any", b"never")
    finally:
        secure_kafka.tokens.failing = None


def test_a_mechanism_that_the_broker_does_not_offer(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor
) -> None:
    offered = "it offers: PLAIN, SCRAM-SHA-512. Set sasl_mechanism to one of these"
    check(
        make_producer,
        {
            name: (settings_for("SASL_PLAINTEXT", name), f"does not offer the SASL mechanism {name}; {offered}")
            for name in ("SCRAM-SHA-256", "OAUTHBEARER")
        },
    )


def test_further_listeners_that_do_not_fit(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor
) -> None:
    """`test_listeners_that_do_not_fit` has the other combinations."""
    clients: dict[str, Settings] = {
        "PLAINTEXT": {},
        "SSL": settings_for("SSL"),
        "SASL_PLAINTEXT": settings_for("SASL_PLAINTEXT", "PLAIN"),
        "SASL_SSL": settings_for("SASL_SSL", "PLAIN"),
    }
    uses_tls = "the listener uses TLS: set security_protocol to SSL or SASL_SSL"
    expected = {
        ("PLAINTEXT", "SASL_PLAINTEXT"): "the listener may require SASL; check the port, or set security_protocol",
        ("PLAINTEXT", "SASL_SSL"): uses_tls,
        ("SSL", "SASL_PLAINTEXT"): "the listener may not use TLS; check the port and security_protocol",
        ("SASL_PLAINTEXT", "PLAINTEXT"): "the listener does not use SASL; check the port, or use security_protocol",
        ("SASL_PLAINTEXT", "SSL"): uses_tls,
        ("SASL_PLAINTEXT", "SASL_SSL"): uses_tls,
        ("SASL_SSL", "PLAINTEXT"): "the listener may not use TLS; check the port and security_protocol",
        ("SASL_SSL", "SASL_PLAINTEXT"): "the listener may not use TLS; check the port and security_protocol",
    }
    check(
        make_producer,
        {
            f"{client} at {listener}": (
                clients[client] | {"bootstrap_servers": secure_kafka.bootstrap(listener)},
                text,
            )
            for (client, listener), text in expected.items()
        },
    )
