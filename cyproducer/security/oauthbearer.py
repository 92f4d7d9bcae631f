"""Authenticates with the mechanism OAUTHBEARER (RFC 7628, KIP-255, KIP-342): a token is sent as it is."""

import json
import re
import time

from cyproducer.security.mechanism import MESSAGE_BYTES_MAX, Credentials, SaslError
from cyproducer.security.server_text import server_text, token_secrets
from cyproducer.security.token_source import jwt_claims
from cyproducer.security.validity import describe_validity, shown_time

__all__ = ["OAuthBearerClient"]

_SEPARATOR = "\x01"
_ACKNOWLEDGE_ERROR = b"\x01"
# As in Kafka's OAuthBearerClientInitialResponse.java.
_TOKEN = re.compile(r"[-_~+/.a-zA-Z0-9]+=*")
_EXTENSION_NAME = re.compile(r"[A-Za-z]+")
_EXTENSION_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_RESERVED_NAME = "auth"
_ADVICE = "check the token (audience, issuer, scope, expiry) and the broker's settings sasl.oauthbearer.*"

_START, _SENT, _REFUSED, _ENDED = range(4)


class OAuthBearerClient:
    """The client of OAUTHBEARER. Raise SaslError if the token or the extensions cannot be sent."""

    mechanism = "OAUTHBEARER"
    may_block = False

    def __init__(self, credentials: Credentials) -> None:
        self.complete = False
        self.server_error = ""
        self.advice = _ADVICE
        self._token = _checked_token(credentials.token)
        self.secrets = (*token_secrets(self._token), *credentials.token_extensions.values())
        fields = [f"auth=Bearer {self._token}"]
        for name, value in credentials.token_extensions.items():
            fields.append(_checked_extension(name, value))
        self._message = "".join(["n,,", *(_SEPARATOR + each for each in fields), _SEPARATOR, _SEPARATOR]).encode(
            "ascii"
        )
        self._state = _START

    def __repr__(self) -> str:
        return "OAuthBearerClient()"

    def respond(self, challenge: bytes | None) -> bytes | None:
        """Return the message with the token; then None, or the answer to an error, which `server_error` holds."""
        state, self._state = self._state, _ENDED
        if state == _START and challenge is None:
            self._state = _SENT
            return self._message
        if state == _SENT and challenge is not None:
            if challenge:
                self.server_error = _error_text(challenge, self.secrets)
                self.advice = _advice(self._token, time.time())
                self._state = _REFUSED
                return _ACKNOWLEDGE_ERROR
            self.complete = True
            return None
        if state == _REFUSED:
            raise SaslError(f"the broker refused the OAuth token: {self.server_error}; {self.advice}")
        raise SaslError("a message of OAUTHBEARER arrived out of order; begin a new authentication")


def _checked_token(token: str | None) -> str:
    if not token:
        raise SaslError(
            "OAUTHBEARER needs a token, and there is none; set sasl_oauthbearer_token_endpoint_url or "
            "sasl_oauth_token_provider"
        )
    if _TOKEN.fullmatch(token) is None:
        raise SaslError(
            "the OAuth token has a character that RFC 6750 does not allow, such as a line break; check what the source "
            "of tokens returns"
        )
    return token


def _checked_extension(name: str, value: str) -> str:
    if name == _RESERVED_NAME or _EXTENSION_NAME.fullmatch(name) is None:
        raise SaslError(
            f"{server_text(name, ())!r} cannot be the name of an extension of OAUTHBEARER: it needs letters only, and "
            f"must not be {_RESERVED_NAME}; change sasl_oauthbearer_extensions"
        )
    if _EXTENSION_VALUE.fullmatch(value) is None:
        raise SaslError(
            f"the extension {name} of OAUTHBEARER is empty, or has a character that is not in ASCII; change "
            "sasl_oauthbearer_extensions"
        )
    return f"{name}={value}"


def _advice(token: str, now: float) -> str:
    """Return what to do about a token that the broker has refused. The broker does not say why, so its times count."""
    claims = jwt_claims(token)
    if claims is None:
        return _ADVICE
    clock = describe_validity("the token", claims.get("nbf"), claims.get("exp"), now)
    clock = clock or describe_validity("the token", claims.get("iat"), None, now)
    if not clock:
        return (
            f"{_ADVICE}; also compare the clocks of issuer and broker (the clock of this host shows {shown_time(now)})"
        )
    return f"{clock}. Else {_ADVICE}"


def _error_text(challenge: bytes, secrets: tuple[str, ...]) -> str:
    """Return what a server says in its error: its fields status and scope, or all of it if it is no JSON object."""
    text = challenge[:MESSAGE_BYTES_MAX].decode("utf-8", "replace")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if isinstance(fields, dict):
        known = [f"{name} {fields[name]}" for name in ("status", "scope") if isinstance(fields.get(name), str)]
        text = ", ".join(known) or "no reason given"
    return server_text(text, secrets)
