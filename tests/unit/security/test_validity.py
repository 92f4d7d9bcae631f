"""Tests what is said about a token or a certificate that is not valid by the clock of this host."""

import math
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from devkafka.keys import EXPIRED, Keys
from support.unsigned_jwt import jwt

from cyproducer.security.own_certificate import OwnCertificate
from cyproducer.security.sasl import Credentials, SaslError, new_client
from cyproducer.security.tls_errors import describe_tls_error
from cyproducer.security.validity import describe_validity, shown_time

NOW = 1_000_000_000.0  # 2001-09-09 01:46:40


def test_the_date_and_the_clock_are_shown() -> None:
    clock = "and the clock of this host shows 2001-09-09 01:46 UTC"
    text = describe_validity("the token", None, NOW - 3600, NOW)
    assert text == f"the token expired at 2001-09-09 00:46 UTC, {clock}: renew it, or correct the clock"
    text = describe_validity("it", NOW + 3600, NOW + 7200, NOW)
    assert text.startswith(f"it is not valid before 2001-09-09 02:46 UTC, {clock}: correct the clock")
    assert describe_validity("it", None, NOW - 1, NOW).startswith("it expired at 2001-09-09 01:46 UTC")
    assert describe_validity("it", NOW + 1, None, NOW).startswith("it is not valid before 2001-09-09 01:46 UTC")


def test_the_text_is_the_same_for_a_while() -> None:
    """Else each attempt of a sender would be a new error in its log."""
    assert shown_time(NOW) == shown_time(NOW + 15)


@pytest.mark.parametrize("unknown", [None, "soon", True, math.nan, math.inf, -1, 10**30])
def test_what_is_valid_or_not_known_is_not_mentioned(unknown: Any) -> None:
    assert describe_validity("it", NOW - 1, NOW + 1, NOW) == ""
    assert describe_validity("it", unknown, unknown, NOW) == ""


@pytest.mark.parametrize(
    ("claims", "text"),
    [
        ({"exp": 1}, "the token expired at 1970-01-01 00:00 UTC"),
        ({"nbf": 2**34}, "the token is not valid before 2514-05-30"),
        ({"iat": 2**34}, "the token is not valid before 2514-05-30"),
        ({"exp": 2**34}, "also compare the clocks of issuer and broker"),
    ],
)
def test_a_refused_token(claims: dict[str, int], text: str) -> None:
    client = new_client("OAUTHBEARER", Credentials(token=jwt(**claims)), "broker")
    client.respond(None)
    client.respond(b'{"status": "invalid_token"}')
    assert text in client.advice
    assert "check the token (audience, issuer, scope, expiry)" in client.advice
    with pytest.raises(SaslError) as caught:
        client.respond(b"")
    assert client.advice in str(caught.value)


@pytest.mark.parametrize("settings", [{}, {"ssl_certfile": "/nowhere"}, {"ssl_certdata": "not a certificate"}])
def test_a_certificate_that_cannot_be_read_has_no_dates(settings: dict[str, str]) -> None:
    assert OwnCertificate(settings).validity() == (None, None)


def test_the_dates_of_a_certificate_that_the_broker_refuses(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    old, new = keys.client("old", expired=True), keys.client("new")
    refusal = ssl.SSLError()
    refusal.reason = "SSLV3_ALERT_CERTIFICATE_EXPIRED"
    for settings in (
        {"ssl_certfile": str(old.certificate), "ssl_keyfile": str(old.key)},
        {"ssl_certfile": str(old.keystore)},
        {"ssl_certdata": old.certificate.read_text()},
        {"ssl_keystore_location": str(keys.pkcs12(old, "of the store")), "ssl_keystore_password": "of the store"},
    ):
        text = describe_tls_error(refusal, OwnCertificate(settings))
        assert f"(certificate expired); it expired at {EXPIRED:%Y-%m-%d} 00:00 UTC, and the clock of this" in text
        assert "Else use one that is valid by the broker's clock" in text
    text = describe_tls_error(refusal, OwnCertificate({"ssl_certfile": str(new.certificate)}))
    assert "(certificate expired); use one that is valid by the broker's clock" in text


def test_the_certificate_is_read_again_when_its_file_has_changed(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    certificate = OwnCertificate({"ssl_certfile": str(keys.client("renewed", expired=True).certificate)})
    before = certificate.validity()
    assert before == certificate.validity()
    keys.client("renewed")
    assert certificate.validity() > before


def test_another_version_of_cryptography_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before version 42 the certificate had other attributes. The sender must not end while it describes an error."""
    identity = Keys(tmp_path).client("anybody")
    monkeypatch.setattr(x509, "load_pem_x509_certificate", lambda data: object())
    assert OwnCertificate({"ssl_certfile": str(identity.certificate)}).validity() == (None, None)
