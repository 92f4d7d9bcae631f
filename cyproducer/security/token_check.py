"""Asks a broker whether an OAuth token is valid: authenticates with it on a connection of its own.

Only a broker can check the signature of a token. The functions block. The sender calls them in its helper process, and
limits their time once more, because nothing limits that of getaddrinfo.
"""

import itertools
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cyproducer.protocol.codec import decode_response, encode_request
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.security.mechanism import SaslError
from cyproducer.security.own_certificate import OwnCertificate
from cyproducer.security.proxy import Proxy, Talk
from cyproducer.security.sasl import Credentials, new_client
from cyproducer.security.server_text import server_text, token_secrets
from cyproducer.security.tls import TlsContexts, TlsError
from cyproducer.security.tls_errors import describe_tls_error
from cyproducer.security.token_source import Token

__all__ = ["CHECK_S", "check_token"]

#: How long a check may take at all brokers together. Only a look-up of a name may take longer.
CHECK_S = 12.0
_BROKER_S = 5.0
_ANSWER_BYTES_MAX = 1 << 20
# Brokers from 1.0 to the newest know both versions, so they need not be asked for theirs.
_HANDSHAKE_VERSION = 1
_AUTHENTICATE_VERSION = 0

Address = tuple[str, int]


def check_token(settings: Mapping[str, Any], addresses: Iterable[Address], token: Token) -> None:
    """Authenticate with the token at the first broker that answers, and close the connection.

    Raise SaslError if a broker refuses the token; it is retryable if no broker has decided.
    """
    until = time.monotonic() + CHECK_S
    reason = "there is no address of a broker"
    proxy = Proxy(settings) if settings.get("proxy_url") else None
    for host, port in addresses:
        try:
            place = (host, port) if proxy is None else (proxy.host, proxy.port)
            targets = socket.getaddrinfo(*place, type=socket.SOCK_STREAM)
            limit = _Limit(min(until, time.monotonic() + _BROKER_S))
            with _connected(targets, limit) as plain:
                if proxy is not None:
                    _pass_proxy(plain, proxy.ask(host, port), limit)
                _authenticate(_secured(settings, plain, host, limit), settings, host, token, limit)
            return
        except (OSError, ValueError, TlsError, ProtocolError) as error:
            reason = f"{host}:{port}: {_described(error, settings, token)}"
        if time.monotonic() >= until:
            break
    raise SaslError(f"no broker could check the OAuth token: {reason}", retryable=True)


class _Limit:
    """The end of the time at one broker. The timeout of a socket counts anew in each call, so it is set before each."""

    def __init__(self, until: float) -> None:
        self._until = until

    def apply(self, sock: socket.socket, part: float = 1.0) -> None:
        """Limit the next call of the socket to this part of the remaining time. Raise TimeoutError if it is over."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        sock.settimeout(left * part)


def _connected(targets: Sequence[tuple[Any, ...]], limit: _Limit) -> socket.socket:
    """Return a socket that is connected to one of these results of getaddrinfo. Raise the OSError of the last one."""
    failed = OSError("the host name has no address")
    for at, (family, kind, protocol, _, target) in enumerate(targets):
        sock = socket.socket(family, kind, protocol)
        try:
            limit.apply(sock, 1 / (len(targets) - at))
            sock.connect(target)
            return sock
        except OSError as error:
            sock.close()
            failed = error
    raise failed


def _pass_proxy(sock: socket.socket, talk: Talk, limit: _Limit) -> None:
    """Let the proxy connect to the broker. Raise ProxyError, or another OSError."""
    try:
        message = next(talk)
        while True:
            limit.apply(sock)
            sock.sendall(message)
            limit.apply(sock)
            answer = sock.recv(4096)
            if not answer:
                raise ConnectionError("the proxy has closed the connection")
            message = talk.send(answer)
    except StopIteration:
        return


def _described(error: Exception, settings: Mapping[str, Any], token: Token) -> str:
    if isinstance(error, ProtocolError):
        return server_text(str(error), token_secrets(token.value))
    if isinstance(error, TlsError | TimeoutError | ConnectionError | socket.gaierror):
        return str(error) or type(error).__name__
    return describe_tls_error(error, OwnCertificate(settings))


def _secured(settings: Mapping[str, Any], plain: socket.socket, host: str, limit: _Limit) -> socket.socket:
    if not str(settings["security_protocol"]).endswith("SSL"):
        return plain
    limit.apply(plain)
    return TlsContexts(settings).context().wrap_socket(plain, server_hostname=host)


def _authenticate(sock: socket.socket, settings: Mapping[str, Any], host: str, token: Token, limit: _Limit) -> None:
    numbers = itertools.count()

    def ask(api: ApiKey, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
        _send(sock, encode_request(api, version, next(numbers), settings.get("client_id"), body), limit)
        size = int.from_bytes(_read(sock, 4, limit), "big")
        if size > _ANSWER_BYTES_MAX:
            raise ProtocolError("the answer is too long for a Kafka broker")
        return decode_response(api, version, _read(sock, size, limit))[1]

    with sock:
        answer = ask(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": "OAUTHBEARER"})
        if answer["error_code"]:
            offered = server_text(", ".join(sorted(answer["mechanisms"])) or "none", token_secrets(token.value))
            raise SaslError(f"the broker does not offer the SASL mechanism OAUTHBEARER; it offers: {offered}")
        credentials = Credentials(token=token.value, token_extensions=dict(token.extensions))
        client = new_client("OAUTHBEARER", credentials, host)
        message = client.respond(None)
        while message is not None:
            answer = ask(ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, {"auth_bytes": message})
            if answer["error_code"]:
                text = server_text(answer["error_message"] or "", client.secrets) or "no reason given"
                raise SaslError(f"the broker refuses the OAuth token: {text}")
            message = client.respond(answer["auth_bytes"])


def _send(sock: socket.socket, data: bytes, limit: _Limit) -> None:
    while data:
        limit.apply(sock)
        data = data[sock.send(data) :]


def _read(sock: socket.socket, size: int, limit: _Limit) -> bytes:
    found = bytearray()
    while len(found) < size:
        limit.apply(sock)
        data = sock.recv(size - len(found))
        if not data:
            raise ConnectionError("the broker closed the connection; the listener may not use SASL, or uses TLS")
        found += data
    return bytes(found)
