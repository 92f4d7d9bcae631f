"""Makes the credentials of a client from its settings, and a SASL client with them for each connection."""

import dataclasses
import threading
import time
from collections.abc import Mapping
from typing import Any

from cyproducer.security.gssapi import use_configuration
from cyproducer.security.sasl import Credentials, SaslClient, SaslError, new_client
from cyproducer.security.token_endpoint import TokenEndpoint
from cyproducer.security.token_file import TokenFile
from cyproducer.security.token_refresher import TokenRefresher
from cyproducer.security.token_source import Token, TokenSource

__all__ = ["TOKEN_WAIT_S", "Login"]

#: How long a connection waits for the first token. The setup of a connection may take 10 s by default.
TOKEN_WAIT_S = 8.0


class Login:
    """The credentials of one client. repr() shows nothing of them.

    settings: the canonical settings ``sasl_*``. A token is fetched when the first client is made, and again before it
    expires, in a thread. Several threads may use this object, and client() may wait for another server.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._mechanism: str = settings["sasl_mechanism"]
        self._settings = settings
        self._credentials = Credentials(
            username=settings.get("sasl_plain_username"),
            password=settings.get("sasl_plain_password"),
            kerberos_service_name=settings["sasl_kerberos_service_name"],
            kerberos_domain_name=settings.get("sasl_kerberos_domain_name"),
            kerberos_principal=settings.get("sasl_kerberos_principal"),
            kerberos_keytab=settings.get("sasl_kerberos_keytab"),
            kerberos_ticket_cache=settings.get("sasl_kerberos_ticket_cache"),
        )
        if self._mechanism == "GSSAPI":
            use_configuration(settings.get("sasl_kerberos_config"))
        self._news = threading.Condition()
        self._lock = threading.Lock()
        self._refresher: TokenRefresher | None = None

    def __repr__(self) -> str:
        return f"Login({self._mechanism})"

    def client(self, host: str, token: Token | None = None) -> SaslClient:
        """Return a client for a connection to a broker; `token`: instead of one of the source. Raise SaslError."""
        credentials = self._credentials
        if self._mechanism == "OAUTHBEARER":
            token = token or self._token()
            credentials = dataclasses.replace(credentials, token=token.value, token_extensions=dict(token.extensions))
        return new_client(self._mechanism, credentials, host)

    def close(self) -> None:
        """End the thread that keeps a token fresh. A second call does nothing."""
        if self._refresher is not None:
            self._refresher.close()

    def _token(self) -> Token:
        """Return a valid token, and wait for the first one. Raise SaslError."""
        with self._lock:
            if self._refresher is None:
                self._refresher = self._new_refresher()
        until = time.monotonic() + TOKEN_WAIT_S
        with self._news:
            while (token := self._refresher.current()) is None:
                if self._refresher.last_error:
                    raise SaslError(self._refresher.last_error, self._refresher.is_retryable)
                if not self._news.wait(until - time.monotonic()):
                    raise SaslError("no OAuth token came in time; check sasl_oauthbearer_token_endpoint_url", True)
        return token

    def _new_refresher(self) -> TokenRefresher:
        get = self._settings.get
        return TokenRefresher(
            self._source(),
            float(get("sasl_login_refresh_window_factor", 0.8)),
            float(get("sasl_login_refresh_window_jitter", 0.05)),
            float(get("sasl_login_refresh_min_period_seconds", 60)),
            float(get("sasl_login_refresh_buffer_seconds", 300)),
            retry_backoff_ms=float(get("sasl_login_retry_backoff_ms", 100)),
            retry_backoff_max_ms=float(get("sasl_login_retry_backoff_max_ms", 10_000)),
            on_change=self._notify,
        )

    def _source(self) -> TokenSource:
        get = self._settings.get
        url = get("sasl_oauthbearer_token_endpoint_url")
        if not url:
            raise SaslError("OAUTHBEARER has no source of tokens; set sasl_oauthbearer_token_endpoint_url")
        extensions = get("sasl_oauthbearer_extensions") or {}
        if url.lower().startswith("file:"):
            return TokenFile(url, extensions)
        connect_ms, read_ms = get("sasl_login_connect_timeout_ms"), get("sasl_login_read_timeout_ms")
        return TokenEndpoint(
            url,
            get("sasl_oauthbearer_client_credentials_client_id") or "",
            get("sasl_oauthbearer_client_credentials_client_secret") or "",
            get("sasl_oauthbearer_scope"),
            extensions=extensions,
            urlencode=bool(get("sasl_oauthbearer_header_urlencode")),
            cafile=get("https_ca_location"),
            connect_timeout_s=None if connect_ms is None else connect_ms / 1000,
            read_timeout_s=None if read_ms is None else read_ms / 1000,
        )

    def _notify(self) -> None:
        with self._news:
            self._news.notify_all()
