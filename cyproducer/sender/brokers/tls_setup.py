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
from cyproducer.sender.brokers.broker import Link
from cyproducer.sender.engine.native import Connections

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

    def open(self, link: Link, connections: Connections) -> str:
        """Begin with the handshake of a connection. Return why that is not possible, or ""."""
        try:
            self._begin(link, connections)
        except TlsError as error:
            return str(error)
        except (OSError, ValueError) as error:
            return self._describe(error, link)
        return ""

    def _begin(self, link: Link, connections: Connections) -> None:
        """Let a socket own the descriptor of the connection, and use TLS on it. If that fails, close the descriptor."""
        contexts = self._contexts
        context = contexts.context()
        if contexts.problem and contexts.problem != self._problem:
            self._log.warning("the changed files are not used: %s", contexts.problem)
        self._problem = contexts.problem
        if link.session_for != (context, link.checked_host):
            # With a session, OpenSSL does not check the certificate and its host name again.
            link.session, link.session_for = None, (context, link.checked_host)
        plain = socket.socket(fileno=connections.take_descriptor(link.index))
        try:
            plain.setblocking(False)
            wrap = functools.partial(
                context.wrap_bio, server_side=False, server_hostname=link.checked_host, session=link.session
            )
            link.tls = connections.begin_handshake(link.index, plain, wrap)
        except BaseException:
            plain.close()
            raise

    def handshake(self, link: Link) -> Step:
        """Go on with the handshake."""
        try:
            return Step(waits_for=link.tls.handshake())
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError, ssl.CertificateError a ValueError
            text = self._describe(error, link)
            return Step(refusal=text) if _is_refusal(error) else Step(problem=text)

    @staticmethod
    def keep_session(link: Link) -> None:
        """Keep the session for the next connection. The broker has answered: with TLS 1.3 it sends the ticket late."""
        link.session = link.tls.secured.session

    @staticmethod
    def was_refused(link: Link) -> bool:
        """Return whether the broker has refused this client, or the reverse: not only ended the connection."""
        return link.tls is not None and _is_refusal(link.tls.error)

    def describe_end(self, link: Link) -> str:
        """Return why TLS has ended the connection."""
        error = link.tls.error if link.tls is not None else None
        return self._describe(error, link) if error is not None else "TLS failed"

    def _describe(self, error: BaseException, link: Link) -> str:
        return describe_tls_error(error, link.checked_host, self._own)


def _is_refusal(error: BaseException | None) -> bool:
    ended = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError)
    return isinstance(error, ssl.SSLError | ValueError) and not ended
