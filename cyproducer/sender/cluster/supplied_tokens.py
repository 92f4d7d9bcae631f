"""Keeps the OAuth token that front-ends have supplied, lets brokers check each one, and says when another is needed."""

import random
import secrets
from collections.abc import Callable, Coroutine, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from cyproducer.security.token_check import CHECK_S
from cyproducer.security.token_principal import OF_JWT, jwt_principal
from cyproducer.security.token_refresher import refresh_time
from cyproducer.security.token_source import Clock, Token, jwt_times
from cyproducer.sender.system.tasks import Tasks

__all__ = ["Refusal", "SuppliedTokens"]

#: How long a token is used before another one is requested, if it does not say when it expires.
UNKNOWN_LIFETIME_S = 300.0
#: The time between two requests, at least and at most.
PAUSE_MIN_S, PAUSE_MAX_S = 1.0, 10.0
_KNOWN_MAX = 4096
_CHECKS_MAX = 64
#: How long the sender waits for a check. It ends before, unless the look-up of a name or the helper process hangs.
_CHECK_LIMIT_S = CHECK_S + 1.0
_LATE = (
    f"the check of the OAuth token did not end within {_CHECK_LIMIT_S:g} s; check the look-up of the brokers' names on "
    "this host (DNS)"
)
_clock = Clock()


class Refusal(NamedTuple):
    """Why a token is not taken: a name for programs, and a text. The name UNCHECKED: another attempt may succeed."""

    name: str
    text: str


class _Check(NamedTuple):
    """A check that goes on: when the sender waits no longer (by the monotonic clock), and who waits for it."""

    until: float
    waiting: list[Callable[[Refusal | None], None]]


class SuppliedTokens:
    """The token that the connections use.

    A token is taken only after a broker has accepted it on a connection of its own. So a front-end with a token that
    is forged or expired, or that belongs to another principal, neither uses nor disturbs the connections of the others.

    settings   of the sender
    tasks      run the checks
    check      asks a broker whether a token is valid, and returns why it is not taken
    clock      returns seconds since the epoch
    monotonic  returns the seconds of a clock that nobody sets
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        tasks: Tasks,
        check: Callable[[Token], Coroutine[Any, Any, Refusal | None]],
        clock: Callable[[], float] = _clock.wall,
        random_part: Callable[[], float] = random.random,
        monotonic: Callable[[], float] = _clock.monotonic,
    ) -> None:
        self.current: Token | None = None
        #: Why the last front-end that was asked has supplied none; "" if it has.
        self.trouble = ""
        self._settings = settings
        self._tasks = tasks
        self._check = check
        self._clock = clock
        self._random_part = random_part
        self._monotonic = monotonic
        self._principal: str | None = None
        self._is_pinned = False
        self._key = secrets.token_bytes(32)
        self._known: dict[bytes, float | None] = {}  # hashes of accepted tokens, with their expiry
        self._checking: dict[bytes, _Check] = {}  # of hashes; the oldest comes first
        self._renew_at: float | None = None

    def __repr__(self) -> str:
        return "SuppliedTokens()"

    def restore(self, held: Mapping[str, Any]) -> None:
        """Use the token that for_successor() of a predecessor has returned: a broker has accepted it."""
        self._accept(Token(held["value"], held["expires_at"], held["extensions"], held["issued_at"]))

    def for_successor(self) -> dict[str, Any] | None:
        """Return the token for JSON; None if there is none. Nothing may show, log or store it."""
        return None if self.current is None else self.current._asdict()

    def accept_new(
        self,
        value: str,
        expires_at: float | None,
        extensions: Mapping[str, str],
        then: Callable[[Refusal | None], None],
    ) -> None:
        """Do what accept() does, with a token that has come from a front-end."""
        times = jwt_times(value)
        self.accept(Token(value, expires_at, extensions, times.issued_at if times is not None else None), then)

    def usable(self) -> tuple[Token | None, str]:
        """Return the token for a connection; or None, and why there is none."""
        hint = f" ({self.trouble})" if self.trouble else ""
        if self.current is None:
            return None, (
                "no attached process has supplied an OAuth token yet; it comes from the "
                f"sasl_oauth_token_provider of a producer{hint}"
            )
        if self._has_expired(self.current):
            return None, (
                "the OAuth token has expired, and no attached process has supplied another one; check the "
                f"sasl_oauth_token_provider of the producers{hint}"
            )
        return self.current, ""

    def accept(self, token: Token, then: Callable[[Refusal | None], None]) -> None:
        """Take a token of a front-end. `then` gets None, or why it is refused, perhaps before this returns."""
        refusal = self._refusal(token)
        digest = blake2b(token.value.encode(), key=self._key).digest()
        if refusal is not None:
            then(refusal)
        elif digest in self._known:
            self._accept(token)
            then(None)
        elif digest in self._checking:
            self._checking[digest].waiting.append(then)
        elif len(self._checking) >= _CHECKS_MAX:
            then(Refusal("UNCHECKED", "the sender has too many OAuth tokens checked at the same time; try again"))
        else:
            self._checking[digest] = _Check(self._monotonic() + _CHECK_LIMIT_S, [then])
            self._tasks.start(self._check_and_accept(token, digest))

    async def _check_and_accept(self, token: Token, digest: bytes) -> None:
        refusal = await self._check(token) or self._refusal(token)  # another principal may have come first
        check = self._checking.pop(digest, None)
        if check is None:  # the sender has not waited for it; the next attempt succeeds at once
            if refusal is None:
                self._remember(token)
            return
        if refusal is None:
            self._accept(token)
        for then in check.waiting:
            then(refusal)

    def end_late_checks(self) -> None:
        """Answer UNCHECKED to those who have waited too long for a check."""
        now = self._monotonic()
        for digest, check in list(self._checking.items()):
            if check.until > now:
                return
            del self._checking[digest]
            for then in check.waiting:
                then(Refusal("UNCHECKED", _LATE))

    def next_check_ends_in_s(self) -> float | None:
        """Return in how many seconds end_late_checks() has work; None: no check goes on."""
        oldest = next(iter(self._checking.values()), None)
        return None if oldest is None else max(0.0, oldest.until - self._monotonic())

    def _refusal(self, token: Token) -> Refusal | None:
        if self._has_expired(token):
            return Refusal("TOKEN", "the OAuth token has expired; supply a new one, and check the clock of this host")
        principal, expected = jwt_principal(token.value), self._settings.get("sasl_oauth_principal") or ""
        is_other = principal != expected if expected.startswith(OF_JWT) else False
        if is_other or (self._is_pinned and principal != self._principal):
            return Refusal(
                "CREDENTIALS",
                "the OAuth token belongs to another principal than that of the sender, or has another issuer, "
                "audience, client or scope; such a token needs another sender: leave sender= out if it is given, else "
                "set another sasl_oauth_principal",
            )
        return None

    def _accept(self, token: Token) -> None:
        now = self._clock()
        self._principal, self._is_pinned = jwt_principal(token.value), True
        self._remember(token)
        former = self.current
        is_longer = former is None or (token.expires_at or now) >= (former.expires_at or now)
        if is_longer and (former is None or former.value != token.value):
            self.current, self.trouble = token, ""
            self._renew_at = self._time_to_renew(now, token)
        elif self._renew_at is None or self._renew_at <= now:
            # The provider keeps its tokens, or they expire earlier. It is asked again, but not at once. A later time
            # stays: processes that attach with such tokens must not delay the request again and again.
            self._renew_at = now + self.patience_s()

    def _remember(self, token: Token) -> None:
        self._known[blake2b(token.value.encode(), key=self._key).digest()] = token.expires_at
        while len(self._known) > _KNOWN_MAX:
            del self._known[next(iter(self._known))]

    def _time_to_renew(self, now: float, token: Token) -> float:
        get = self._settings.get
        part = float(get("sasl_login_refresh_window_factor", 0.8))
        part += float(get("sasl_login_refresh_window_jitter", 0.05)) * self._random_part()
        if token.expires_at is None:
            token = token._replace(expires_at=now + UNKNOWN_LIFETIME_S)
        period_s = float(get("sasl_login_refresh_min_period_seconds", 60))
        buffer_s = float(get("sasl_login_refresh_buffer_seconds", 300))
        at = refresh_time(now, token, part, period_s, buffer_s)
        return now + PAUSE_MIN_S if at is None else max(at, now + PAUSE_MIN_S)

    def on_not_supplied(self, text: str) -> None:
        """Set why no front-end could supply a token. It is requested again after a pause."""
        self.trouble = text
        self._renew_at = self._clock() + self.patience_s()

    def patience_s(self) -> float:
        """Return how long to wait for a front-end's answer, and between two rounds: less if the token expires soon."""
        if self.current is None or self.current.expires_at is None:
            return PAUSE_MAX_S
        left = self.current.expires_at - self._clock()
        return min(PAUSE_MAX_S, max(PAUSE_MIN_S, left / 4))

    def due_in_s(self) -> float | None:
        """Return in how many seconds another token is to be requested, 0 if now; None: not before a front-end comes."""
        return None if self._renew_at is None else max(0.0, self._renew_at - self._clock())

    def _has_expired(self, token: Token) -> bool:
        return token.expires_at is not None and token.expires_at <= self._clock()
