"""Calls an application's provider of OAuth tokens once, and checks what it returns.

A token is secret, and so may be the text of an exception of the provider. So an error shows neither.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cyproducer.config.secrets import ConcealedText
from cyproducer.host.messages import TOKEN_CHARACTERS_MAX
from cyproducer.security.token_principal import jwt_principal
from cyproducer.security.token_source import Token, TokenError, jwt_times
from cyproducer.shm import system_clock

__all__ = ["ProvidedToken", "call_provider", "place_of"]

_FORMS = "return a str, or a tuple (token, expiry in seconds since the epoch[, principal[, extensions]])"
_PARTS_MIN, _PARTS_MAX = 2, 4
#: No token expires later than in the year 5138. Milliseconds since the epoch are above this.
_SECONDS_MAX = 1e11


class ProvidedToken(NamedTuple):
    """A token of a provider. `principal`: whose it is; None: neither the provider nor the token says it."""

    token: Token
    principal: str | None

    def has_expired(self, now: float) -> bool:
        """Return whether the token has expired at `now`, in seconds since the epoch."""
        expires_at = self.token.expires_at
        return expires_at is not None and expires_at <= now


def call_provider(
    provider: Any, extensions: Mapping[str, str], clock: Callable[[], float] = system_clock.wall
) -> ProvidedToken:
    """Return the token of an object with token(). Block as long as that takes. Raise TokenError.

    extensions   of the settings; those of the provider are added and have priority
    """
    try:
        returned = provider.token()
        if inspect.isawaitable(returned):  # aiokafka's providers
            returned = _result_of(returned)
        of_object = provider.extensions() if callable(getattr(provider, "extensions", None)) else {}
        if inspect.isawaitable(of_object):
            of_object = _result_of(of_object)
    except Exception as error:
        # Not its text, and not as the cause of another error: it may have a secret.
        reason = f"sasl_oauth_token_provider raised {type(error).__name__}{place_of(error)}"
        returned = of_object = None
    else:
        reason = ""
        returned = _concealed(returned)
    if reason:
        raise TokenError(f"{reason}; the text of the error is not shown, because it may have a secret", retryable=True)
    return _checked(returned, of_object, extensions, clock())


def _result_of(awaitable: Any) -> Any:
    import asyncio  # it costs 50 ms, which other programs do not pay

    async def wait() -> Any:
        return await awaitable

    return asyncio.run(wait())


def _concealed(returned: Any) -> Any:
    """Wrap the token, so that no record of an error shows it as a local variable."""
    if isinstance(returned, tuple | list) and returned:
        return _concealed(returned[0]), *returned[1:]
    return ConcealedText(returned) if isinstance(returned, str) else returned


def place_of(error: BaseException) -> str:
    """Return where an exception was raised, as a part of a sentence."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" in {trace.tb_frame.f_code.co_filename}, line {trace.tb_lineno}"


def _checked(returned: Any, of_object: Any, extensions: Mapping[str, str], now: float) -> ProvidedToken:
    value, expires_at, principal, more = _parts(returned)
    if not value:
        raise TokenError("sasl_oauth_token_provider returned an empty token; " + _FORMS)
    if len(value) > TOKEN_CHARACTERS_MAX:
        raise TokenError(f"sasl_oauth_token_provider returned a token with more than {TOKEN_CHARACTERS_MAX} characters")
    times = jwt_times(value)
    issued_at = times.issued_at if times is not None else None
    if times is not None and times.expires_at is not None:
        expires_at = times.expires_at if expires_at is None else min(expires_at, times.expires_at)
    token = Token(value, expires_at, {**extensions, **_pairs(of_object), **_pairs(more)}, issued_at)
    found = ProvidedToken(token, jwt_principal(value) or principal)
    if found.has_expired(now):
        assert expires_at is not None
        raise TokenError(
            f"sasl_oauth_token_provider returned a token that expired {now - expires_at:.0f} s ago; return a new token "
            "with each call, and check the clock of this host",
            retryable=True,
        )
    return found


def _parts(returned: Any) -> tuple[str, float | None, str | None, Any]:
    """Return (token, expiry or None, principal or None, extensions)."""
    if isinstance(returned, str):
        return returned, None, None, {}
    if not isinstance(returned, tuple | list):
        raise TokenError(f"sasl_oauth_token_provider returned {_kind(returned)}; {_FORMS}")
    if not _PARTS_MIN <= len(returned) <= _PARTS_MAX:
        raise TokenError(f"sasl_oauth_token_provider returned a tuple of {len(returned)} elements; {_FORMS}")
    value, expires_at, principal, more = (*returned, None, None)[:_PARTS_MAX]
    if not isinstance(value, str):
        raise TokenError(f"sasl_oauth_token_provider returned {_kind(value)} as the token; {_FORMS}")
    if principal is not None and not isinstance(principal, str):
        raise TokenError(f"sasl_oauth_token_provider returned {_kind(principal)} as the principal; {_FORMS}")
    return value, _expiry(expires_at), principal or None, more


def _expiry(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenError(f"sasl_oauth_token_provider returned {_kind(value)} as the expiry; {_FORMS}")
    if not math.isfinite(value) or value <= 0:
        raise TokenError(f"sasl_oauth_token_provider returned the expiry {value}; {_FORMS}")
    if value > _SECONDS_MAX:
        raise TokenError(
            f"sasl_oauth_token_provider returned the expiry {value}, which is in milliseconds; divide it by 1000"
        )
    return float(value)


def _pairs(extensions: Any) -> dict[str, str]:
    if extensions is None:
        return {}
    if not isinstance(extensions, Mapping) or not all(
        isinstance(name, str) and isinstance(value, str) for name, value in extensions.items()
    ):
        raise TokenError(
            f"sasl_oauth_token_provider returned {_kind(extensions)} as the extensions; use a dict of str to str"
        )
    return dict(extensions)


def _kind(value: Any) -> str:
    return "None" if value is None else f"an object of type {type(value).__name__}"
