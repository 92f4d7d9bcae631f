"""Looks up the name of a broker, connects to its addresses, and makes a TLS handshake, as a sender does."""

import queue
import socket
import threading
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, cast

from cyproducer.config.settings import Settings
from cyproducer.security.own_certificate import OwnCertificate
from cyproducer.security.tls import TlsContexts, TlsError
from cyproducer.security.tls_errors import describe_tls_error
from cyproducer.shm import system_clock

__all__ = [
    "Attempt",
    "HandshakeError",
    "InThread",
    "Target",
    "connect",
    "look_up",
    "reach",
    "tls_handshake",
]

T = TypeVar("T")


class InThread(Generic[T]):
    """A call in a thread for which the end of the command does not wait: getaddrinfo() cannot be cancelled."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._result: queue.SimpleQueue[tuple[T | None, Exception | None]] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._result.put((self._work(), None))
        except Exception as error:
            self._result.put((None, error))

    def result(self, timeout: float | None = None) -> T:
        """Return what the call returned, or raise what it raised. Raise queue.Empty after `timeout` seconds."""
        found, error = self._result.get(timeout=timeout)
        if error is not None:
            raise error
        return cast(T, found)


class Target(NamedTuple):
    """An address to connect to, as getaddrinfo() returns it."""

    family: int
    address: tuple[Any, ...]


class Attempt(NamedTuple):
    """An attempt to connect to `address`. It took `ms` milliseconds, or `error` says why it failed.

    sock: the connection, which the caller owns.
    """

    address: str
    ms: float = 0.0
    error: str = ""
    sock: socket.socket | None = None


class HandshakeError(Exception):
    """TLS has failed; the text says why, and what to do."""


def look_up(host: str, port: int, timeout: float) -> list[Target]:
    """Return the addresses of a host. Raise OSError with the reason, also if it takes more than `timeout` seconds."""
    thread = InThread(lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    try:
        return [Target(family, address) for family, _, _, _, address in thread.result(timeout)]
    except queue.Empty:
        raise TimeoutError(f"no answer within {timeout:g} s") from None
    except OSError as error:
        raise OSError(error.strerror or str(error)) from None
    except ValueError as error:  # UnicodeError for an invalid name
        raise OSError(str(error)) from None


def connect(target: Target, timeout: float) -> Attempt:
    """Try to connect to an address, for at most `timeout` seconds."""
    shown = str(target.address[0])
    began = system_clock.monotonic()
    sock = None
    try:
        sock = socket.socket(target.family, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        sock.connect(target.address)
    except OSError as error:
        if sock is not None:
            sock.close()
        timed_out = isinstance(error, TimeoutError) and error.errno is None
        return Attempt(shown, error=f"no answer within {timeout:g} s" if timed_out else error.strerror or str(error))
    except BaseException:
        if sock is not None:
            sock.close()
        raise
    return Attempt(shown, (system_clock.monotonic() - began) * 1000, sock=sock)


def reach(host: str, port: int, timeout: float) -> str:
    """Return why no connection to a host can be made; "" if one can."""
    try:
        targets = look_up(host, port, timeout)
    except OSError as error:
        return f"the name {host} cannot be looked up ({error})"
    failed = []
    for target in targets:
        attempt = connect(target, timeout)
        if attempt.sock is not None:
            attempt.sock.close()
            return ""
        failed.append(f"{attempt.address}: {attempt.error}")
    return ", ".join(failed)


def tls_handshake(sock: socket.socket, host: str, settings: Settings) -> str:
    """Make a handshake on a connection. Return the version and the certificate as text.

    `host` is the name that the certificate must have. Raise HandshakeError.
    """
    values = {name: getattr(settings, name) for name in Settings.__slots__ if name.startswith("ssl_")}
    try:
        context = TlsContexts(values).context()
        with context.wrap_socket(sock, server_hostname=host) as secured:
            certificate = secured.getpeercert() or {}
            return f"{secured.version()}, certificate of {_names(certificate)}, valid until {certificate['notAfter']}"
    except TlsError as error:
        raise HandshakeError(str(error)) from None
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError, ssl.CertificateError a ValueError
        if isinstance(error, TimeoutError):
            text = f"no answer to the TLS handshake within {sock.gettimeout():g} s; check the port and the network"
            raise HandshakeError(text) from None
        raise HandshakeError(describe_tls_error(error, OwnCertificate(values))) from None


def _names(certificate: dict[str, Any]) -> str:
    names = [value for _, value in certificate.get("subjectAltName", ())]
    names += [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return ", ".join(dict.fromkeys(names)) or "an unnamed host"
