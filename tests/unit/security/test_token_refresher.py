"""Tests when tokens are refreshed, as in Kafka's ExpiringCredentialRefreshingLogin, and what a failing source does."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from support.unsigned_jwt import jwt
from token_rig import Answer, FakeClock, Server

from cyproducer.security.token_endpoint import TokenEndpoint
from cyproducer.security.token_file import TokenFile
from cyproducer.security.token_refresher import TokenRefresher, refresh_time
from cyproducer.security.token_source import Token, TokenError

NOW = 1_000_000.0


class Source:
    """A source with given results; the last one is used again."""

    def __init__(self, *results: Token | Exception | Callable[[], Token], poll_s: float | None = None) -> None:
        self.results = list(results)
        self.poll_s = poll_s
        self.fetched = 0
        self.news: list[bool] = []

    def fetch(self) -> Token:
        self.fetched += 1
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, Exception):
            raise result
        return result() if not isinstance(result, Token) else result

    def changed(self) -> bool:
        return self.news.pop(0) if self.news else False

    def cancel(self) -> None:
        pass


def token(lifetime: float | None, value: str = "SECRET", issued_at: float | None = None) -> Token:
    return Token(value, None if lifetime is None else NOW + lifetime, {}, issued_at)


def played(source: Source, waits: int, **options: Any) -> tuple[TokenRefresher, FakeClock]:
    """Run a refresher until the given number of waits, and end it. Return it, and the clock with the waits."""
    clock = FakeClock(NOW, waits)
    refresher = TokenRefresher(source, clock=clock, random_part=lambda: 0.5, **options)
    refresher.current()
    assert clock.reached.wait(10)
    refresher.close(10)
    assert "cyproducer-oauth" not in [thread.name for thread in threading.enumerate()]
    return refresher, clock


@pytest.mark.parametrize(
    ("lifetime", "age", "expected"),
    [
        (3600, None, NOW + 0.8 * 3600),
        (3600, 100, NOW - 100 + 0.8 * 3700),  # the lifetime begins with iat
        (1000, None, NOW + 700),  # 300 s before the end
        (360, None, NOW + 60),  # both buffers fit exactly
        (359, None, NOW + 0.8 * 359),  # they do not fit
        (1, None, NOW + 0.8),
        (0, None, NOW),
        (-1, None, NOW + 10),
        (600, 5000, NOW + 60),  # 80 % are over: not sooner than the shortest period
        (None, None, None),
    ],
)
def test_the_time_of_a_refresh(lifetime, age, expected):
    given = token(lifetime, issued_at=None if age is None else NOW - age)
    found = refresh_time(NOW, given, 0.8, 60, 300)
    assert found == (expected if expected is None else pytest.approx(expected))


def test_a_token_is_refreshed_after_its_part_of_the_lifetime():
    source = Source(token(3000), token(9000))
    refresher, clock = played(source, 2, window_factor=0.7, jitter=0.2)
    # Half of the jitter. The second token has 6600 s left, of which a wait may be 3600 s.
    assert clock.waits == pytest.approx([0.8 * 3000, 3600])
    assert source.fetched == 2
    assert refresher.current() == token(9000)
    assert (refresher.last_error, refresher.warning) == ("", "")


def test_the_shortest_period_and_the_time_before_the_expiry_can_be_set():
    """By the part of its lifetime alone, the first token is due after 800 s, and the second one at once."""
    _, clock = played(Source(token(1000)), 1, window_factor=0.8, jitter=0, min_period_s=7, buffer_s=450)
    assert clock.waits == [550]
    old = token(600, issued_at=NOW - 5000)
    _, clock = played(Source(old), 1, window_factor=0.8, jitter=0, min_period_s=7, buffer_s=450)
    assert clock.waits == [7]


def test_the_thread_starts_with_the_first_question():
    source = Source(token(3000))
    refresher = TokenRefresher(source)
    time.sleep(0.05)
    assert source.fetched == 0
    refresher.close()
    assert refresher.current() is None
    assert source.fetched == 0


def test_a_token_without_an_expiry_is_not_refreshed():
    source = Source(token(None))
    _, clock = played(source, 5)
    assert source.fetched == 1
    assert clock.waits == [3600] * 5


def test_a_token_that_expires_at_once_does_not_cause_requests_without_a_pause():
    source = Source(token(0))
    _, clock = played(source, 2)
    assert clock.waits == [1, 10]


def test_errors_that_may_pass_are_tried_again_with_a_growing_pause():
    source = Source(TokenError("down", retryable=True))
    seen = []
    _, clock = played(source, 9, on_change=lambda: seen.append(True))
    # Up to 10 s in all, as Kafka's Retry; then a pause of 10 s, and the same again.
    assert clock.waits == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.7, 10, 0.1])
    assert source.fetched == 9
    assert seen == [True]  # the same error is no news


def test_the_backoff_can_be_set():
    _, clock = played(Source(TokenError("", True)), 3, retry_backoff_ms=500, retry_backoff_max_ms=700)
    assert clock.waits == pytest.approx([0.5, 0.2, 10])
    _, clock = played(Source(TokenError("", True)), 1, retry_backoff_ms=0)
    assert clock.waits == [10]


def test_other_errors_are_tried_again_after_ten_seconds():
    source = Source(TokenError("no"), token(3000))
    seen: list[tuple[Token | None, str]] = []
    refresher: TokenRefresher | None = None
    clock = FakeClock(NOW, 2)

    def see() -> None:
        assert refresher is not None
        seen.append((refresher.current(), refresher.last_error))

    refresher = TokenRefresher(source, on_change=see, clock=clock)
    refresher.current()
    assert clock.reached.wait(10)
    refresher.close(10)
    assert seen == [(None, "no"), (token(3000), "")]
    assert clock.waits[0] == 10


def test_a_token_stays_in_use_until_it_expires_while_the_source_fails():
    source = Source(token(3000), TokenError("down"))
    refresher, clock = played(source, 12)
    assert NOW + 2475 < clock.now < NOW + 3000
    assert refresher.current() == token(3000) and refresher.last_error == "down"
    clock.now = NOW + 3001
    assert refresher.current() is None


def test_a_token_that_has_expired_by_this_clock_is_used_with_a_warning():
    """The clock of this host may be wrong, so the broker decides."""
    refresher, clock = played(Source(token(-100), token(-100)), 2)
    assert refresher.current() == token(-100)
    assert refresher.warning.startswith("the OAuth token had expired when it arrived, by the clock of this host")
    assert clock.waits == [10, 10]


def test_a_defect_of_a_source_does_not_end_the_thread():
    refresher, clock = played(Source(ValueError("SECRET"), token(3000)), 1)
    assert refresher.last_error == "the source of OAuth tokens failed with ValueError; report this"
    assert clock.waits == [10]


def test_a_source_that_can_be_polled_is_read_again_when_it_changed():
    source = Source(token(3000), token(6000), poll_s=10)
    source.news = [False, False, True]
    refresher, clock = played(source, 4)
    assert clock.waits == [10] * 4
    assert source.fetched == 2
    assert refresher.current() == token(6000)


def test_close_stops_a_request_and_leaves_no_thread(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    server = Server(Answer())
    arrived, answered = threading.Event(), threading.Event()

    def write(_: object) -> None:
        arrived.set()
        server.ending.wait(60)
        answered.set()

    server.answers = [Answer(write=write)]
    with server:
        changes: list[int] = []
        refresher = TokenRefresher(TokenEndpoint(server.url, "a", "b"), on_change=lambda: changes.append(1))
        assert refresher.current() is None
        assert arrived.wait(10)
        refresher.close()
        assert not answered.is_set()
        assert "cyproducer-oauth" not in [thread.name for thread in threading.enumerate()]
        assert changes == []
        refresher.close()


def test_on_change_can_close():
    done = threading.Event()
    threads = []
    refresher: TokenRefresher | None = None

    def close() -> None:
        assert refresher is not None
        refresher.close()
        threads.append(threading.current_thread())
        done.set()

    refresher = TokenRefresher(Source(token(3000)), on_change=close)
    refresher.current()
    assert done.wait(10)
    threads[0].join(10)
    assert not threads[0].is_alive()


def test_an_endpoint_that_recovers_gives_a_token(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    good = Answer.json(access_token=jwt(exp=time.time() + 3600), expires_in=1)
    with Server(Answer.json(500, error="server_error"), Answer(503), good) as server:
        arrived = threading.Event()
        errors: list[str] = []
        refresher: TokenRefresher | None = None

        def see() -> None:
            assert refresher is not None
            errors.append(refresher.last_error)
            if not refresher.last_error:
                arrived.set()

        refresher = TokenRefresher(TokenEndpoint(server.url, "a", "b"), on_change=see, retry_backoff_ms=10)
        refresher.current()
        assert arrived.wait(10)
        found = refresher.current()
        refresher.close(10)
    assert found is not None and found.value.endswith(".SECRET")
    assert "HTTP status 500 (server_error)" in errors[0] and "HTTP status 503" in errors[1] and errors[2] == ""
    assert len(server.requests) == 3


def test_a_file_that_is_replaced_gives_another_token(tmp_path):
    path = tmp_path / "token"
    path.write_text(jwt(exp=time.time() + 3600))
    source = TokenFile(path)
    source.poll_s = 0.01
    changed = threading.Semaphore(0)
    refresher = TokenRefresher(source, on_change=changed.release)
    refresher.current()
    assert changed.acquire(timeout=10)
    path.write_text(jwt(exp=time.time() + 7200))
    while (found := refresher.current()) is None or (found.expires_at or 0) < time.time() + 5000:
        assert changed.acquire(timeout=10)
    refresher.close(10)


def test_repr_shows_no_token():
    refresher, _ = played(Source(token(3000)), 1)
    assert "SECRET" not in repr(refresher)
