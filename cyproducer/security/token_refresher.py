"""Keeps an OAuth token fresh in a thread, by the rules of Kafka's ExpiringCredentialRefreshingLogin.java."""

import random
import threading
from collections.abc import Callable
from typing import NamedTuple

from cyproducer.security.token_source import Clock, Token, TokenError, TokenSource

__all__ = ["TokenRefresher", "refresh_time"]

#: After a failed refresh, and for a token that has expired already, as in Kafka.
_RETRY_S = 10.0
#: Kafka has no such limit: a token that expires at once would make it send requests without a pause.
_PAUSE_MIN_S = 1.0
_BACKOFF_MIN_S = 0.001  # Kafka counts milliseconds
_WAIT_MAX_S = 3600.0  # of one call, so that no time in a token is too long for it


class _State(NamedTuple):
    """What the thread publishes. It is replaced as a whole, so that readers need no lock."""

    token: Token | None = None
    error: str = ""
    retryable: bool = True
    warning: str = ""


class TokenRefresher:
    """Has the current token of a source. The first call of current() starts the thread.

    window_factor, jitter       the token is replaced after this part of its lifetime, plus up to `jitter`
    min_period_s                but not sooner than this after the last one
    buffer_s                    and not later than this before it expires
    retry_backoff_ms            the pause before a failed request is repeated; it doubles with each failure
    retry_backoff_max_ms        for how long it is repeated so; then 10 s are between two rounds
    on_change                   is called in the thread when the token, the error or the warning is another one. It must
                                neither block nor raise
    """

    def __init__(
        self,
        source: TokenSource,
        window_factor: float = 0.8,
        jitter: float = 0.05,
        min_period_s: float = 60,
        buffer_s: float = 300,
        *,
        retry_backoff_ms: float = 100,
        retry_backoff_max_ms: float = 10_000,
        on_change: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
        random_part: Callable[[], float] = random.random,
    ) -> None:
        self._source = source
        self._window_factor = window_factor
        self._jitter = jitter
        self._min_period_s = min_period_s
        self._buffer_s = buffer_s
        self._backoff_s = retry_backoff_ms / 1000
        self._backoff_max_s = retry_backoff_max_ms / 1000
        self._on_change = on_change
        self._clock = clock or Clock()
        self._random_part = random_part
        self._state = _State()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def __repr__(self) -> str:
        return f"TokenRefresher({self._source!r})"

    def current(self) -> Token | None:
        """Return the token, or None if there is none yet, or if it has expired while the source fails.

        A token that has expired by this host's clock is returned while the source works: then this clock may be wrong,
        and the broker decides by its own one.
        """
        self._start()
        token, error = self._state.token, self._state.error
        if token is not None and error and token.expires_at is not None and token.expires_at < self._clock.wall():
            return None
        return token

    @property
    def last_error(self) -> str:
        """Why the last request for a token failed; "" if it succeeded, or if there was none."""
        return self._state.error

    @property
    def is_retryable(self) -> bool:
        """Whether another request may succeed although nobody repairs what `last_error` says."""
        return self._state.retryable

    @property
    def warning(self) -> str:
        """What is wrong with the token although the source works, or ""."""
        return self._state.warning

    def close(self, wait_s: float | None = None) -> None:
        """End the thread, and wait for its end; None waits until a connection that is being made reaches its limit."""
        with self._lock:
            self._stopping.set()
            thread = self._thread
        self._source.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join(wait_s)

    def _start(self) -> None:
        if self._thread is None:
            with self._lock:
                if self._thread is None and not self._stopping.is_set():
                    self._thread = threading.Thread(target=self._run, name="cyproducer-oauth", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause = self._refresh()
            self._sleep(pause)

    def _sleep(self, seconds: float | None) -> None:
        """Wait until it is time, the source has changed, or the thread is to end; None: there is no such time."""
        poll_s = self._source.poll_s
        while seconds is None or seconds > 0:
            part = min(_WAIT_MAX_S if seconds is None else seconds, poll_s or _WAIT_MAX_S)
            if self._clock.wait(self._stopping, part) or (poll_s is not None and self._source.changed()):
                return
            seconds = None if seconds is None else seconds - part

    def _refresh(self) -> float | None:
        """Fetch a token, again after each failure for some time. Return the pause before the next one."""
        end = self._clock.monotonic() + self._backoff_max_s
        backoff = self._backoff_s
        while True:
            try:
                token = self._source.fetch()
            except TokenError as error:
                text, retryable = str(error), error.retryable
            except Exception as error:
                # A defect must not end the thread. Its text is not shown: it may contain a secret.
                text, retryable = f"the source of OAuth tokens failed with {type(error).__name__}; report this", False
            else:
                return self._publish_token(token)
            if self._stopping.is_set():
                return 0
            self._publish(self._state._replace(error=text, retryable=retryable))
            pause = min(backoff, end - self._clock.monotonic())
            if not retryable or pause < _BACKOFF_MIN_S:
                return _RETRY_S
            backoff *= 2
            if self._clock.wait(self._stopping, pause):
                return 0

    def _publish_token(self, token: Token) -> float | None:
        """Publish a token. Return the pause before it is replaced."""
        now = self._clock.wall()
        warning = ""
        if token.expires_at is not None and token.expires_at < now:
            warning = (
                "the OAuth token had expired when it arrived, by the clock of this host; check the clock, and what "
                "provides the token"
            )
        self._publish(_State(token, warning=warning))
        part = self._window_factor + self._jitter * self._random_part()
        at = refresh_time(now, token, part, self._min_period_s, self._buffer_s)
        return None if at is None else max(at - now, _PAUSE_MIN_S)

    def _publish(self, state: _State) -> None:
        if state != self._state:
            self._state = state
            self._on_change()


def refresh_time(now: float, token: Token, part: float, min_period_s: float, buffer_s: float) -> float | None:
    """Return when to replace a token that arrived at `now`, in seconds since the epoch; None: never.

    part   of its lifetime after which it is replaced
    """
    expires_at = token.expires_at
    if expires_at is None:
        return None
    if now > expires_at:
        return now + _RETRY_S
    if now + min_period_s + buffer_s > expires_at:
        # The lifetime is too short for both, so neither counts.
        return now + (expires_at - now) * part
    issued_at = now if token.issued_at is None else token.issued_at
    proposed = issued_at + (expires_at - issued_at) * part
    if proposed > expires_at - buffer_s:
        return expires_at - buffer_s
    return max(proposed, now + min_period_s)
