"""Supplies the sender of one producer with the OAuth tokens of the application's provider, in a thread.

The thread starts when the producer attaches, and ends with it. It calls the provider, which may block, and it keeps a
connection to the sender, on which the sender asks for the next token. A forked child that uses the producer starts a
thread of its own. The last token is kept, so that children which are forked after it need no other one.
"""

import _socket
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from cyproducer.config.settings import Settings
from cyproducer.errors import SenderUnavailableError
from cyproducer.host import control_messages
from cyproducer.host.listener_check import check_listener
from cyproducer.host.poll import wait_readable
from cyproducer.host.thread_start import ThreadStart
from cyproducer.producer.core.native import Waiter
from cyproducer.producer.tokens.provider_answer import ProvidedToken, call_provider, place_of
from cyproducer.security.token_refresher import refresh_time
from cyproducer.security.token_source import TokenError
from cyproducer.shm import system_clock
from cyproducer.shm.native import disown, file_of, in_child, is_still, own

__all__ = ["TokenSupplier"]

_log = logging.getLogger("cyproducer")
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0
_JOIN_S = 1.0
#: After a defect in the thread: the pause before it goes on.
_DEFECT_PAUSE_S = 1.0
#: After the sender has refused a token that was kept: the pause before the provider is called.
_REFUSED_PAUSE_S = 1.0
#: One attach uses one token, whatever its age.
_JUST_NOW_S = 5.0
#: How long a token of which neither the provider nor the token says the expiry is used for further attaches.
_UNKNOWN_LIFETIME_S = 240.0


class TokenSupplier:
    """The source of tokens of one producer. Several threads may use it; repr() shows no token.

    clock: returns seconds since the epoch.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float] = system_clock.wall) -> None:
        provider, extensions = settings.sasl_oauth_token_provider, dict(settings.sasl_oauthbearer_extensions)
        self._worker = _Worker(lambda: call_provider(provider, extensions, clock), clock)
        self._declared = settings.sasl_oauth_principal
        # Only forked children have the same one.
        self._own = "process:" + os.urandom(16).hex()
        self._principal: str | None = None
        self._refresh = _refresh_rules(settings)
        self._clock = clock
        # Not at exit: the flush of the producers follows, and may need a token.
        weakref.finalize(self, self._worker.close).atexit = False

    def __repr__(self) -> str:
        return "TokenSupplier()"

    def principal(self, deadline: float) -> str:
        """Return whose tokens these are. The first call needs a token. Raise SenderUnavailableError.

        deadline   time.monotonic()
        """
        if self._principal is None:
            provided = self._token(deadline)
            self._principal = self._declared or provided.principal or self._own
            if self._declared is None and provided.principal is not None:
                self._worker.expect(provided.principal)
        return self._principal

    def message(self, deadline: float) -> dict[str, Any]:
        """Return the control message with a token, for the sender. Raise SenderUnavailableError."""
        return _message(self._token(deadline), serve=False)

    def discard(self) -> None:
        """Forget the last token, which the sender has refused: the next one comes from the provider."""
        self._worker.discard()

    def serve(self, path: str, named: bool) -> None:
        """Keep a connection to the sender at this path, and answer its requests for tokens, until close()."""
        try:
            self._worker.serve(path, named)
        except TokenError as error:
            _log.warning("this process supplies the sender with no further OAuth tokens: %s", error)

    def close(self) -> None:
        """End the thread. If the provider is being called, the thread ends when that call has returned."""
        self._worker.close(_JOIN_S)

    def _token(self, deadline: float) -> ProvidedToken:
        known = self._worker.provided
        if known is not None and not self._is_due(known):
            return known
        try:
            return self._worker.call(deadline)
        except TokenError as error:
            text = str(error)
        raise SenderUnavailableError(f"there is no OAuth token: {text}")

    def _is_due(self, provided: ProvidedToken) -> bool:
        now, token, since = self._clock(), provided.token, self._worker.provided_at
        if provided.has_expired(now) or now < since:
            return True
        if now < since + _JUST_NOW_S:
            return False
        if token.expires_at is None:
            return now >= since + _UNKNOWN_LIFETIME_S
        at = refresh_time(since, token, *self._refresh)
        return at is not None and at <= now


def _refresh_rules(settings: Settings) -> tuple[float, float, float]:
    return (
        settings.sasl_login_refresh_window_factor,
        settings.sasl_login_refresh_min_period_seconds,
        settings.sasl_login_refresh_buffer_seconds,
    )


def _message(provided: ProvidedToken, serve: bool) -> dict[str, Any]:
    token = provided.token
    return {
        "op": "token",
        "token": token.value,
        "expires_at": token.expires_at,
        "extensions": dict(token.extensions),
        "serve": serve,
    }


class _Worker:
    """The thread of a TokenSupplier, and what it shares with the other threads.

    provided, provided_at   the last token, and when it came
    """

    def __init__(self, provide: Callable[[], ProvidedToken], clock: Callable[[], float]) -> None:
        self._provide = provide
        self._clock = clock
        self._expected: str | None = None
        self.provided: ProvidedToken | None = None
        self.provided_at = 0.0
        self._line: _Line | None = None
        self.start_anew()
        _workers.add(self)

    def start_anew(self) -> None:
        """Forget the thread and its connection: a forked child has neither."""
        self._hang_up()
        # Native, so that no exception of a signal's handler leaves it held, as it does with that of a Condition.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._thread: ThreadStart | None = None
        self._waiter: Waiter | None = None
        self._place: tuple[str, bool] | None = None
        self._wanted = self._asked = self._closed = False
        self._is_defect_logged = False
        self._asked_at = 0.0  # time.monotonic() before which the provider is not called for the sender
        self._offered: ProvidedToken | None = None  # the token of which the sender says whether it takes it
        self._is_kept = self._is_unchecked = False  # it is no answer to a request; no broker could check it
        self._calls = 0
        self._error = ""

    def expect(self, principal: str) -> None:
        """From here on, refuse tokens of another principal."""
        self._expected = principal

    def call(self, deadline: float) -> ProvidedToken:
        """Let the thread call the provider, and return the token. Raise TokenError."""
        if self._thread is not None and self._thread.is_current():
            raise TokenError("sasl_oauth_token_provider sends records with its own producer; use another one")
        with self._lock:
            calls = self._calls
            self._wanted = True
            self._start()
            while self._calls == calls:
                if self._closed:
                    raise TokenError("the producer is closed")
                left = deadline - system_clock.monotonic()
                if not self._changed.wait(max(0.0, left)) and system_clock.monotonic() >= deadline:
                    raise TokenError("sasl_oauth_token_provider has not returned within max_block_ms")
            if self._error or self.provided is None:
                raise TokenError(self._error or "the token was discarded; try again")
            return self.provided

    def discard(self, refused: ProvidedToken | None = None) -> None:
        """Forget the last token; if `refused` is given, only if it is that one."""
        with self._lock:
            if refused is None or self.provided is refused:
                self.provided = None

    def serve(self, path: str, named: bool) -> None:
        with self._lock:
            if not self._closed and self._place != (path, named):
                self._place = path, named
            self._start()

    def close(self, wait_s: float = 0.0) -> None:
        """End the thread, and wait up to `wait_s` seconds for its end. Other calls do nothing from here on."""
        with self._lock:
            self._closed = True
            self._place = None
            self._changed.notify_all()
            if self._waiter is not None:
                self._waiter.wake()
            thread = self._thread
        if thread is not None and not thread.is_current() and wait_s:
            thread.join(wait_s)

    def _start(self) -> None:
        """Start the thread, or wake it. The lock is held."""
        if self._thread is not None:
            assert self._waiter is not None
            self._waiter.wake()
            self._changed.notify_all()  # it may pause after a defect
            return
        if self._closed:
            return
        self._waiter = Waiter()
        self._waiter.open()
        self._thread = thread = ThreadStart("cyproducer-tokens", self._run)
        try:
            thread.start()
        except BaseException as error:
            if not thread.begun:
                self._end()
            if isinstance(error, RuntimeError):
                text = "no thread for sasl_oauth_token_provider can be started; check ulimit -u"
                raise TokenError(text) from None
            raise

    def _end(self) -> None:
        """Note that there is no thread. The lock is held."""
        self._thread = None
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None

    # ---------------------------------------------------------------- in the thread

    def _run(self) -> None:
        pause = _PAUSE_MIN_S
        try:
            while self._is_needed():
                try:
                    pause = self._step(pause)
                except Exception as error:
                    self._on_defect(error)
        finally:
            self._hang_up()
            self._on_end()

    def _is_needed(self) -> bool:
        """Return whether the thread has something to do. If not, another use starts another thread from here on."""
        with self._lock:
            if self._closed or not (self._wanted or self._place):
                self._end()
                return False
            return True

    def _step(self, pause: float) -> float:
        """Call the provider, or connect to the sender and handle its messages. Return the next pause of connecting."""
        with self._lock:
            waiter, place, wanted = self._waiter, self._place, self._wanted
        assert waiter is not None
        if wanted or (self._asked and system_clock.monotonic() >= self._asked_at):
            self._call_provider()
            return pause
        if place is not None and (self._line is None or self._line.place != place):
            self._connect(place)
            if self._line is None:
                pause = min(2 * pause, _PAUSE_MAX_S)
        fds = [waiter.fd, *([] if self._line is None else [self._line.fd])]
        ready = wait_readable(fds, self._wait_s(pause))
        if waiter.fd in ready:
            waiter.clear()
        if self._line is None or self._line.fd not in ready:
            return pause
        if self._read(self._line):
            return _PAUSE_MIN_S
        if self._line is None:  # the sender may hang up at each connection
            wait_readable([waiter.fd], pause)
            pause = min(2 * pause, _PAUSE_MAX_S)
        return pause

    def _on_defect(self, error: Exception) -> None:
        """Go on after a pause: without the thread, the sender would get no further tokens."""
        self._hang_up()
        with self._lock:
            if not self._is_defect_logged:
                self._is_defect_logged = True
                # Not its text, which may have a secret.
                what = f"{type(error).__name__}{place_of(error)}"
                _log.error("the thread that supplies OAuth tokens failed with %s; report this. It tries again", what)
            if not self._closed and not self._wanted:
                self._changed.wait(_DEFECT_PAUSE_S)

    def _on_end(self) -> None:
        """If the thread ends by an exception, let the next use start another one, and let nobody wait for this one."""
        with self._lock:
            if self._thread is None or not self._thread.is_current():
                return
            self._end()
            if self._wanted:
                self._wanted, self._error = (
                    False,
                    "the thread that calls sasl_oauth_token_provider has ended; try again",
                )
                self._calls += 1
                self._changed.notify_all()

    def _wait_s(self, pause: float) -> float | None:
        """Return how long to wait for messages; None: for ever. pause: before the next attempt to connect."""
        if self._line is None:
            return pause
        return max(0.0, self._asked_at - system_clock.monotonic()) if self._asked else None

    def _call_provider(self) -> None:
        asked, self._asked = self._asked, False
        error, provided = "", None
        try:
            provided = self._provide()
            if self._expected is not None and provided.principal != self._expected:
                error, provided = _OTHER_PRINCIPAL, None
        except TokenError as caught:
            error = str(caught)
        except BaseException as caught:  # SystemExit of the provider; its text may have a secret
            error = f"sasl_oauth_token_provider raised {type(caught).__name__}"
        with self._lock:
            if provided is not None:
                self.provided, self.provided_at = provided, self._clock()
            self._error = error
            self._wanted = False
            self._calls += 1
            self._changed.notify_all()
        if asked and provided is not None:
            self._offer(provided, kept=False)
        elif asked and self._line is not None:
            self._send(self._line, {"op": "token", "error": error})

    def _connect(self, place: tuple[str, bool]) -> None:
        """Connect to the sender, and supply the last token. Without a valid one, the provider is called next."""
        self._hang_up()
        try:
            self._line = _Line(place)
        except (OSError, SenderUnavailableError):
            return  # the sender is gone, or is being replaced: the next attempt follows
        self._offer_kept()

    def _offer_kept(self) -> None:
        """Supply the last token. Without a valid one, let the provider be called."""
        with self._lock:
            provided = self.provided
        if provided is None or provided.has_expired(self._clock()):
            self._asked = True
        else:
            self._offer(provided, kept=True)

    def _offer(self, provided: ProvidedToken, kept: bool) -> None:
        self._offered, self._is_kept, self._is_unchecked = provided, kept, False
        if self._line is not None:
            self._send(self._line, _message(provided, True))

    def _send(self, line: "_Line", message: dict[str, Any]) -> None:
        if not line.send(message):
            self._hang_up()

    def _read(self, line: "_Line") -> bool:
        """Handle a message of the sender, or its end. Return whether there was a message."""
        try:
            message = line.receive()
        except BlockingIOError:
            return False
        except (OSError, control_messages.HandshakeError):
            message = None
        if message is None:
            self._hang_up()
        elif message.get("op") == "token":
            self._on_request()
        elif message.get("ok") is False:
            _log.warning("the sender does not take an OAuth token: %s", message.get("message"))
            self._on_refusal(str(message.get("error")))
        return message is not None

    def _on_request(self) -> None:
        """Supply another token; or the last one again, if no broker could check it."""
        if self._is_unchecked and self._offered is self.provided:
            self._offer_kept()
        else:
            self._asked, self._asked_at = True, 0.0

    def _on_refusal(self, name: str) -> None:
        """Forget a token that is not valid. After a new one of the provider, the sender asks for the next one."""
        if name == "UNCHECKED":
            self._is_unchecked = True
            return
        refused, self._offered = self._offered, None
        if refused is None:
            return
        self.discard(refused)
        if self._is_kept:
            self._asked, self._asked_at = True, system_clock.monotonic() + _REFUSED_PAUSE_S

    def _hang_up(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()


_OTHER_PRINCIPAL = (
    "sasl_oauth_token_provider returned a token of another principal than before, or one with another issuer, "
    "audience, client or scope; make another KafkaProducer for such tokens"
)


class _Line:
    """A connection to the sender. `place`: the path of its socket, and whether the setting `sender` names it."""

    def __init__(self, place: tuple[str, bool]) -> None:
        self.place = place
        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.fd = self._socket.fileno()
        self._file = file_of(self.fd)
        own(self.fd, self._file)
        try:
            self._socket.setblocking(False)
            self._socket.connect(place[0])
            check_listener(self._socket, *place)
        except BaseException:
            self.close()
            raise

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message. False: the sender is gone, or does not read."""
        try:
            control_messages.send(self._socket, message)  # type: ignore[arg-type]
        except (OSError, control_messages.HandshakeError):
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """Return a message; None: the sender has hung up. Raise BlockingIOError if there is none."""
        return control_messages.receive_alone(self._socket)

    def close(self) -> None:
        """Hang up. In a forked child, forget the descriptor, which is closed already."""
        if disown(self.fd, self._file) and is_still(self.fd, self._file):
            self._socket.close()
        else:
            self._socket.detach()


_workers: "weakref.WeakSet[_Worker]" = weakref.WeakSet()


def _start_anew_in_child() -> None:
    for worker in list(_workers):
        worker.start_anew()


in_child(_start_anew_in_child)
