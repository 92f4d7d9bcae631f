"""Tests OAUTHBEARER: its message, what can be in it, and what a server says about a refusal."""

import pytest

from cyproducer.security.sasl import Credentials, SaslClient, SaslError, new_client

TOKEN = "abc.DEF-_~+/.123=="


def sent(token: str = TOKEN, **extensions: str) -> SaslClient:
    client = new_client("OAUTHBEARER", Credentials(token=token, token_extensions=extensions), "broker")
    client.respond(None)
    return client


def test_the_message_without_extensions():
    client = new_client("OAUTHBEARER", Credentials(token=TOKEN), "broker")
    assert client.respond(None) == b"n,,\x01auth=Bearer " + TOKEN.encode() + b"\x01\x01"
    assert not client.complete
    assert client.respond(b"") is None
    assert client.complete


def test_the_message_with_extensions():
    """As Kafka's OAuthBearerClientInitialResponse.toBytes() makes it."""
    extensions = {"logicalCluster": "lkc 123", "identityPoolId": "pool-1,x=y"}
    client = new_client("OAUTHBEARER", Credentials(token="t", token_extensions=extensions), "broker")
    assert (
        client.respond(None) == b"n,,\x01auth=Bearer t\x01logicalCluster=lkc 123\x01identityPoolId=pool-1,x=y\x01\x01"
    )


@pytest.mark.parametrize("token", ["SECRET\n", "SECRET x", "SECRET\x01auth=x", "SECRET\u00fc", "=SECRET", "SECRET\0"])
def test_a_token_with_another_character_is_refused(token):
    with pytest.raises(SaslError, match="has a character that RFC 6750 does not allow") as caught:
        new_client("OAUTHBEARER", Credentials(token=token), "broker")
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("token", [None, ""])
def test_a_missing_token_is_refused(token):
    with pytest.raises(SaslError, match="there is none; set sasl_oauthbearer_token_endpoint_url"):
        new_client("OAUTHBEARER", Credentials(token=token), "broker")


@pytest.mark.parametrize("name", ["auth", "", "a1", "a-b", "ä", "a\n"])
def test_a_wrong_name_of_an_extension_is_refused(name):
    with pytest.raises(SaslError, match="cannot be the name of an extension"):
        sent(**{name: "value"})


@pytest.mark.parametrize("value", ["", "a\x01b", "ä", "\0", "a\x7f"])
def test_a_wrong_value_of_an_extension_is_refused(value):
    with pytest.raises(SaslError, match="the extension traceId of OAUTHBEARER is empty, or has a character") as caught:
        sent(traceId=value)
    assert not value or value not in str(caught.value)


def test_a_refusal_is_acknowledged_and_its_reason_kept():
    client = sent()
    challenge = b'{"status": "invalid_token", "scope": "kafka", "openid-configuration": "https://idp.example"}'
    assert client.respond(challenge) == b"\x01"
    assert client.server_error == "status invalid_token, scope kafka"
    assert not client.complete
    with pytest.raises(SaslError, match="refused the OAuth token: status invalid_token, scope kafka; check the token"):
        client.respond(b"")
    assert not client.complete


@pytest.mark.parametrize(
    ("challenge", "text"),
    [
        (b"{}", "no reason given"),
        (b'{"status": 1}', "no reason given"),
        (b"not JSON", "not JSON"),
        (b"[ " * 1000, "[ " * 150 + "..."),
        (b"[" * 100_000, "<hidden>"),  # too long a word to look for the token in it
        (b"\xff\x00", "\ufffd?"),
        (b'{"status": "bad abc.DEF-_~+/.123== is expired"}', "status bad <hidden> is expired"),
        (b'"abc.DEF-_~+/.123=="', '"<hidden>"'),
    ],
)
def test_any_refusal_is_shown_without_the_token(challenge, text):
    client = sent()
    assert client.respond(challenge) == b"\x01"
    assert client.server_error == text
