"""Makes the connection to a broker, asks the broker by it, and says why it has ended.

CLOSED -> RESOLVING -> CONNECTING [-> PROXY] [-> TLS] -> VERSIONS [-> SASL] -> READY [-> REAUTHENTICATING -> READY].
Each state can lead to CLOSED.

One coroutine goes through these states. The native loop writes and reads the bytes; it sends batches in READY only.
"""

import contextlib
import errno
import importlib
import logging
import os
import random
import socket
import struct
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from cyproducer.codes import ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM
from cyproducer.config.kinds import PROXY_LIBRARIES
from cyproducer.config.secrets import is_secret_name
from cyproducer.error_table import describe
from cyproducer.protocol.codec import (
    ApiVersionsExchange,
    decode_response,
    encode_request,
    has_common_version,
    negotiate,
)
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import ROWS
from cyproducer.security.mechanism import SaslError
from cyproducer.security.proxy import Proxy, ProxyError
from cyproducer.security.server_text import server_text
from cyproducer.sender.cluster.broker import Broker
from cyproducer.sender.cluster.client_id import ClientId
from cyproducer.sender.cluster.cluster_metadata import ClusterMetadata
from cyproducer.sender.cluster.finalized_features import FinalizedFeatures
from cyproducer.sender.cluster.report import Report
from cyproducer.sender.cluster.resolver import CANONICAL_NAMES, Address, resolve
from cyproducer.sender.engine.connection_state import ConnectionState
from cyproducer.sender.engine.events import CloseReason
from cyproducer.sender.engine.native import Loop, Nodes, TlsStream
from cyproducer.sender.system.helper import Helper
from cyproducer.sender.system.tasks import NOTHING_DUE_MS, Reply, Signal, Task, Tasks, TimeLimitError, sleep
from cyproducer.version import VERSION

if TYPE_CHECKING:
    from cyproducer.sender.cluster.sasl_login import Exchange, SaslLogin, SaslStep
    from cyproducer.sender.cluster.tls_setup import TlsSetup

__all__ = [
    "Connection",
    "InvalidRequestError",
    "NoAnswerError",
    "Setup",
    "State",
    "UnusableAnswerError",
    "connecting_socket",
    "import_security",
]

_T = TypeVar("_T")

PRODUCE_MALFORMED_VERSION = 5  # librdkafka's mock cluster leaves a field out of its v5
SASL_HANDSHAKE_VERSION = 1  # the tokens follow in SaslAuthenticate requests
#: The servers that a mechanism asks before it answers the broker.
SERVERS = {"GSSAPI": "the KDC, and the network between it and this host", "OAUTHBEARER": "the token endpoint"}
#: The part of a session's lifetime after which to authenticate again, from the least to the most
#: (SaslClientAuthenticator.ReauthInfo).
SESSION_LEAST, SESSION_MOST = 0.85, 0.95
AGAIN_MS = 1000  # pause before another attempt to authenticate again, while the session lasts
#: An idle connection that was dropped is found after 10 + 4 * 3 seconds. TCP_USER_TIMEOUT would end connections to
#: brokers that do not read, see docs/decisions.md#dropped-connections.
KEEPALIVE = {socket.TCP_KEEPIDLE: 10, socket.TCP_KEEPINTVL: 3, socket.TCP_KEEPCNT: 4}
SYSTEM_BUFFER = -1  # send_buffer_bytes, receive_buffer_bytes: the kernel chooses the size and adapts it to the route
CLOSE_REASONS: dict[int, str] = {
    CloseReason.BY_PEER: "the broker closed the connection",
    CloseReason.TIMEOUT: "the broker sent no response within request_timeout_ms",
    CloseReason.PROTOCOL: "the broker sent an invalid response: check that the address is a Kafka listener",
    CloseReason.NEEDS_TLS: "the listener uses TLS: set security_protocol to SSL or SASL_SSL, or use another port",
}
LONG_THROTTLE_MS = 15_000  # a longer time than Kafka's quotas demand is logged, and records that expire name it


class State(Enum):
    """What a connection does now."""

    CLOSED = "closed"
    RESOLVING = "resolving"
    CONNECTING = "connecting"
    PROXY = "proxy"
    TLS = "tls"
    VERSIONS = "versions"
    SASL = "sasl"
    READY = "ready"
    REAUTHENTICATING = "reauthenticating"


_FOLLOWS = {
    State.RESOLVING: (State.CLOSED,),
    State.CONNECTING: (State.RESOLVING,),
    State.PROXY: (State.CONNECTING,),
    State.TLS: (State.CONNECTING, State.PROXY),
    State.VERSIONS: (State.CONNECTING, State.PROXY, State.TLS),
    State.SASL: (State.VERSIONS,),
    State.READY: (State.VERSIONS, State.SASL, State.REAUTHENTICATING),
    State.REAUTHENTICATING: (State.READY,),
    State.CLOSED: tuple(State),
}


class NoAnswerError(Exception):
    """The connection has ended before the response. `closed_here`: by this sender, with or without an error."""

    def __init__(self, text: str, *, closed_here: bool = False) -> None:
        super().__init__(text)
        self.closed_here = closed_here


class UnusableAnswerError(NoAnswerError):
    """The connection was closed because the response could not be read, or handled."""


class InvalidRequestError(Exception):
    """The request cannot be encoded; the text says why."""


class _SetupError(Exception):
    """The connection cannot be set up. `is_refusal`: one of this client and the broker refuses the other."""

    def __init__(self, text: str, *, is_refusal: bool = False) -> None:
        super().__init__(text)
        self.is_refusal = is_refusal


class _TooEarlyError(Exception):
    """The broker does not authenticate again yet; the session goes on."""


class Setup:
    """With what all connections of a sender are made. `ready`: the brokers whose first connection is ready, by node."""

    def __init__(
        self, settings: dict[str, Any], client_id: ClientId, helper: Helper, tasks: Tasks, log: logging.Logger
    ) -> None:
        self.settings = settings
        self.client_id = client_id
        self.helper = helper
        self.log = log
        self.secrets = [str(value) for name, value in settings.items() if value and is_secret_name(name)]
        self.ready: dict[int, Broker] = {}
        self.proxy = Proxy(settings) if settings.get("proxy_url") else None
        self.tls: TlsSetup | None = None
        self.login: SaslLogin | None = None
        protocol = settings.get("security_protocol", "PLAINTEXT")
        if protocol.endswith("SSL"):
            from cyproducer.sender.cluster import tls_setup  # import_security() has loaded it

            self.tls = tls_setup.TlsSetup(settings, log)
        if protocol.startswith("SASL"):
            from cyproducer.sender.cluster import sasl_login  # import_security() has loaded it

            self.login = sasl_login.SaslLogin(settings, helper, tasks, self.ready)


def import_security(settings: dict[str, Any]) -> None:
    """Import what the connections of a sender with these settings need; without TLS, SASL and a proxy nothing.

    It is called before the first fork: a successor must not depend on files that may be removed by then. A library that
    is missing is reported by the connection that needs it.
    """
    protocol = settings["security_protocol"]
    if settings.get("proxy_url"):
        _import(PROXY_LIBRARIES[settings["proxy_url"].partition("://")[0]])
    if protocol.endswith("SSL"):
        import cyproducer.sender.cluster.tls_setup

        if settings.get("ssl_keystore_location") or settings.get("ssl_truststore_location"):
            _import("cryptography.hazmat.primitives.serialization.pkcs12")
    if protocol.startswith("SASL"):
        import cyproducer.sender.cluster.sasl_login  # noqa: F401

        if settings["sasl_mechanism"] == "GSSAPI":
            _import("gssapi")


def _import(library: str) -> None:
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module(library)


class Connection:
    """A connection to a broker, which can be opened again and again. `node`: the index of its node in the loop."""

    def __init__(
        self,
        broker: Broker,
        node: int,
        loop: Loop,
        nodes: Nodes,
        tasks: Tasks,
        setup: Setup,
        cluster: ClusterMetadata,
        features: FinalizedFeatures,
        report: Report,
    ) -> None:
        self.broker = broker
        self.node = node
        self._loop = loop
        self._nodes = nodes
        self._tasks = tasks
        self._setup = setup
        self._cluster = cluster
        self._features = features
        self._report = report
        self._log = setup.log
        self._state = State.CLOSED
        self._task: Task | None = None
        self._news = Signal()  # an event of the loop, or another state
        self._is_connected = False
        self._end_error = NoAnswerError("it is not connected")
        self._pending: dict[int, Reply[bytes]] = {}  # by correlation id
        self._setup_ms = 0  # how long the present attempt may take
        self._tls: TlsStream | None = None
        self._resolving_since_ms = 0
        self._versions: dict[int, int] = {}  # the negotiated ones, by API key
        self._exchange: Exchange | None = None
        self._session_ms: int | None = None  # authenticate again after this time
        self._was_answered = False  # the broker has answered a request of the control plane since it is ready
        self._answers_before = 0  # to Produce requests, when it became ready
        self._throttled_until_ms = 0  # the end of a long throttle time that was told

    # ------------------------------------------------------------ state

    @property
    def state(self) -> State:
        """What the connection does now."""
        return self._state

    @property
    def is_closed(self) -> bool:
        """Whether there is no connection, and none is being made: perhaps the name of the host is looked up."""
        return self._state in (State.CLOSED, State.RESOLVING)

    @property
    def is_ready(self) -> bool:
        """Whether the loop may send on it. It may have closed since the last event."""
        return self.takes_requests and self._loop.connection_state(self.node)[0] == ConnectionState.READY

    @property
    def takes_requests(self) -> bool:
        """Whether the control plane may send requests on it; they wait while it authenticates again."""
        return self._state in (State.READY, State.REAUTHENTICATING)

    def version_of(self, api: ApiKey) -> int | None:
        """Return the negotiated version of an API. None: the broker does not support it, or takes no requests."""
        return self._versions.get(api) if self.takes_requests else None

    @property
    def is_setting_up(self) -> bool:
        """Whether it is being made, or authenticates again: it takes requests soon."""
        return self._state not in (State.CLOSED, State.RESOLVING, State.READY)

    @property
    def in_flight(self) -> int:
        """The number of requests without response."""
        return self._loop.connection_state(self.node)[1]

    @property
    def can_send_request(self) -> bool:
        """Whether there is room for a further request now."""
        return self._loop.can_send_request(self.node)

    @property
    def throttled_ms(self) -> int:
        """For how long the broker must get no request."""
        return self._loop.throttled_ms(self.node)

    def _enter(self, state: State) -> None:
        assert self._state in _FOLLOWS[state], f"{self._state} -> {state}"
        self._state = state
        self._news.set()

    # ------------------------------------------------------------ opening

    def pause_ms(self, now_ms: int) -> int:
        """Return for how many ms it must not be opened: the broker could not be reached, or it throttles."""
        return max(self.broker.retry_at_ms - now_ms, self.throttled_ms, 0)

    def open(self, now_ms: int) -> int:
        """Begin to connect, unless that goes on already or must wait. Return in how many ms to call this again."""
        if self._state is not State.CLOSED:
            return NOTHING_DUE_MS
        pause_ms = self.pause_ms(now_ms)
        if pause_ms:
            return pause_ms
        self._resolving_since_ms = now_ms
        self._enter(State.RESOLVING)
        self._task = self._tasks.start(self._live())
        return NOTHING_DUE_MS

    def lookup_ms(self, now_ms: int) -> int:
        """Return for how many ms the name of the host is being looked up. Call it only while that is so."""
        assert self._state is State.RESOLVING
        return now_ms - self._resolving_since_ms

    def has_failed_since(self, since_ms: int) -> bool:
        """Return whether the last attempt to connect has failed since then, and no other one is being made."""
        broker = self.broker
        return self._state is State.CLOSED and broker.unreachable and broker.attempted_ms >= since_ms

    async def _live(self) -> None:
        """Set the connection up, and authenticate again before each end of a session, until it is closed."""
        try:
            if await self._set_up():
                await self._keep_session()
        except TimeLimitError:
            self.close(self._describe_delay())
        except _SetupError as error:
            if error.is_refusal:
                self._count_refusal()
            self.close(str(error))
        except SaslError as error:
            if not error.retryable:
                self._count_refusal()
            self.close(str(error))
        except NoAnswerError:
            pass  # it was closed
        except Exception as error:
            self.close_for(error)

    async def _set_up(self) -> bool:
        """Make the connection. Return False if it is not wanted any more."""
        if not self.broker.addresses and not await self._resolve():
            return False
        self._connect(self.broker.addresses.pop(0))
        while not self._is_connected:
            await self._news.wait()
        if self._setup.proxy is not None:
            self._enter(State.PROXY)
            await self._pass_proxy(self._setup.proxy)
        if self._setup.tls is not None:
            self._enter(State.TLS)
            await self._secure(self._setup.tls)
        self._enter(State.VERSIONS)
        await self._negotiate()
        if self._setup.login is not None:
            self._enter(State.SASL)
            await self._authenticate(self._setup.login)
        self._set_ready()
        return True

    async def _resolve(self) -> bool:
        """Look up the name of the host. Return False if the broker has left the cluster meanwhile.

        It may have: the answer takes long if a name server does not answer, or another bootstrap server is faster.
        """
        broker, proxy = self.broker, self._setup.proxy
        is_canonical = broker.id < 0 and self._setup.settings["client_dns_lookup"] == CANONICAL_NAMES
        found: list[Address] = []
        problem = "no address"
        try:
            if proxy is None:
                found = await resolve(self._setup.helper, broker.host, broker.port, canonical=is_canonical)
            else:
                found = await resolve(self._setup.helper, proxy.host, proxy.port)
        except OSError as error:
            problem = str(error)
        if broker.id not in self._cluster.brokers:
            self._enter(State.CLOSED)
            return False
        if not found:
            raise _SetupError(f"the host name{'' if proxy is None else f' of {proxy}'} cannot be resolved ({problem})")
        broker.set_addresses(found)
        return True

    def _connect(self, address: Address) -> None:
        settings = self._setup.settings
        try:
            sizes = int(settings["send_buffer_bytes"]), int(settings["receive_buffer_bytes"])
            sock = connecting_socket(address, *sizes)
            self._loop.open_connection(self.node, sock.detach())
        except Exception as error:  # a broker or a resolver may give an invalid address
            raise _SetupError(getattr(error, "strerror", None) or str(error)) from None
        self._is_connected = self._was_answered = False
        self._setup_ms = self.broker.begin_attempt(address, self._setup.proxy is not None, self._tasks.now_ms)
        self._limit(self._setup_ms)
        self._enter(State.CONNECTING)

    def _limit(self, limit_ms: int | None) -> None:
        assert self._task is not None
        self._task.limit(limit_ms)

    async def _pass_proxy(self, proxy: Proxy) -> None:
        """Let the proxy connect to the broker: from then on, the connection leads to the broker."""
        fd = self._nodes.begin_tunnel(self.node)
        talk = proxy.ask(self.broker.host, self.broker.port)
        try:
            message = next(talk)
            while True:
                while message:
                    message = message[await self._when_ready(partial(os.write, fd, message), writable=True) :]
                answer = await self._when_ready(partial(os.read, fd, 4096), writable=False)
                if not answer:
                    text = f"{proxy} has closed the connection: check proxy_username, proxy_password and its log"
                    raise _SetupError(text)
                message = talk.send(answer)
        except StopIteration:
            self._nodes.end_handshake(self.node)
        except ProxyError as error:
            raise _SetupError(self._shown(str(error)), is_refusal=error.is_refusal) from None
        except OSError as error:
            raise _SetupError(f"{proxy} has ended the connection: {error.strerror}") from None

    async def _when_ready(self, call: Callable[[], _T], *, writable: bool) -> _T:
        """Return what a call returns that reads, or writes, the descriptor of a connection that is being set up."""
        while True:
            try:
                return call()
            except BlockingIOError:
                self._nodes.await_handshake(self.node, writable)
                await self._news.wait()

    async def _secure(self, tls: "TlsSetup") -> None:
        """Make the TLS handshake."""
        stream = tls.open(self.broker, self.node, self._nodes)
        if isinstance(stream, str):
            raise _SetupError(stream, is_refusal=True)
        self._tls = stream
        while True:
            step = tls.handshake(stream)
            if step.refusal:
                raise _SetupError(step.refusal, is_refusal=True)
            if step.problem:
                raise _SetupError(step.problem)
            if not step.waits_for:
                break
            self._nodes.await_handshake(self.node, step.waits_for == "write")
            await self._news.wait()
        self._nodes.end_handshake(self.node)

    async def _negotiate(self) -> None:
        """Ask for the versions that the broker supports, and choose those that are used."""
        exchange, ranges = ApiVersionsExchange("cyproducer", VERSION), None
        while ranges is None:
            correlation_id = self._loop.next_correlation_id(self.node)
            reply = self._send(correlation_id, exchange.request(correlation_id, self._setup.client_id.present))
            ranges = exchange.on_response(await reply.get())
        versions = negotiate(ranges, [api for api in ApiKey if ROWS[api].required or has_common_version(ranges, api)])
        if versions[ApiKey.PRODUCE] == PRODUCE_MALFORMED_VERSION:
            versions[ApiKey.PRODUCE] -= 1
        assert exchange.body is not None
        self._apply_throttle(ApiKey.API_VERSIONS, exchange.version, exchange.body)
        self._features.apply(exchange.body)
        self._versions = versions
        if self._setup.tls is not None and self._tls is not None:
            self._setup.tls.keep_session(self._tls, self.broker)

    def _set_ready(self) -> None:
        """Let the connection take batches."""
        if self._setup.tls is not None or self._setup.login is not None:
            self._nodes.count_authentication(failed=False)
        self._allow_batches()
        self._answers_before = self._nodes.answers(self.node)
        self.broker.set_ready()
        if not self.broker.use:
            self._setup.ready[self.node] = self.broker
        self._loop.set_auth_failed(False)
        self._report.set_changed()  # the present error may have been its own
        by = "" if self._setup.proxy is None else f", by {self._setup.proxy}"
        self._log.info("connected to broker %s (id %d%s%s)", self.broker.name, self.broker.id, by, self._describe_tls())

    def _allow_batches(self) -> None:
        self._limit(None)
        can_describe = ApiKey.DESCRIBE_PRODUCERS in self._versions
        self._nodes.ready(self.node, self._versions[ApiKey.PRODUCE], can_describe)
        self._enter(State.READY)

    # ------------------------------------------------------------ SASL

    async def _authenticate(self, login: "SaslLogin") -> None:
        """Go through the SASL exchange. The loop sends no batches meanwhile."""
        await self._exchange_messages(login, await self._begin_exchange(login))

    async def _begin_exchange(self, login: "SaslLogin") -> "SaslStep":
        """Return the first message of the client, which is not sent yet. Raise SaslError."""
        if not {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE} <= self._versions.keys():
            raise _SetupError("the broker does not support SaslAuthenticate; it needs Kafka 1.0 or newer")
        self._exchange = login.new_exchange(self.node)
        return await login.begin(self._exchange, self.broker.checked_host)

    async def _exchange_messages(self, login: "SaslLogin", step: "SaslStep") -> None:
        """Send the messages of the client until both sides are content. Set how long the session lasts."""
        assert self._exchange is not None
        exchange = self._exchange
        await self._shake_hands(exchange)
        while step.message is not None:
            body = await self._call(
                ApiKey.SASL_AUTHENTICATE,
                self._versions[ApiKey.SASL_AUTHENTICATE],
                {"auth_bytes": step.message},
            )
            if body["error_code"]:
                reason = self._shown(body["error_message"] or "") or describe(body["error_code"])
                advice = f"; {exchange.advice}" if exchange.advice else ""
                text = f"the broker refuses the credentials ({exchange.mechanism}): {reason}{advice}"
                raise _SetupError(text, is_refusal=True)
            if body["session_lifetime_ms"] > 0:
                part = random.uniform(SESSION_LEAST, SESSION_MOST)
                self._session_ms = int(body["session_lifetime_ms"] * part)
            step = await login.go_on(exchange, body["auth_bytes"])
        if not step.complete:
            raise _SetupError("SASL failed: the broker has ended the exchange too early", is_refusal=True)
        self._exchange = None

    async def _shake_hands(self, exchange: "Exchange") -> None:
        body = await self._call(ApiKey.SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION, {"mechanism": exchange.mechanism})
        code = body["error_code"]
        if code == UNSUPPORTED_SASL_MECHANISM:
            offered = self._shown(", ".join(sorted(body["mechanisms"])) or "none")
            text = (
                f"the broker does not offer the SASL mechanism {exchange.mechanism}; it offers: {offered}. "
                "Set sasl_mechanism to one of these"
            )
            raise _SetupError(text, is_refusal=True)
        if code == ILLEGAL_SASL_STATE and self._state is State.REAUTHENTICATING:
            raise _TooEarlyError
        if code == ILLEGAL_SASL_STATE:
            text = "the listener does not use SASL; check the port, or use security_protocol without SASL"
            raise _SetupError(text, is_refusal=True)
        if code:
            raise _SetupError(f"SASL failed: {describe(code)}", is_refusal=True)

    async def _keep_session(self) -> None:
        """Authenticate again before the session ends, each time (KIP-368)."""
        login = self._setup.login
        while login is not None and self._session_ms is not None:
            await sleep(self._session_ms)
            self._session_ms = None
            self._limit(self._setup_ms)
            await self._authenticate_again(login)

    async def _authenticate_again(self, login: "SaslLogin") -> None:
        """Authenticate while no batches are sent. After an error that is no refusal, the session goes on for a while.

        Until the first message of the client is there, the connection is used as before. The broker handles the
        requests of a connection in order, so it has handled those in flight before.
        """
        try:
            first = await self._begin_exchange(login)
        except SaslError as error:
            self._set_error(str(error))
            self._exchange = None
            self._limit(None)
            self._session_ms = AGAIN_MS
            return
        self._nodes.hold_batches(self.node)
        self._enter(State.REAUTHENTICATING)
        began_ms = self._tasks.now_ms
        try:
            await self._exchange_messages(login, first)
        except _TooEarlyError:  # a broker takes no other authentication within a second (KIP-368)
            self._exchange = None
            self._session_ms = AGAIN_MS
        else:
            took_ms = self._tasks.now_ms - began_ms
            self._nodes.count_authentication(failed=False, again=True, took_ms=max(took_ms, 0))
        self._allow_batches()

    # ------------------------------------------------------------ events of the loop

    def on_connected(self) -> None:
        """Go on: TCP is established."""
        self._is_connected = True
        self._news.set()

    def on_handshake(self) -> None:
        """Go on with the TLS handshake: the socket is ready."""
        self._news.set()

    def on_answer(self, correlation_id: int, payload: bytes) -> None:
        """Hand out a response."""
        reply = self._pending.pop(correlation_id, None)
        if reply is not None:
            reply.set(payload)

    def on_closed(self, reason: int, now_ms: int) -> None:
        """Record that the loop has closed the connection; `reason` is a CloseReason or an errno."""
        if reason == CloseReason.BY_US or self.is_closed or not self._is_closed_in_loop():
            return  # it was closed here, and perhaps opened again
        text = self._describe_end(reason)
        was_ready = self.takes_requests
        if self._was_refused(reason):
            self._count_refusal()
        self._set_error(text)
        self._end(NoAnswerError(text))
        self._cluster.request_update()
        if was_ready:
            self.broker.set_broken(now_ms)
        else:
            self.broker.set_failed(now_ms)
        self._report.count_failure()

    def resync(self, now_ms: int) -> None:
        """Make up for events that were lost."""
        state = self._loop.connection_state(self.node)[0]
        if state == ConnectionState.CLOSED:
            self.on_closed(errno.ENOMEM, now_ms)
        elif state == ConnectionState.HANDSHAKING:
            self.on_handshake()
        elif state == ConnectionState.NEGOTIATING and self._state is State.CONNECTING:
            self.on_connected()

    def _is_closed_in_loop(self) -> bool:
        return self._loop.connection_state(self.node)[0] == ConnectionState.CLOSED

    # ------------------------------------------------------------ the end

    def close(self, text: str) -> None:
        """Close the connection because of an error of the broker. This counts as a failed attempt."""
        if self._state is State.CLOSED:
            return
        is_local = self._state is State.RESOLVING
        self._set_error(text)
        if is_local and self._cluster.bootstrapping:
            self._cluster.last_error = self._report.last_error
        self._end(NoAnswerError(text, closed_here=True))
        self._cluster.request_update()
        self.broker.set_failed(self._tasks.now_ms)
        self._report.count_failure()

    def drop(self, text: str = "this sender closed the connection") -> None:
        """Close the connection, if there is one, without an error."""
        if self._state is not State.CLOSED:
            self._end(NoAnswerError(text, closed_here=True))

    def _end(self, error: NoAnswerError) -> None:
        """Forget what belonged to the connection. Requests without response fail with the error."""
        self._end_error = error
        if not self._is_closed_in_loop():
            self._loop.close_node(self.node)
        self._exchange = None
        self._versions = {}
        self._session_ms = None
        self._tls = None
        self._setup.ready.pop(self.node, None)
        pending, self._pending = self._pending, {}
        for reply in pending.values():
            reply.fail(error)
        self._enter(State.CLOSED)
        task, self._task = self._task, None
        if task is not None:
            task.limit(None)
            task.stop(error)

    def _set_error(self, text: str) -> None:
        """Set and log the error of the broker. The same one is logged once a minute. Batches that expire name it."""
        text += self.broker.hint
        named = f"broker {self.broker.name}: {text}"
        self._nodes.set_error(self.node, named.encode())
        self._report.set_error(named)
        if self.broker.set_error(text):
            self._log.warning("broker %s: %s", self.broker.name, text)

    def _count_refusal(self) -> None:
        self.broker.set_auth_failed()
        self._nodes.count_authentication(failed=True, again=self.takes_requests)

    def _was_refused(self, reason: int) -> bool:
        """Return whether the broker has refused the client's certificate.

        With TLS 1.3, that comes after the handshake, before the broker answers.
        """
        tls = self._setup.tls
        return reason == CloseReason.TLS and tls is not None and not self._versions and tls.was_refused(self._tls)

    def _describe_end(self, reason: int) -> str:
        """Return why the loop has closed the connection."""
        if reason == CloseReason.TLS and self._setup.tls is not None:
            return self._setup.tls.describe_end(self._tls)
        is_first = not self._was_answered and self._nodes.answers(self.node) == self._answers_before
        if reason == CloseReason.BY_PEER and self._setup.login is None and self._versions and is_first:
            return (
                "the broker closed the connection at the first request: the listener may require SASL; check the port, "
                "or set security_protocol and sasl_mechanism"
            )
        if self._state is State.CONNECTING and self._setup.proxy is not None:
            return f"{self._setup.proxy} cannot be reached: {os.strerror(reason)}"
        return CLOSE_REASONS.get(reason) or os.strerror(reason)

    def _describe_delay(self) -> str:
        """Return what has not come in time: the connection, or an answer in the exchange of SASL."""
        if self._exchange is None:
            place = "its address" if self._setup.proxy is None else f"{self._setup.proxy}, the address"
            return f"no connection within {self._setup_ms} ms: check {place} and the network"
        server = SERVERS.get(self._exchange.mechanism, "the server that it depends on")
        return f"SASL ({self._exchange.mechanism}) did not end within {self._setup_ms} ms; check {server}"

    def _describe_defect(self, error: Exception) -> str:
        """Return why a response cannot be handled. The error may have a part of the response."""
        if isinstance(error, ProtocolError):
            return self._shown(str(error))
        return f"its response could not be handled ({type(error).__name__}: {self._shown(str(error))})"

    def _describe_tls(self) -> str:
        """Return the version of TLS, and whether a session was resumed; "" without TLS."""
        if self._tls is None:
            return ""
        secured = self._tls.secured
        return f", {secured.version()}{', session resumed' if secured.session_reused else ''}"

    def _shown(self, text: str) -> str:
        """Return a text of a broker as errors, the log and the status may show it."""
        secrets = self._exchange.secrets if self._exchange is not None else ()
        return server_text(text, (*self._setup.secrets, *secrets))

    # ------------------------------------------------------------ requests

    async def ask(
        self,
        api: ApiKey,
        body: dict[str, Any],
        *,
        version: int | None = None,
        exact: bool = True,
        limit_ms: int | None = None,
    ) -> dict[str, Any]:
        """Send a request, and return the body of its response.

        version   if it is not the negotiated one
        exact     bytes after the body are an error
        limit_ms  how long to wait for the response

        While the connection authenticates again, the broker takes no other request, so this one waits until then. Raise
        NoAnswerError if the connection ends before the response, TimeoutError if that does not come in time,
        InvalidRequestError if the request cannot be encoded, ProtocolError if the response cannot be read.
        """
        until_ms = None if limit_ms is None else self._tasks.now_ms + limit_ms
        while self._state is State.REAUTHENTICATING:
            if not await self._news.wait(self._left_ms(until_ms)):
                raise TimeoutError
        if not self.takes_requests:
            raise self._end_error
        used = self._versions[api] if version is None else version
        answer = await self._call(api, used, body, exact=exact, limit_ms=self._left_ms(until_ms))
        self._was_answered = True
        self._apply_throttle(api, used, answer)
        return answer

    async def ask_or_close(
        self, api: ApiKey, body: dict[str, Any], *, version: int | None = None, exact: bool = True
    ) -> dict[str, Any]:
        """Do as ask(), but close the connection and raise UnusableAnswerError if the response cannot be read.

        So a defect of the broker, or of this client, leads to another attempt at another connection.
        """
        try:
            return await self.ask(api, body, version=version, exact=exact)
        except NoAnswerError:
            raise
        except Exception as error:
            raise UnusableAnswerError(self.close_for(error), closed_here=True) from None

    def _left_ms(self, until_ms: int | None) -> int | None:
        return None if until_ms is None else max(until_ms - self._tasks.now_ms, 0)

    async def _call(
        self, api: ApiKey, version: int, body: dict[str, Any], *, exact: bool = True, limit_ms: int | None = None
    ) -> dict[str, Any]:
        correlation_id = self._loop.next_correlation_id(self.node)
        try:
            frame = encode_request(api, version, correlation_id, self._setup.client_id.present, body)
        except ProtocolError as error:
            raise InvalidRequestError(str(error)) from None
        reply = self._send(correlation_id, frame)
        if not await reply.wait(limit_ms):
            raise TimeoutError
        answer: dict[str, Any] = decode_response(api, version, await reply.get(), exact=exact)[1]
        return answer

    def _send(self, correlation_id: int, frame: bytes) -> Reply[bytes]:
        reply: Reply[bytes] = Reply()
        self._pending[correlation_id] = reply
        with contextlib.suppress(ConnectionError):  # a Closed event follows, and fails the reply
            self._loop.send(self.node, frame, correlation_id)
        return reply

    def close_for(self, error: Exception) -> str:
        """Close the connection because a response could not be handled. Return the text of its error."""
        if not isinstance(error, ProtocolError):
            self._log.error("a response of broker %s could not be handled", self.broker.name, exc_info=error)
        text = self._describe_defect(error)
        self.close(text)
        return text

    def _apply_throttle(self, api: ApiKey, version: int, body: dict[str, Any]) -> None:
        """Count the throttle time of a response for the metrics, and let the loop wait if the client must."""
        self._loop.count_throttle(body.get("throttle_time_ms", 0))
        if version >= ROWS[api].throttles_from:
            self._loop.throttle(self.node, body["throttle_time_ms"])

    def report_throttling(self, now_ms: int) -> None:
        """Make it the error of the broker that it throttles this client for long, once for each such time."""
        left_ms = self.throttled_ms
        if left_ms > LONG_THROTTLE_MS and now_ms + left_ms > self._throttled_until_ms + LONG_THROTTLE_MS:
            self._throttled_until_ms = now_ms + left_ms
            self._set_error(
                f"it throttles this client, and gets no request for {left_ms / 1000:.0f} s; check the quotas of the "
                "broker"
            )


def connecting_socket(address: Address, send_buffer_bytes: int, receive_buffer_bytes: int) -> socket.socket:
    """Return a non-blocking socket that is connecting. Raise OSError, or another exception for an invalid address."""
    sock = socket.socket(address.family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in KEEPALIVE.items():
            sock.setsockopt(socket.IPPROTO_TCP, option, seconds)
        # reset on close: bytes of a dead sender that are still queued must not reach the broker
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if send_buffer_bytes != SYSTEM_BUFFER:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
        if receive_buffer_bytes != SYSTEM_BUFFER:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.connect(address.target)
    except BlockingIOError:
        pass
    except BaseException:
        sock.close()
        raise
    return sock
