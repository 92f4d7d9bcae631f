"""Makes the TLS sockets of the connections, resumes their sessions, and says why TLS has failed.

It is imported only if the protocol of the sender has TLS.
"""

import functools
import logging
import socket
import ssl
from typing import Any, NamedTuple

from cyproducer.security.own_certificate import OwnCertificate
from cyproducer.security.tls import TlsContexts, TlsError
from cyproducer.security.tls_errors import describe_tls_error
from cyproducer.sender.cluster.broker import Broker
from cyproducer.sender.engine.native import Nodes, TlsStream

__all__ = ["Step", "TlsSetup"]


class Step(NamedTuple):
    """The state of a handshake. It is complete if all texts are empty.

    waits_for   "read" or "write": what the socket must be ready for
    refusal     why one of the two refuses the other
    problem     why the connection has ended otherwise
    """

    waits_for: str = ""
    refusal: str = ""
    problem: str = ""


class TlsSetup:
    """The TLS of all connections of a sender. `settings` are all settings of the sender."""

    def __init__(self, settings: dict[str, Any], log: logging.Logger) -> None:
        self._own = OwnCertificate(settings)
        self._contexts = TlsContexts(settings)
        self._log = log
        self._problem = ""

    def open(self, broker: Broker, node: int, nodes: Nodes) -> TlsStream | str:
        """Begin with the handshake of a connection. Return why that is not possible, or its stream."""
        try:
            return self._begin(broker, node, nodes)
        except TlsError as error:
            return str(error)
        except (OSError, ValueError) as error:
            return describe_tls_error(error, self._own)

    def _begin(self, broker: Broker, node: int, nodes: Nodes) -> TlsStream:
        """Let a socket own the descriptor of the connection, and use TLS on it. If that fails, close the descriptor."""
        contexts = self._contexts
        context = contexts.context()
        if contexts.problem and contexts.problem != self._problem:
            self._log.warning("the changed files are not used: %s", contexts.problem)
        self._problem = contexts.problem
        session = broker.session_for(context)
        plain = socket.socket(fileno=nodes.take_descriptor(node))
        try:
            plain.setblocking(False)
            wrap = functools.partial(
                context.wrap_bio, server_side=False, server_hostname=broker.checked_host, session=session
            )
            return nodes.begin_handshake(node, plain, wrap)
        except BaseException:
            plain.close()
            raise

    def handshake(self, stream: TlsStream) -> Step:
        """Go on with the handshake."""
        try:
            return Step(waits_for=stream.handshake())
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError, ssl.CertificateError a ValueError
            text = describe_tls_error(error, self._own)
            return Step(refusal=text) if _is_refusal(error) else Step(problem=text)

    @staticmethod
    def keep_session(stream: TlsStream, broker: Broker) -> None:
        """Keep the session for the next connection. The broker has answered: with TLS 1.3 it sends the ticket late."""
        broker.keep_session(stream.secured.session)

    @staticmethod
    def was_refused(stream: TlsStream | None) -> bool:
        """Return whether the broker has refused this client, or the reverse: not only ended the connection."""
        return stream is not None and _is_refusal(stream.error)

    def describe_end(self, stream: TlsStream | None) -> str:
        """Return why TLS has ended the connection."""
        error = stream.error if stream is not None else None
        return describe_tls_error(error, self._own) if error is not None else "TLS failed"


def _is_refusal(error: BaseException | None) -> bool:
    ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError | ValueError) and not ended
