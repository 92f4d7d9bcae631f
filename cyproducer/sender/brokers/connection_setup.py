"""Sets up a connection to a broker: TLS handshake, ApiVersions, and SASL, also again before the session ends (KIP-368).

connected -> [TLS handshake] -> ApiVersions -> [SaslHandshake -> SaslAuthenticate ...] -> ready
"""

import contextlib
import importlib
import random
from typing import TYPE_CHECKING, Any

from cyproducer.config.secrets import is_secret_name
from cyproducer.error_table import describe
from cyproducer.protocol.codec import decode_response, encode_request
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.versions import ApiKey, ApiVersionsExchange, has_common_version, negotiate
from cyproducer.security.server_text import server_text
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, Link
from cyproducer.sender.brokers.throttling import apply_throttle
from cyproducer.sender.engine.events import CloseReason
from cyproducer.sender.engine.native import Connections
from cyproducer.version import VERSION

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers
    from cyproducer.sender.brokers.sasl_login import Answer, Exchange, SaslLogin
    from cyproducer.sender.brokers.tls_setup import TlsSetup

__all__ = ["ConnectionSetup", "import_security"]

REQUIRED = (ApiKey.PRODUCE, ApiKey.METADATA, ApiKey.API_VERSIONS)
PRODUCE_MALFORMED_VERSION = 5  # librdkafka's mock cluster leaves a field out of its v5
SASL_HANDSHAKE_VERSION = 1  # the tokens follow in SaslAuthenticate requests
UNSUPPORTED_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
#: The servers that a mechanism asks before it answers the broker.
SERVERS = {"GSSAPI": "the KDC, and the network between it and this host", "OAUTHBEARER": "the token endpoint"}
#: The part of a session's lifetime after which to authenticate again, from the least to the most
#: (SaslClientAuthenticator.ReauthInfo).
SESSION_LEAST, SESSION_MOST = 0.85, 0.95
AGAIN_MS = 1000  # pause before another attempt to authenticate again, while the session lasts


def import_security(settings: dict[str, Any]) -> None:
    """Import what the connections of a sender with these settings need; without TLS and SASL nothing.

    It is called before the first fork: a successor must not depend on files that may be removed by then. A library that
    is missing is reported by the connection that needs it.
    """
    protocol = settings["security_protocol"]
    if protocol.endswith("SSL"):
        import cyproducer.sender.brokers.tls_setup

        if settings.get("ssl_keystore_location") or settings.get("ssl_truststore_location"):
            _import("cryptography.hazmat.primitives.serialization.pkcs12")
    if protocol.startswith("SASL"):
        import cyproducer.sender.brokers.sasl_login  # noqa: F401

        if settings["sasl_mechanism"] == "GSSAPI":
            _import("gssapi")


def _import(library: str) -> None:
    with contextlib.suppress(ImportError, OSError):
        importlib.import_module(library)


class ConnectionSetup:
    """Leads each connection from EVENT_CONNECTED to the state in which it takes batches.

    An error closes the connection through `Brokers.give_up()`, with a text that says what to do.
    """

    def __init__(self, brokers: "Brokers", connections: Connections, settings: dict[str, Any]) -> None:
        self._brokers = brokers
        self._settings = settings
        self._secrets = [str(value) for name, value in settings.items() if value and is_secret_name(name)]
        self.connections = connections
        protocol = settings.get("security_protocol", "PLAINTEXT")
        self._tls: TlsSetup | None = None
        self.login: SaslLogin | None = None
        if protocol.endswith("SSL"):
            from cyproducer.sender.brokers import tls_setup  # import_security() has loaded it

            self._tls = tls_setup.TlsSetup(settings, brokers.log)
        if protocol.startswith("SASL"):
            from cyproducer.sender.brokers import sasl_login  # import_security() has loaded it

            self.login = sasl_login.SaslLogin(settings, self._known_brokers)
        self._now_ms = 0

    def _known_brokers(self) -> list[tuple[str, int]]:
        """Return the names and ports of the brokers whose connections take batches; the names are those of TLS."""
        return [(link.checked_host, link.port) for link in self._brokers.links.values() if link.versions is not None]

    @property
    def fd(self) -> int:
        """A descriptor that is readable when collect() has work; -1 if there is none."""
        return -1 if self.login is None else self.login.fd

    def close(self) -> None:
        if self.login is not None:
            self.login.close()

    # ------------------------------------------------------------ TLS

    def on_connected(self, link: Link, now_ms: int) -> None:
        """Begin with a connection that was just established."""
        if not self._is(link, "negotiating"):
            return  # it was closed by an event before this one
        link.exchange = ApiVersionsExchange("cyproducer", VERSION)
        if self._tls is None:
            self._ask_versions(link)
            return
        problem = self._tls.open(link, self.connections)
        if problem:
            self._refuse(link, problem, now_ms)
            return
        self.on_handshake(link, now_ms)

    def on_handshake(self, link: Link, now_ms: int) -> None:
        """Go on with the TLS handshake: the socket is ready."""
        if self._tls is None or link.tls is None or not self._is(link, "handshaking"):
            return
        step = self._tls.handshake(link)
        if step.refusal:
            self._refuse(link, step.refusal, now_ms)
            return
        if step.problem:
            self._brokers.give_up(link, step.problem, now_ms)
            return
        if step.waits_for:
            self.connections.await_handshake(link.index, step.waits_for == "write")
            return
        self.connections.end_handshake(link.index)
        self._ask_versions(link)

    @staticmethod
    def describe_tls(link: Link) -> str:
        """Return the version of TLS of a connection, and whether a session was resumed; "" without TLS."""
        if link.tls is None:
            return ""
        secured = link.tls.secured
        return f", {secured.version()}{', session resumed' if secured.session_reused else ''}"

    def describe_end(self, link: Link, reason: int) -> str:
        """Return why the connection has ended, if the settings of security are the likely reason; else ""."""
        if reason == CloseReason.TLS and self._tls is not None:
            return self._tls.describe_end(link)
        if reason != CloseReason.BY_PEER or self.login is not None or not link.negotiated:
            return ""
        if link.was_answered or self.connections.answers(link.index) != link.answers_before:
            return ""
        return (
            "the broker closed the connection at the first request: the listener may require SASL; check the port, "
            "or set security_protocol and sasl_mechanism"
        )

    def describe_delay(self, link: Link) -> str:
        """Return what has not come in time: the connection, or an answer in the exchange of SASL."""
        if link.sasl is None:
            return f"no connection within {link.setup_ms} ms: check its address and the network"
        server = SERVERS.get(link.sasl.mechanism, "the server that it depends on")
        return f"SASL ({link.sasl.mechanism}) did not end within {link.setup_ms} ms; check {server}"

    def describe_defect(self, link: Link, error: Exception) -> str:
        """Return why a response cannot be handled. The error may have a part of the response."""
        if isinstance(error, ProtocolError):
            return self._shown(link, str(error))
        return f"its response could not be handled ({type(error).__name__}: {self._shown(link, str(error))})"

    def _shown(self, link: Link, text: str) -> str:
        """Return a text of a broker as errors, the log and the status may show it."""
        return server_text(text, (*self._secrets, *(link.sasl.secrets if link.sasl is not None else ())))

    def _refuse(self, link: Link, text: str, now_ms: int) -> None:
        """Close a connection whose authentication has failed: the broker refuses this client, or the reverse."""
        self._note_failure(link)
        self._brokers.give_up(link, text, now_ms)

    def _note_failure(self, link: Link) -> None:
        link.auth_failed = True
        self.connections.count_authentication(failed=True, again=link.versions is not None)

    def _is(self, link: Link, state: str) -> bool:
        return bool(self._brokers.loop.connection_state(link.index)[0] == state)

    # ------------------------------------------------------------ ApiVersions

    def _ask_versions(self, link: Link) -> None:
        assert link.exchange is not None
        self.connections.note_asked(link.index)
        correlation_id = self._brokers.next_correlation_id(link)
        frame = link.exchange.request(correlation_id, self._settings["client_id"])
        self._brokers.send_frame(link, correlation_id, frame, self._on_versions)

    def _on_versions(self, link: Link, payload: bytes, now_ms: int) -> None:
        assert link.exchange is not None
        ranges = link.exchange.on_response(payload)
        if ranges is None:
            self._ask_versions(link)
            return
        versions = negotiate(ranges, [api for api in ApiKey if api in REQUIRED or has_common_version(ranges, api)])
        if versions[ApiKey.PRODUCE] == PRODUCE_MALFORMED_VERSION:
            versions[ApiKey.PRODUCE] -= 1
        assert link.exchange.body is not None
        apply_throttle(self._brokers.loop, link, ApiKey.API_VERSIONS, link.exchange.version, link.exchange.body)
        self._brokers.features.note(link.exchange.body)
        link.negotiated = versions
        link.exchange = None
        if self._tls is not None and link.tls is not None:
            self._tls.keep_session(link)
        if self.login is None:
            self._finish(link)
        else:
            self._now_ms = now_ms
            self._begin_sasl(link, now_ms)

    def _finish(self, link: Link) -> None:
        """Let the connection take batches. After a new authentication it already has what the rest does."""
        again = link.versions is not None
        if not again and (self._tls is not None or self.login is not None):
            self.connections.count_authentication(failed=False)
        link.versions = versions = link.negotiated
        self.connections.ready(link.index, versions[ApiKey.PRODUCE], ApiKey.DESCRIBE_PRODUCERS in versions)
        link.connect_deadline_ms = None
        if not again:
            link.answers_before = self.connections.answers(link.index)
            self.connections.note_answered(link.index)
            self._brokers.note_ready(link)
        held, link.held = link.held, []
        for send in held:
            send()

    # ------------------------------------------------------------ SASL

    def _begin_sasl(self, link: Link, now_ms: int) -> None:
        """Get the first message; the connection is used as before until it is there."""
        assert self.login is not None
        if not {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE} <= link.negotiated.keys():
            text = "the broker does not support SaslAuthenticate; it needs Kafka 1.0 or newer"
            self._brokers.give_up(link, text, now_ms)
            return
        if link.connect_deadline_ms is None:
            link.connect_deadline_ms = now_ms + link.setup_ms
        exchange = link.sasl = self.login.new_exchange()
        self.login.begin(exchange, link.checked_host, lambda answer: self._on_first(link, exchange, answer))

    def collect(self, now_ms: int) -> None:
        """Go on with the exchanges for which the next message is there."""
        assert self.login is not None
        self._now_ms = now_ms
        self.login.collect()

    def _on_first(self, link: Link, exchange: "Exchange", answer: "Answer") -> None:
        if link.sasl is exchange:  # else the connection has ended
            self._brokers.guarded(link, self._now_ms, lambda: self._handshake(link, exchange, answer))

    def _handshake(self, link: Link, exchange: "Exchange", answer: "Answer") -> None:
        if answer.error and link.versions is not None:
            self._brokers.note_error(link, answer.error)
            self._keep_session(link, self._now_ms)
            return
        if answer.error and not answer.undecided:
            self._refuse(link, answer.error, self._now_ms)
            return
        if answer.error or answer.message is None:
            self._brokers.give_up(link, answer.error or "SASL failed: the client has no first message", self._now_ms)
            return
        link.first_message, exchange.advice = answer.message, answer.advice
        exchange.secrets += answer.secrets
        self.connections.hold_batches(link.index)
        link.authenticating_since_ms = self._now_ms
        body = {"mechanism": exchange.mechanism}
        self._request(link, ApiKey.SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION, body, self._on_sasl_handshake)

    def _keep_session(self, link: Link, now_ms: int) -> None:
        """Give up an attempt to authenticate again. The session has not ended yet, so another attempt follows."""
        self._end_sasl(link)
        link.authenticate_at_ms = now_ms + AGAIN_MS
        self._finish(link)

    def _on_sasl_handshake(self, link: Link, payload: bytes, now_ms: int) -> None:
        assert link.sasl is not None
        _, body = decode_response(ApiKey.SASL_HANDSHAKE, SASL_HANDSHAKE_VERSION, payload)
        code = body["error_code"]
        if code == UNSUPPORTED_MECHANISM:
            offered = self._shown(link, ", ".join(sorted(body["mechanisms"])) or "none")
            text = (
                f"the broker does not offer the SASL mechanism {link.sasl.mechanism}; it offers: {offered}. "
                "Set sasl_mechanism to one of these"
            )
            self._refuse(link, text, now_ms)
        elif code == ILLEGAL_SASL_STATE and link.versions is not None:
            self._keep_session(link, now_ms)  # a broker takes no other authentication within a second (KIP-368)
        elif code == ILLEGAL_SASL_STATE:
            text = "the listener does not use SASL; check the port, or use security_protocol without SASL"
            self._refuse(link, text, now_ms)
        elif code:
            self._refuse(link, f"SASL failed: {describe(code)}", now_ms)
        else:
            self._authenticate(link, link.first_message)

    def _authenticate(self, link: Link, message: bytes) -> None:
        version = link.negotiated[ApiKey.SASL_AUTHENTICATE]
        self._request(link, ApiKey.SASL_AUTHENTICATE, version, {"auth_bytes": message}, self._on_authenticate)

    def _on_authenticate(self, link: Link, payload: bytes, now_ms: int) -> None:
        assert self.login is not None and link.sasl is not None
        version = link.negotiated[ApiKey.SASL_AUTHENTICATE]
        _, body = decode_response(ApiKey.SASL_AUTHENTICATE, version, payload)
        if body["error_code"]:
            reason = self._shown(link, body["error_message"] or "") or describe(body["error_code"])
            self._refuse(link, self._refusal(link.sasl, reason), now_ms)
            return
        lifetime_ms = body["session_lifetime_ms"]
        if lifetime_ms > 0:
            link.authenticate_at_ms = now_ms + int(lifetime_ms * random.uniform(SESSION_LEAST, SESSION_MOST))
        exchange = link.sasl
        self.login.go_on(exchange, body["auth_bytes"], lambda answer: self._on_next(link, exchange, answer))

    @staticmethod
    def _refusal(exchange: "Exchange", reason: str) -> str:
        advice = f"; {exchange.advice}" if exchange.advice else ""
        return f"the broker refuses the credentials ({exchange.mechanism}): {reason}{advice}"

    def _on_next(self, link: Link, exchange: "Exchange", answer: "Answer") -> None:
        if link.sasl is exchange:
            self._brokers.guarded(link, self._now_ms, lambda: self._go_on(link, answer))

    def _go_on(self, link: Link, answer: "Answer") -> None:
        if answer.error and answer.undecided:
            self._brokers.give_up(link, answer.error, self._now_ms)
        elif answer.error:
            self._refuse(link, answer.error, self._now_ms)
        elif answer.message is not None:
            assert link.sasl is not None
            link.sasl.advice = answer.advice
            link.sasl.secrets += answer.secrets
            self._authenticate(link, answer.message)
        elif not answer.complete:
            self._refuse(link, "SASL failed: the broker has ended the exchange too early", self._now_ms)
        else:
            if link.versions is not None:
                took_ms = self._now_ms - link.authenticating_since_ms
                self.connections.count_authentication(failed=False, again=True, took_ms=max(took_ms, 0))
            self._end_sasl(link)
            self._finish(link)

    def _end_sasl(self, link: Link) -> None:
        if link.sasl is not None and self.login is not None:
            self.login.end(link.sasl)
        link.sasl = None

    def maintain(self, link: Link, now_ms: int) -> int:
        """Authenticate again if the session ends soon. Return in how many ms to look again.

        No batches are sent meanwhile. The broker handles the requests of a connection in order, so it has handled those
        in flight before.
        """
        if link.authenticate_at_ms is None or link.versions is None or link.sasl is not None:
            return NOTHING_DUE_MS
        if link.authenticate_at_ms > now_ms:
            return link.authenticate_at_ms - now_ms
        link.authenticate_at_ms = None
        self._now_ms = now_ms
        self._brokers.guarded(link, now_ms, lambda: self._begin_sasl(link, now_ms))
        return NOTHING_DUE_MS if link.connect_deadline_ms is None else link.connect_deadline_ms - now_ms

    def on_closed(self, link: Link, reason: int) -> None:
        """Note whether authentication was refused, and forget what belonged to a connection that has ended.

        With TLS 1.3, the refusal of the client's certificate comes after the handshake, before the broker answers.
        """
        if reason == CloseReason.TLS and self._tls is not None and not link.negotiated and self._tls.was_refused(link):
            self._note_failure(link)
        self._end_sasl(link)
        link.held = []
        link.exchange = None
        link.negotiated = {}
        link.authenticate_at_ms = None
        link.tls = None

    def _request(self, link: Link, api: ApiKey, version: int, body: dict[str, Any], then: Any) -> None:
        correlation_id = self._brokers.next_correlation_id(link)
        frame = encode_request(api, version, correlation_id, self._settings["client_id"], body)
        self._brokers.send_frame(link, correlation_id, frame, then)
