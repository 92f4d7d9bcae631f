"""Tests which answers of a provider of OAuth tokens are taken, and what the errors say."""

import base64

import pytest
from support.unsigned_jwt import jwt

from cyproducer.config.kinds import token_provider
from cyproducer.producer.tokens.provider_answer import ProvidedToken, call_provider
from cyproducer.security.token_principal import jwt_principal
from cyproducer.security.token_source import TokenError

NOW = 1_000_000.0


def called(returned: object, **extensions: str) -> ProvidedToken:
    return call_provider(token_provider(lambda: returned), extensions, lambda: NOW)


def refused(returned: object) -> str:
    with pytest.raises(TokenError) as caught:
        called(returned)
    assert "Zq7" not in str(caught.value)
    return str(caught.value)


def test_a_jwt_says_everything_itself() -> None:
    found = called(jwt(sub="alice", exp=NOW + 60, iat=NOW))
    assert (found.token.expires_at, found.token.issued_at) == (NOW + 60, NOW)
    assert (found.principal or "").startswith("jwt:alice:")
    assert called((jwt(sub="alice", exp=NOW + 60), NOW + 30)).token.expires_at == NOW + 30
    assert called((jwt(sub="alice", exp=NOW + 60), NOW + 90, "bob")).token.expires_at == NOW + 60
    assert called((jwt(sub="alice", exp=NOW + 60, iat=NOW), None, "bob")).principal == found.principal


def test_an_opaque_token() -> None:
    assert called("Zq7")[1] is None and called("Zq7").token.expires_at is None
    found = called(("Zq7", NOW + 1, "role", {"a": "1"}), a="0", b="2")
    assert (found.token.value, found.token.expires_at, found.principal) == ("Zq7", NOW + 1, "role")
    assert found.token.extensions == {"a": "1", "b": "2"}
    assert "Zq7" not in repr(found)


@pytest.mark.parametrize(
    ("returned", "text"),
    [
        (None, "returned None; return a str"),
        (b"Zq7", "returned an object of type bytes"),
        ("", "returned an empty token"),
        ("Zq7" * 30_000, "more than 65536 characters"),
        (("Zq7",), "a tuple of 1 elements"),
        ((5, 6), "an object of type int as the token"),
        (("Zq7", "60"), "an object of type str as the expiry"),
        (("Zq7", True), "an object of type bool as the expiry"),
        (("Zq7", float("nan")), "the expiry nan"),
        (("Zq7", 1.7e12), "which is in milliseconds; divide it by 1000"),
        (("Zq7", NOW - 5), "a token that expired 5 s ago"),
        (("Zq7", NOW + 1, 7), "an object of type int as the principal"),
        (("Zq7", NOW + 1, None, {"a": 1}), "an object of type dict as the extensions"),
    ],
)
def test_what_is_refused(returned: object, text: str) -> None:
    assert text in refused(returned)


def test_an_exception_is_shown_without_its_text() -> None:
    def fails() -> str:
        raise KeyError("Zq7")

    with pytest.raises(TokenError, match=r"raised KeyError in .*test_provider_answer.py, line \d+; the text") as caught:
        call_provider(token_provider(fails), {})
    assert "Zq7" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_an_object_with_extensions() -> None:
    class Provider:
        async def token(self) -> str:
            return "Zq7"

        async def extensions(self) -> dict[str, str]:
            return {"a": "1"}

    assert call_provider(Provider(), {"a": "0"}).token.extensions == {"a": "1"}


def test_the_principal_of_a_jwt_does_not_change_with_the_token() -> None:
    first = jwt_principal(jwt(sub="a", iss="i", aud=["x", "y"], scope="p q", exp=1, jti="1"))
    assert first == jwt_principal(jwt(sub="a", iss="i", aud=["y", "x"], scope="q p", exp=2, jti="2"))
    for other in ({"sub": "b"}, {"iss": "j"}, {"aud": "x"}, {"scope": "p"}, {"client_id": "c"}):
        claims = {"sub": "a", "iss": "i", "aud": ["x", "y"], "scope": "p q"} | other
        assert jwt_principal(jwt(**claims)) != first
    assert jwt_principal("opaque") is None and jwt_principal(jwt(iss="i")) is None


def test_the_signer_of_amazon_msk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its token is no JWT, and its expiry is in milliseconds. It signs without a connection."""
    signer = pytest.importorskip("aws_msk_iam_sasl_signer.MSKAuthTokenProvider")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAINVENTED")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "invented")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    def token() -> tuple[str, float]:
        value, expiry_ms = signer.generate_auth_token("eu-central-1")
        return value, expiry_ms / 1000

    found = call_provider(token_provider(token), {})
    assert found.principal is None
    assert found.token.expires_at is not None
    value, expiry_ms = signer.generate_auth_token("eu-central-1")
    with pytest.raises(TokenError, match="milliseconds"):
        call_provider(token_provider(lambda: (value, expiry_ms)), {})
    padded = value + "=" * (-len(value) % 4)
    assert base64.urlsafe_b64decode(padded).startswith(
        b"https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster"
    )
