"""Asks a broker whether an OAuth token is valid: authenticates with it on a connection of its own.

Only a broker can check the signature of a token. The functions block. The sender calls them in a helper process.
"""

import itertools
import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from cyproducer.protocol.codec import decode_response, encode_request
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.versions import ApiKey
from cyproducer.security.mechanism import SaslError, server_text
from cyproducer.security.own_certificate import OwnCertificate
from cyproducer.security.sasl import Credentials, new_client
from cyproducer.security.tls import TlsContexts, TlsError
from cyproducer.security.tls_errors import describe_tls_error
from cyproducer.security.token_source import Token

__all__ = ["CHECK_S", "NoBrokerError", "check_token"]

#: How long a check may take at all brokers together.
CHECK_S = 12.0
_BROKER_S = 5.0
_ANSWER_BYTES_MAX = 1 << 20
# Brokers from 1.0 to the newest know both versions, so they need not be asked for theirs.
_HANDSHAKE_VERSION = 1
_AUTHENTICATE_VERSION = 0

Address = tuple[str, int]


class NoBrokerError(SaslError):
    """No broker has said whether the token is valid. The text says why."""


def check_token(settings: Mapping[str, Any], addresses: Iterable[Address], token: Token) -> None:
    """Authenticate with the token at the first broker that answers, and close the connection.

    Raise SaslError if a broker refuses the token, NoBrokerError if no broker has decided.
    """
    until = time.monotonic() + CHECK_S
    reason = "there is no address of a broker"
    for host, port in addresses:
        left = min(_BROKER_S, until - time.monotonic())
        if left <= 0:
            break
        try:
            with socket.create_connection((host, port), left) as plain:
                plain.settimeout(left)
                _authenticate(_secured(settings, plain, host), settings, host, token)
            return
        except (OSError, ValueError, TlsError, ProtocolError) as error:
            reason = f"{host}:{port}: {_described(error, host, settings)}"
    raise NoBrokerError(f"no broker could check the OAuth token: {reason}")


def _described(error: Exception, host: str, settings: Mapping[str, Any]) -> str:
    if isinstance(error, TlsError | ProtocolError | TimeoutError | ConnectionError | socket.gaierror):
        return str(error) or type(error).__name__
    return describe_tls_error(error, host, OwnCertificate(settings))


def _secured(settings: Mapping[str, Any], plain: socket.socket, host: str) -> socket.socket:
    if not str(settings["security_protocol"]).endswith("SSL"):
        return plain
    return TlsContexts(settings).context().wrap_socket(plain, server_hostname=host)


def _authenticate(sock: socket.socket, settings: Mapping[str, Any], host: str, token: Token) -> None:
    numbers = itertools.count()

    def ask(api: ApiKey, version: int, body: Mapping[str, Any]) -> dict[str, Any]:
        sock.sendall(encode_request(api, version, next(numbers), settings.get("client_id"), body))
        size = int.from_bytes(_read(sock, 4), "big")
        if size > _ANSWER_BYTES_MAX:
            raise ProtocolError("the answer is too long for a Kafka broker")
        return decode_response(api, version, _read(sock, size))[1]

    with sock:
        answer = ask(ApiKey.SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": "OAUTHBEARER"})
        if answer["error_code"]:
            offered = ", ".join(sorted(answer["mechanisms"])) or "none"
            raise SaslError(f"the broker does not offer the SASL mechanism OAUTHBEARER; it offers: {offered}")
        credentials = Credentials(token=token.value, token_extensions=dict(token.extensions))
        client = new_client("OAUTHBEARER", credentials, host)
        message = client.respond(None)
        while message is not None:
            answer = ask(ApiKey.SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, {"auth_bytes": message})
            if answer["error_code"]:
                text = server_text(answer["error_message"] or "", [token.value]) or "no reason given"
                raise SaslError(f"the broker refuses the OAuth token: {text}")
            message = client.respond(answer["auth_bytes"])


def _read(sock: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = sock.recv(size - len(found))
        if not data:
            raise ConnectionError("the broker closed the connection; the listener may not use SASL, or uses TLS")
        found += data
    return bytes(found)
