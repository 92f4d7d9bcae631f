"""Tests GSSAPI with a stand-in for the package gssapi: the exchange, the security layer, the calls of Kerberos."""

import sys

import pytest
from fake_gssapi import FakeGssapi

from cyproducer.security import gssapi as gssapi_module
from cyproducer.security.sasl import Credentials, SaslClient, SaslError, new_client

OFFER = b"wrapped:\x07\x00\xff\xff"


@pytest.fixture
def gssapi(monkeypatch: pytest.MonkeyPatch) -> FakeGssapi:
    fake = FakeGssapi()
    monkeypatch.setitem(sys.modules, "gssapi", fake)
    return fake


def established(credentials: Credentials | None = None) -> SaslClient:
    """Return a client that waits for the broker's offer of security layers."""
    client = new_client("GSSAPI", credentials or Credentials(), "broker.example")
    assert client.respond(None) == b"client"
    assert client.respond(b"server") == b""
    return client


def made(gssapi: FakeGssapi, kind: str) -> list[dict[str, object]]:
    return [options for name, options in gssapi.made if name == kind]


def test_the_exchange_chooses_no_layer_and_names_the_principal(gssapi):
    client = established()
    assert client.respond(OFFER) == b"wrapped:\x01\x00\x00\x00alice@REALM"
    assert not client.complete
    assert client.respond(b"") is None
    assert client.complete
    with pytest.raises(SaslError):
        client.respond(b"")


def test_kerberos_is_asked_for_mutual_authentication_with_the_broker(gssapi):
    established()
    assert made(gssapi, "Name") == [{"text": "kafka@broker.example", "name_type": "host based"}]
    assert made(gssapi, "Credentials") == []
    (context,) = made(gssapi, "SecurityContext")
    assert context == {
        "name": "host based kafka@broker.example",
        "creds": None,
        "mech": "krb5",
        "flags": ["mutual", "integrity", "sequence"],
        "usage": "initiate",
    }


@pytest.mark.parametrize(
    ("credentials", "options"),
    [
        (
            Credentials(kerberos_principal="alice", kerberos_keytab="keys"),
            {"name": "principal alice", "store": {"client_keytab": "keys", "ccache": "MEMORY:cyproducer:alice"}},
        ),
        (Credentials(kerberos_ticket_cache="FILE:cache"), {"name": None, "store": {"ccache": "FILE:cache"}}),
        (Credentials(kerberos_principal="alice"), {"name": "principal alice", "store": None}),
    ],
)
def test_keytab_cache_and_principal_choose_the_credentials(gssapi, credentials, options):
    established(credentials)
    assert made(gssapi, "Credentials") == [{"mechs": ["krb5"], "usage": "initiate", **options}]
    assert made(gssapi, "SecurityContext")[0]["creds"] == "credentials"


def test_service_and_domain_name_the_broker(gssapi):
    established(Credentials(kerberos_service_name="events", kerberos_domain_name="cluster.example"))
    assert made(gssapi, "Name")[0]["text"] == "events@cluster.example"


def test_nothing_is_asked_of_kerberos_before_the_first_message(gssapi):
    new_client("GSSAPI", Credentials(kerberos_keytab="keys", kerberos_principal="alice"), "broker")
    assert gssapi.made == []


def test_a_context_that_needs_no_answer_continues_with_the_offer(gssapi):
    gssapi.rounds = 0
    client = new_client("GSSAPI", Credentials(), "broker")
    assert client.respond(None) == b""
    assert client.respond(b"") == b""  # the answer to a token of Kerberos may be empty, before the offer
    assert client.respond(OFFER) == b"wrapped:\x01\x00\x00\x00alice@REALM"


@pytest.mark.parametrize(
    ("offer", "text"),
    [
        (b"wrapped:\x06\x00\xff\xff", "does not offer GSSAPI without a security layer"),
        (b"wrapped:\x01\x00\x00", "does not offer GSSAPI without a security layer"),
        (b"wrapped:", "does not offer GSSAPI without a security layer"),
        (b"\x01\x00\x00\x00", "the token is defective"),
    ],
)
def test_a_wrong_offer_is_refused(gssapi, offer, text):
    client = established()
    with pytest.raises(SaslError, match=text):
        client.respond(offer)
    with pytest.raises(SaslError, match="out of order"):
        client.respond(OFFER)


def test_an_error_of_kerberos_says_what_to_do(gssapi):
    gssapi.failure = "No Kerberos credentials available"
    client = new_client("GSSAPI", Credentials(), "broker.example")
    with pytest.raises(SaslError) as caught:
        client.respond(None)
    text = str(caught.value)
    assert "Kerberos failed for the service kafka@broker.example: No Kerberos credentials available; check" in text
    assert caught.value.__suppress_context__


def test_one_client_at_a_time_asks_the_kdc(gssapi, monkeypatch):
    """With a keytab, the library empties the cache for a moment while it gets another ticket."""
    monkeypatch.setattr(gssapi_module, "_KDC_WAIT_S", 0.01)
    credentials = Credentials()
    with credentials.kerberos_lock:
        with pytest.raises(SaslError, match="another connection waits for an answer of the KDC"):
            new_client("GSSAPI", credentials, "broker").respond(None)
    assert new_client("GSSAPI", credentials, "broker").respond(None) == b"client"


@pytest.mark.parametrize(("rounds", "challenge"), [(1000, b"server"), (0, b"")])
def test_an_exchange_without_an_end_is_stopped(gssapi, rounds, challenge):
    gssapi.rounds = rounds
    client = new_client("GSSAPI", Credentials(), "broker")
    client.respond(None)
    with pytest.raises(SaslError, match="does not end the exchange"):
        for _ in range(20):
            client.respond(challenge)


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gssapi", None)
    with pytest.raises(SaslError, match=r"pip install 'cyproducer\[kerberos\]'"):
        new_client("GSSAPI", Credentials(), "broker")
