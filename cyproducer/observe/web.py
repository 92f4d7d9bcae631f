"""Answers HTTP requests about this user's senders: metrics, health, the status, and a page that shows it.

| path           | answer                                                                                  |
|----------------|-----------------------------------------------------------------------------------------|
| `/metrics`     | the metrics for Prometheus; status 503 if a sender does not answer, or the one that is  |
|                | named is missing                                                                        |
| `/health`      | JSON as `cyproducer health --json`, with status 200 if all senders work, otherwise 503   |
| `/status.json` | JSON as `cyproducer status --json`, of running senders                                  |
| `/`            | a page that shows the status, and asks for it every two seconds                         |
"""

import errno
import functools
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Iterable
from importlib import resources
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from cyproducer.errors import SenderUnavailableError
from cyproducer.observe import prometheus
from cyproducer.observe.status import health, status

__all__ = ["serve"]

Answer = tuple[str, str, bytes]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]
_HTML, _JSON, _TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
#: The page has its style and its script inside, and asks nobody else.
_HEADERS = [
    ("Cache-Control", "no-store"),
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
     "connect-src 'self'; base-uri 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
]  # fmt: skip


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind the socket without asking for the name of this host, as HTTPServer does: that can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 30  # of a client that sends no request

    def log_message(self, format: str, *args: Any) -> None:
        """Write no line for each request."""


class _Application:
    def __init__(self, path: str | None) -> None:
        self._metrics = prometheus.application(path)
        page = resources.files(__package__).joinpath("page.html").read_bytes()
        self._pages: dict[str, Callable[[], Answer]] = {
            "/": lambda: ("200 OK", _HTML, page),
            "/health": functools.partial(_health, path),
            "/status.json": functools.partial(_status, path),
        }

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        try:
            if environ["PATH_INFO"] == "/metrics":
                found: Iterable[bytes] = self._metrics(environ, start_response)
                return found
            answer = self._page(environ)
        except SenderUnavailableError as error:
            answer = "503 Service Unavailable", _TEXT, f"{error}\n".encode()
        code, kind, body = answer
        start_response(code, [("Content-Type", kind), ("Content-Length", str(len(body))), *_HEADERS])
        return [body if environ["REQUEST_METHOD"] != "HEAD" else b""]

    def _page(self, environ: dict[str, Any]) -> Answer:
        page = self._pages.get(environ["PATH_INFO"])
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            return "405 Method Not Allowed", _TEXT, b"only GET\n"
        if page is None:
            return "404 Not Found", _TEXT, b"there are /, /health, /metrics and /status.json\n"
        return page()


def _health(path: str | None) -> Answer:
    found = health(path)
    works = all(each["ok"] for each in found)
    return "200 OK" if works else "503 Service Unavailable", _JSON, json.dumps(found, indent=2).encode()


def _status(path: str | None) -> Answer:
    return "200 OK", _JSON, json.dumps(status(path)).encode()


def serve(port: int, address: str, path: str | None = None) -> str:
    """Answer requests in a background thread, as long as this process runs. Return the URL of the page.

    port      of TCP; 0: any free one
    address   of this host, for example 127.0.0.1 or ::1
    path      the socket of a sender; default: all senders of this user

    Raise KafkaConfigurationError without the library prometheus_client, OSError if it cannot listen there.
    """
    kind = _Server6 if ":" in address else _Server
    try:
        server = make_server(address, port, _Application(path), kind, _QuietHandler)
    except OSError as error:
        advice = f"`ss -ltnp` shows who uses port {port}" if error.errno == errno.EADDRINUSE else "check the address"
        text = f"cannot listen on {address} port {port}: {error.strerror}; {advice}, or choose another one"
        raise OSError(error.errno, text) from None
    threading.Thread(target=server.serve_forever, name="cyproducer-web", daemon=True).start()
    host = f"[{address}]" if ":" in address else address
    return f"http://{host}:{server.server_port}/"
