"""Requests OAuth tokens from a token endpoint with the client credentials grant (RFC 6749, KIP-768)."""

import base64
import http.client
import ipaddress
import json
import math
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote_plus, unquote, urlsplit

from cyproducer.security.server_text import server_text
from cyproducer.security.token_http import HttpAnswer, HttpPost, TooLongError
from cyproducer.security.token_source import TOKEN_BYTES_MAX, Clock, Token, TokenError, jwt_times

__all__ = ["TokenEndpoint"]

_SETTING = "sasl_oauthbearer_token_endpoint_url"
_CLIENT = "sasl_oauthbearer_client_credentials_client"
# Kafka's client has no limit. Then an endpoint that never answers would keep the token from being refreshed forever.
_TIMEOUT_S = 60.0
_SUCCESS = (200, 201)
# The statuses after which Kafka's client does not repeat a request (HttpJwtRetriever.java).
_FATAL = frozenset((400, 401, 402, 403, 404, 405, 406, 407, 409, 410, 411, 412, 413, 414, 415, 501, 505))
_TOKEN_FIELDS = ("access_token", "id_token")
_ERROR_FIELDS = (("error", "error_description"), ("errorCode", "errorSummary"))


class TokenEndpoint:
    """The token endpoint of an identity provider.

    url                                  http or https
    client_id, client_secret             of this client there
    scope                                that is requested; None: the provider decides
    extensions                           of KIP-342, for each token
    urlencode                            whether id and secret are URL-encoded in the header (RFC 6749, section 2.3.1)
    cafile                               the authorities of the endpoint's certificate; None: those of the system
    ssl_context                          is used instead of `cafile`
    connect_timeout_s, read_timeout_s    None or 0: 60 s
    warning                              what is not safe about the URL, or ""

    Raise TokenError for a URL that cannot be used, and for an empty id or secret.
    """

    poll_s: float | None = None

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        scope: str | None = None,
        *,
        extensions: Mapping[str, str] | None = None,
        urlencode: bool = False,
        cafile: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
        connect_timeout_s: float | None = None,
        read_timeout_s: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._shown_url, self.warning = _checked_url(url)
        self._secure = urlsplit(url).scheme == "https"
        client_id, client_secret = client_id.strip(), client_secret.strip()
        if not client_id or not client_secret:
            raise TokenError(
                f"the token endpoint needs a client id and a secret; set {_CLIENT}_id and {_CLIENT}_secret"
            )
        self._headers = _headers(client_id, client_secret, urlencode)
        self._secrets = (client_secret, self._headers["Authorization"].partition(" ")[2], urlsplit(url).query)
        self._body = _body(scope)
        self._extensions = dict(extensions or {})
        self._cafile = cafile
        self._ssl_context = ssl_context
        self._clock = clock or Clock()
        self._connect_timeout_s = connect_timeout_s or _TIMEOUT_S
        self._read_timeout_s = read_timeout_s or _TIMEOUT_S
        self._http = HttpPost(url, self._connect_timeout_s, self._read_timeout_s, TOKEN_BYTES_MAX)

    def __repr__(self) -> str:
        return f"TokenEndpoint({self._shown_url!r})"

    def fetch(self) -> Token:
        """Request a token once. Raise TokenError."""
        started = self._clock.wall()
        try:
            answer = self._http.post(self._headers, self._body, self._tls())
        except TooLongError:
            raise self._error(
                f"has sent more than {TOKEN_BYTES_MAX} bytes", "check that it is a token endpoint"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._no_answer(error) from None
        if answer.status in _SUCCESS:
            return self._token(answer.body, started)
        raise self._refused(answer)

    def changed(self) -> bool:
        """Return False: only fetch() tells whether there is another token."""
        return False

    def cancel(self) -> None:
        """Stop a running fetch(), and refuse further ones."""
        self._http.cancel()

    def _tls(self) -> ssl.SSLContext | None:
        """Return the context for https. It is made for each request, so that a changed file of authorities counts."""
        if not self._secure or self._ssl_context is not None:
            return self._ssl_context
        try:
            return ssl.create_default_context(cafile=self._cafile)
        except OSError as error:
            raise TokenError(
                f"the file {self._cafile} with the authorities of the token endpoint {self._shown_url} cannot be used: "
                f"{error.strerror or error}; set https_ca_location to a file in PEM"
            ) from None

    def _token(self, body: bytes, started: float) -> Token:
        fields = _json_object(body)
        if fields is None:
            raise self._error("has not sent a JSON object", "check that it is a token endpoint")
        values = [fields[name].strip() for name in _TOKEN_FIELDS if isinstance(fields.get(name), str)]
        value = next(filter(None, values), None)
        if value is None:
            raise self._error("has sent no access_token", "check that it is a token endpoint")
        times = jwt_times(value)
        issued_at = times.issued_at if times else None
        expires_at = times.expires_at if times else None
        if expires_at is None:
            lifetime = _lifetime(fields.get("expires_in"))
            if lifetime is None:
                raise self._error(
                    "has sent a token without a lifetime", "let it send expires_in, or a JWT with the claim exp"
                )
            expires_at = started + lifetime
        return Token(value, expires_at, self._extensions, issued_at)

    def _refused(self, answer: HttpAnswer) -> TokenError:
        reason = self._reason(answer.body)
        what = f"has refused the request with HTTP status {answer.status} ({reason or 'no reason given'})"
        if 300 <= answer.status < 400:
            return self._error(what, f"redirections are not followed; set {_SETTING} to the final URL")
        if answer.status in (400, 401, 403):
            return self._error(what, f"check {_CLIENT}_id, {_CLIENT}_secret and sasl_oauthbearer_scope")
        return self._error(what, "check the URL and the provider's log", answer.status not in _FATAL)

    def _reason(self, body: bytes) -> str:
        """Return what an error says (RFC 6749, section 5.2). Other texts are not shown: they may be long pages."""
        fields = _json_object(body) or {}
        for names in _ERROR_FIELDS:
            texts = [fields[name] for name in names if isinstance(fields.get(name), str)]
            if texts:
                return server_text(" - ".join(texts), self._all_secrets())
        return ""

    def _all_secrets(self) -> tuple[str | None, ...]:
        """Return what no text of the endpoint, or of a proxy of the environment, may show."""
        proxies = map(urlsplit, urllib.request.getproxies().values())
        return *self._secrets, *(unquote(each.password) for each in proxies if each.password)

    def _no_answer(self, error: Exception) -> TokenError:
        reason: Any = error
        if isinstance(error, urllib.error.URLError):
            reason = error.reason
        if isinstance(reason, ssl.SSLCertVerificationError):
            return self._error(
                f"has a certificate that is refused: {reason.verify_message}",
                "set https_ca_location to a file with its authority, or correct the host name in the URL",
            )
        if isinstance(reason, TimeoutError):
            limits = f"within {self._connect_timeout_s:g} s (connecting) and {self._read_timeout_s:g} s (answer)"
            return self._error(f"does not answer {limits}", "check the URL, the network and the proxy", True)
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        text = server_text(text, self._all_secrets())
        return self._error(f"cannot be reached: {text}", "check the URL, the network and the proxy", True)

    def _error(self, what: str, advice: str, retryable: bool = False) -> TokenError:
        return TokenError(f"the token endpoint {self._shown_url} {what}; {advice}", retryable)


def _checked_url(url: str) -> tuple[str, str]:
    """Return the URL as it is shown, and a warning. Raise TokenError for one that cannot be used."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isprintable() or " " in url:
        # It is not shown: what is not understood may contain a password.
        raise TokenError(f"the URL of the token endpoint cannot be used; set {_SETTING} to http(s)://host/path")
    if "@" in parts.netloc:
        raise TokenError(f"the URL of the token endpoint contains a user; remove it, and set {_CLIENT}_id and _secret")
    shown = f"{parts.scheme}://{parts.netloc}{parts.path}"
    warning = ""
    if parts.scheme == "http" and not _is_loopback(parts.hostname or ""):
        warning = f"client secret and tokens are sent to {shown} without encryption; use https in {_SETTING}"
    return shown, warning


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".") == "localhost"


def _headers(client_id: str, client_secret: str, urlencode: bool) -> dict[str, str]:
    if urlencode:
        client_id, client_secret = _form(client_id), _form(client_secret)
    encoded = base64.b64encode(f"{client_id}:{client_secret}".encode(errors="replace")).decode()
    return {
        "Accept": "application/json",
        "Authorization": f"Basic {encoded}",
        "Cache-Control": "no-cache",
        "Content-Type": "application/x-www-form-urlencoded",
    }


def _body(scope: str | None) -> bytes:
    body = "grant_type=client_credentials"
    if scope is not None and scope.strip():
        body += f"&scope={_form(scope.strip())}"
    return body.encode()


def _form(text: str) -> str:
    """Return a text as Java's URLEncoder encodes it, which Kafka's client uses."""
    return quote_plus(text, safe="*", errors="replace").replace("~", "%7E")


def _json_object(body: bytes) -> dict[str, Any] | None:
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _lifetime(value: Any) -> float | None:
    """Return expires_in in seconds; some providers send it as a text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
