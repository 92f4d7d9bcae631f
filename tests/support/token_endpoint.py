"""Serves a token endpoint of OAuth 2.0 (client credentials, RFC 6749, section 4.4) with signed JWTs, for tests."""

import base64
import http.server
import json
import secrets
import ssl
import threading
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from devkafka.keys import Identity

__all__ = ["TokenEndpoint", "TokenRequest"]

ALGORITHM = "RS256"
ERRORS = {400: "invalid_request", 401: "invalid_client", 503: "temporarily_unavailable"}


@dataclass(frozen=True, slots=True)
class TokenRequest:
    """A request that the endpoint got: its form, its client id (empty without one), and the status of the answer."""

    form: dict[str, str]
    client_id: str
    authorized: bool
    status: int
    at: float = field(default_factory=time.monotonic)


class TokenEndpoint:
    """The endpoint, as a context manager. The attributes without a comment in __init__ can be set while it runs."""

    def __init__(
        self,
        directory: Path,
        *,
        client_id: str = "cyproducer-test",
        client_secret: str | None = None,
        expires_in: float = 3600,
        identity: Identity | None = None,
    ) -> None:
        self.client_id = client_id
        self.client_secret = secrets.token_urlsafe(16) if client_secret is None else client_secret
        self.subject: str | None = None  # of the tokens; None: the client id
        self.expires_in = expires_in  # seconds, of the tokens and in the answer
        self.delay = 0.0  # seconds before each answer
        self.failing: int | None = None  # status of each answer to a request for a token; None: it succeeds
        self.audience = "kafka"
        self.issuer = f"urn:uuid:{uuid.uuid4()}"
        self.requests: list[TokenRequest] = []
        self.jwks_file = directory / "jwks.json"
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._foreign_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._key_id = secrets.token_hex(8)
        self.jwks_file.write_text(json.dumps(self.jwks()))
        self._ending = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.endpoint = self
        scheme = "http"
        if identity is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity.certificate, identity.key, identity.password)
            # The thread of the connection does the handshake: a client that does not go on stops no other one.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        base = f"{scheme}://localhost:{self._server.server_port}"
        self.url = f"{base}/token"
        self.jwks_url = f"{base}/jwks"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="token-endpoint")

    def __repr__(self) -> str:
        return f"TokenEndpoint({self.url})"

    def __enter__(self) -> "TokenEndpoint":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def count(self) -> int:
        """The number of requests for a token."""
        return len(self.requests)

    def forget_requests(self) -> None:
        self.requests.clear()

    def change_secret(self, secret: str | None = None) -> str:
        """Replace the secret of the client by the given or a new one, and return it. Tokens stay valid."""
        self.client_secret = secrets.token_urlsafe(16) if secret is None else secret
        return self.client_secret

    def jwks(self) -> dict[str, Any]:
        """Return the JSON Web Key Set (RFC 7517) with the public key of the tokens."""
        key = jwt.algorithms.RSAAlgorithm.to_jwk(self._key.public_key(), as_dict=True)
        return {"keys": [{**key, "kid": self._key_id, "use": "sig", "alg": ALGORITHM}]}

    def token(
        self,
        subject: str | None = None,
        *,
        expires_in: float | None = None,
        audience: str | None = None,
        issuer: str | None = None,
        scope: str | None = None,
        foreign: bool = False,
    ) -> str:
        """Return a signed token; by default as a request gets it.

        expires_in   may be negative: the token has expired
        foreign      another key signs it, which has the same id and is not in the JWKS
        """
        now = time.time()
        lifetime = self.expires_in if expires_in is None else expires_in
        claims: dict[str, Any] = {
            "sub": subject or self.subject or self.client_id,
            "iss": self.issuer if issuer is None else issuer,
            "aud": self.audience if audience is None else audience,
            "iat": int(min(now, now + lifetime)),
            "exp": int(now + lifetime),
            "jti": str(uuid.uuid4()),
        }
        if scope is not None:
            claims["scope"] = scope
        key = self._foreign_key if foreign else self._key
        return jwt.encode(claims, key, algorithm=ALGORITHM, headers={"kid": self._key_id})

    def answer(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Return status and body of the answer to a request for a token, and keep the request."""
        client_id, secret = _basic(authorization)
        authorized = client_id == self.client_id and secrets.compare_digest(secret, self.client_secret.encode())
        status = 200
        if self.failing is not None:
            status = self.failing
        elif not authorized:
            status = 401
        elif form.get("grant_type") != "client_credentials":
            status = 400
        self.requests.append(TokenRequest(form, client_id, authorized, status))
        self._ending.wait(self.delay)
        if status != 200:
            return status, {"error": ERRORS.get(status, "server_error"), "error_description": "refused"}
        token = self.token(scope=form.get("scope"))
        return status, {"access_token": token, "token_type": "Bearer", "expires_in": int(self.expires_in)}


def _basic(authorization: str) -> tuple[str, bytes]:
    """Return user and password of an Authorization header, both empty if it is not a correct one of the type Basic.

    Kafka encodes the two with percent signs on request only, so they are taken as they are.
    """
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return "", b""
    try:
        user, _, password = base64.b64decode(encoded, validate=True).partition(b":")
        return user.decode(), password
    except ValueError:
        return "", b""


class _Server(http.server.ThreadingHTTPServer):
    """The HTTP server, with the endpoint for its handlers."""

    endpoint: TokenEndpoint

    def handle_error(self, *_: object) -> None:
        """Keep silent: a client may close a connection or refuse the certificate."""


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        if self.path != "/token":
            return self._send(404, {"error": "not_found"})
        form = dict(urllib.parse.parse_qsl(body))
        return self._send(*self.server.endpoint.answer(form, self.headers.get("Authorization", "")))

    def do_GET(self) -> None:
        if self.path != "/jwks":
            return self._send(404, {"error": "not_found"})
        return self._send(200, self.server.endpoint.jwks())

    def log_message(self, *_: object) -> None:
        """Keep silent."""

    def _send(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Length", str(len(content)))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="token"')
        self.end_headers()
        self.wfile.write(content)
