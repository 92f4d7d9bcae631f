"""Tests what all SASL mechanisms have in common, and PLAIN: secrets are hidden, and hostile answers raise SaslError."""

import base64
import html
import json
import sys
import traceback
from urllib.parse import quote, quote_plus

import pytest
from fake_gssapi import FakeGssapi
from hypothesis import given, settings
from hypothesis import strategies as st

from cyproducer.config.kinds import MECHANISMS
from cyproducer.security.sasl import Credentials, SaslClient, SaslError, new_client
from cyproducer.security.server_text import server_text, token_secrets

PASSWORD = "SECRET-password"
TOKEN = "SECRET-token"
CREDENTIALS = Credentials("alice", PASSWORD, TOKEN, {"group": "SECRET-extension"}, kerberos_keytab="path-of-a-keytab")


@pytest.fixture(autouse=True)
def gssapi(monkeypatch: pytest.MonkeyPatch) -> FakeGssapi:
    fake = FakeGssapi()
    monkeypatch.setitem(sys.modules, "gssapi", fake)
    return fake


def drive(client: SaslClient, challenges: list[bytes | None]) -> str:
    """Give a client challenges until it is complete or fails. Return the text of the traceback, or ""."""
    try:
        for challenge in challenges:
            answer = client.respond(challenge)
            assert client.complete if answer is None else isinstance(answer, bytes)
            if client.complete:
                break
    except SaslError:
        assert not client.complete
        return traceback.format_exc()
    return ""


def test_each_mechanism_has_a_client():
    for mechanism in MECHANISMS:
        client = new_client(mechanism, CREDENTIALS, "broker")
        assert (client.mechanism, client.complete, client.server_error) == (mechanism, False, "")
        assert client.may_block == (mechanism == "GSSAPI")


def test_another_mechanism_is_refused():
    with pytest.raises(SaslError, match="'DIGEST-MD5' is not known; set sasl_mechanism to one of PLAIN, SCRAM-SHA-256"):
        new_client("DIGEST-MD5", CREDENTIALS, "broker")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_secrets_are_in_no_repr(mechanism):
    client = new_client(mechanism, CREDENTIALS, "broker")
    client.respond(None)
    for shown in (repr(CREDENTIALS), str(CREDENTIALS), f"{CREDENTIALS}", repr(client), str(client)):
        assert "SECRET" not in shown


@settings(max_examples=60, deadline=None)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    challenges=st.lists(
        st.none()
        | st.binary()
        | st.sampled_from([b"", b"\x01", TOKEN.encode(), b'{"status": "SECRET-token", "scope": 1}', b"v=AAAA"])
        | st.just(b"[" * 65000)
        | st.from_regex(rb"r=[!-~]{1,9},s=[A-Za-z=]{0,8},i=[0-9]{0,7}", fullmatch=True),
        max_size=5,
    ),
    initial=st.booleans(),
)  # fmt: skip
def test_any_answer_ends_in_bytes_or_an_error_without_secrets(mechanism, challenges, initial):
    client = new_client(mechanism, CREDENTIALS, "broker")
    assert "SECRET" not in drive(client, [None] * initial + challenges)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_client_is_used_once(mechanism):
    client = new_client(mechanism, CREDENTIALS, "broker")
    client.respond(None)
    with pytest.raises(SaslError, match="begin a new authentication"):
        client.respond(None)
    with pytest.raises(SaslError):
        client.respond(b"")
    assert not client.complete


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_an_answer_before_the_first_message_is_refused(mechanism):
    with pytest.raises(SaslError, match="begin a new authentication"):
        new_client(mechanism, CREDENTIALS, "broker").respond(b"")


def test_plain_sends_user_and_password_as_they_are():
    client = new_client("PLAIN", Credentials("älice", "pass=word, ﬁ"), "broker")
    assert client.respond(None) == "\0älice\0pass=word, ﬁ".encode()
    assert not client.complete
    assert client.respond(b"") is None
    assert client.complete
    with pytest.raises(SaslError):
        client.respond(b"")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(
    ("credentials", "text"),
    [
        (Credentials(None, PASSWORD), "needs a user, and there is none; set sasl_plain_username"),
        (Credentials("alice", ""), "needs a password, and there is none; set sasl_plain_password"),
        (Credentials("ali\0ce", PASSWORD), "the user of .* contains the character NUL"),
        (Credentials("alice", PASSWORD + "\0"), "the password of .* contains the character NUL"),
        (Credentials("alice", PASSWORD + "\ud800"), "the password of .* half of a surrogate pair"),
    ],
)
def test_credentials_that_cannot_be_sent_are_refused(mechanism, credentials, text):
    with pytest.raises(SaslError, match=text) as caught:
        new_client(mechanism, credentials, "broker")
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_texts_of_servers_are_shown_short_printable_and_without_secrets():
    assert server_text("a\nb\x1b[31m SECRET!", ["SECRET", None, ""]) == "a?b?[31m <hidden>!"
    assert server_text("x" * 300, ()) == "x" * 300
    assert server_text("x" * 301, ()) == "x" * 300 + "..."


@pytest.mark.parametrize("secret", [PASSWORD, 'pä ss"\\wörd&<SECRET>', "S3CRET+/=%41"])
def test_a_secret_is_hidden_in_every_form_in_which_a_server_may_repeat_it(secret):
    login = f"\0alice\0{secret}".encode()
    signed = [byte - 256 if byte > 127 else byte for byte in login]
    basic = base64.b64encode(f"alice:{quote_plus(secret)}".encode()).decode()
    repeated = [
        login.decode(), login.decode("latin-1"), login.decode("cp1252", "replace"), login.decode("ascii", "replace"),
        base64.b64encode(login).decode(), base64.urlsafe_b64encode(login).decode().rstrip("="), f"Basic {basic}",
        "x" + base64.b64encode(b"?" + login).decode(), login.hex(), login.hex(":").upper(), f"{signed}", f"{login!r}",
        f"{secret!r}", json.dumps(secret), json.dumps(secret, ensure_ascii=False), html.escape(secret),
        quote(secret, safe=""), quote_plus(f"a b {secret}"), f"{secret[:-1]}...", f"{secret[:6]}",
        "x" * 5000 + secret, f"{secret} " * 500,
    ]  # fmt: skip
    forms = [secret, secret[:5], base64.b64encode(secret.encode()).decode()[:6], secret.encode().hex()[:10]]
    for text in repeated:
        shown = server_text(f"no login for alice {text}", [secret])
        assert (shown.startswith(("no login for alice ", "<hidden>")) and "<hidden>" in shown) or text.startswith("xxx")
        assert not any(form in shown for form in forms), (text, shown)


def test_a_text_without_a_secret_is_shown_as_it_is():
    text = "Authentication failed: Invalid username or password [id=QWxhZGRpbg==, 0, 117, %41 &lt; deadbeef]"
    assert server_text(text, [PASSWORD, TOKEN]) == text
    assert token_secrets("a.b.c") == ("a.b.c", "c") and token_secrets("opaque") == ("opaque",)
