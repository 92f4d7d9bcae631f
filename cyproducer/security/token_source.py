"""Declares what an OAuth token is, and what a source of tokens does."""

import base64
import binascii
import json
import math
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from cyproducer.security.mechanism import SaslError

__all__ = ["TOKEN_BYTES_MAX", "Clock", "JwtTimes", "Token", "TokenError", "TokenSource", "jwt_claims", "jwt_times"]

TOKEN_BYTES_MAX = 262_144  # a file or an answer with a token that is longer is refused
_JWT_SECTIONS = 3


class TokenError(SaslError):
    """A source has no token."""


class Token(NamedTuple):
    """A token. repr() does not show it.

    expires_at, issued_at   in seconds since the epoch, by the clock of the issuer; None: not known
    extensions              of KIP-342, to be sent with it
    """

    value: str
    expires_at: float | None
    extensions: Mapping[str, str]
    issued_at: float | None = None

    def __repr__(self) -> str:
        return f"Token(<hidden>, expires_at={self.expires_at}, issued_at={self.issued_at})"


class TokenSource(Protocol):
    """Where tokens come from. Its methods are called by one thread, except cancel().

    poll_s   how often changed() is asked between two fetches, in seconds; None: never
    """

    poll_s: float | None

    def fetch(self) -> Token:
        """Return a token. May block. Raise TokenError."""
        ...

    def changed(self) -> bool:
        """Return whether the source has another token than at the last fetch()."""
        ...

    def cancel(self) -> None:
        """Let a running and every further fetch() fail soon. Other threads may call it."""
        ...


class Clock:
    """The clocks of the system. Tests replace it."""

    def wall(self) -> float:
        """Return seconds since the epoch: the times in tokens are in this form."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds of a clock that nobody sets."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event. Return whether it is set."""
        return event.wait(seconds)


class JwtTimes(NamedTuple):
    """The claims exp and iat of a JWT (RFC 7519), in seconds since the epoch; None: missing or not a number."""

    expires_at: float | None
    issued_at: float | None


def jwt_times(token: str) -> JwtTimes | None:
    """Return when a JWT was issued and when it expires; None if it is no JWT. Its signature is not checked."""
    claims = jwt_claims(token)
    return None if claims is None else JwtTimes(_seconds(claims.get("exp")), _seconds(claims.get("iat")))


def jwt_claims(token: str) -> dict[str, Any] | None:
    """Return the claims of a JWT; None if it is no JWT. Its signature is not checked."""
    sections = token.split(".")
    if len(sections) != _JWT_SECTIONS:
        return None
    payload = sections[1]
    try:
        text = base64.b64decode(payload + "=" * (-len(payload) % 4), altchars=b"-_", validate=True)
        claims = json.loads(text)
    except (binascii.Error, ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def _seconds(claim: Any) -> float | None:
    if isinstance(claim, bool) or not isinstance(claim, int | float):
        return None
    try:
        seconds = float(claim)
    except OverflowError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
