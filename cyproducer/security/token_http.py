"""Sends one HTTP request at a time with limits on time and size, so that another thread can stop it."""

import contextlib
import http.client
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["HttpAnswer", "HttpPost", "TooLongError"]


class TooLongError(Exception):
    """An answer is longer than allowed."""


class HttpAnswer(NamedTuple):
    """The status and the body of an answer. repr() does not show the body, which may be a secret."""

    status: int
    body: bytes

    def __repr__(self) -> str:
        return f"HttpAnswer({self.status}, {len(self.body)} bytes)"


class HttpPost:
    """Sends POST requests to one URL, through the proxy of the environment (https_proxy, no_proxy) if there is one.

    connect_timeout_s   limits each of: connecting to an address, each step of the TLS handshake
    read_timeout_s      limits each of: the wait for a part of the answer, the arrival of its body
    bytes_max           of the body

    It follows no redirection: that would send the credentials of one server to another one.
    """

    def __init__(self, url: str, connect_timeout_s: float, read_timeout_s: float, bytes_max: int) -> None:
        self._url = url
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._cancelled = False

    def post(self, headers: Mapping[str, str], body: bytes, context: ssl.SSLContext | None) -> HttpAnswer:
        """Return the answer, whatever its status is.

        Raise OSError, http.client.HTTPException or ValueError if there is none, and TooLongError.
        """
        opener = urllib.request.OpenerDirector()
        opener.addheaders = [("User-Agent", "cyproducer")]
        opener.add_handler(urllib.request.ProxyHandler())
        opener.add_handler(_Http(self))
        if context is not None:
            opener.add_handler(_Https(self, context))
        request = urllib.request.Request(self._url, body, dict(headers), method="POST")
        try:
            with opener.open(request, timeout=self._connect_timeout_s) as response:
                return HttpAnswer(response.status, self._read(response))
        finally:
            with self._lock:
                self._socket = None

    def cancel(self) -> None:
        """Stop a running request, and refuse further ones. A connection that is being made ends at its time limit."""
        with self._lock:
            self._cancelled = True
            if self._socket is not None:
                # The method of the base class: that of a TLS socket takes its TLS state from the other thread, too.
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def connected(self, connected: socket.socket) -> None:
        """Take the socket of a new connection. Raise OSError after cancel()."""
        with self._lock:
            if self._cancelled:
                raise ConnectionAbortedError("it was stopped")
            self._socket = connected
        connected.settimeout(self._read_timeout_s)

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        deadline = time.monotonic() + self._read_timeout_s
        parts = []
        size = 0
        while part := response.read1(65536):
            parts.append(part)
            size += len(part)
            if size > self._bytes_max:
                raise TooLongError
            if time.monotonic() > deadline:
                raise TimeoutError("timed out")
        if response.length:
            raise http.client.IncompleteRead(b"", response.length)
        return b"".join(parts)


class _Connection(http.client.HTTPConnection):
    """A connection that tells its owner its socket."""

    owner: HttpPost

    def connect(self) -> None:
        super().connect()
        self.owner.connected(self.sock)


class _TlsConnection(http.client.HTTPSConnection):
    """The same with TLS."""

    owner: HttpPost

    def connect(self) -> None:
        super().connect()
        self.owner.connected(self.sock)


class _Http(urllib.request.HTTPHandler):
    def __init__(self, owner: HttpPost) -> None:
        super().__init__()
        self._owner = owner

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> _Connection:
            made = _Connection(host, **options)
            made.owner = self._owner
            return made

        return self.do_open(connection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, owner: HttpPost, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._owner = owner
        self._tls = context

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        def connection(host: str, **options: Any) -> _TlsConnection:
            made = _TlsConnection(host, context=self._tls, **options)
            made.owner = self._owner
            return made

        return self.do_open(connection, req)
