"""Tests which settings reach the SASL clients, and the source of OAuth tokens."""

import sys
from pathlib import Path
from typing import Any

import pytest
from fake_gssapi import FakeGssapi
from support.unsigned_jwt import jwt
from token_rig import Answer, Server

from cyproducer.config.settings import Settings
from cyproducer.security import login as login_module
from cyproducer.security.login import Login
from cyproducer.security.mechanism import Credentials, SaslError
from cyproducer.security.token_source import Token

SETTINGS = {"bootstrap_servers": "h:9092", "security_protocol": "SASL_SSL"}


def login(**given: Any) -> Login:
    settings = Settings.parse(**SETTINGS, **given)
    return Login(settings.sender_settings() | settings.secrets())


PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.mark.parametrize(
    "given",
    [
        {"sasl_plain_username": "alice", "sasl_plain_password": "of alice"},
        {"sasl_jaas_config": f'{PLAIN_MODULE} required username="alice" password="of alice";'},
    ],
    ids=["settings", "JAAS"],
)
def test_user_and_password(given: dict[str, str]) -> None:
    client = login(sasl_mechanism="PLAIN", **given).client("h")
    assert (client.mechanism, client.respond(None)) == ("PLAIN", b"\0alice\0of alice")


def test_derived_passwords_are_shared_by_the_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    made = login(sasl_mechanism="SCRAM-SHA-256", sasl_plain_username="alice", sasl_plain_password="x")
    seen: list[Credentials] = []
    monkeypatch.setattr(login_module, "new_client", lambda mechanism, credentials, host: seen.append(credentials))
    made.client("h")
    made.client("other")
    assert seen[0] is seen[1]


def test_the_users_settings_of_kerberos_reach_its_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    keytab = tmp_path / "keytab"
    keytab.write_bytes(b"\x05\x02")
    for given, service, credentials in (
        ({"sasl_kerberos_service_name": "events", "sasl_kerberos_domain_name": "cluster"}, "events@cluster", None),
        ({"sasl_kerberos_name": "events@cluster"}, "events@cluster", None),
        (
            {"sasl_kerberos_principal": "alice", "sasl_kerberos_keytab": str(keytab)},
            "kafka@h",
            ("principal alice", {"client_keytab": str(keytab), "ccache": "MEMORY:cyproducer:alice"}),
        ),
        ({"sasl_kerberos_ticket_cache": "FILE:/cache"}, "kafka@h", (None, {"ccache": "FILE:/cache"})),
    ):
        fake = FakeGssapi()
        monkeypatch.setitem(sys.modules, "gssapi", fake)
        login(sasl_mechanism="GSSAPI", **given).client("h").respond(None)
        made = [(kind, options) for kind, options in fake.made if kind != "Name"]
        assert made[-1][1]["name"] == f"host based {service}"
        found = [(options["name"], options["store"]) for kind, options in made if kind == "Credentials"]
        assert found == ([] if credentials is None else [credentials])


def endpoint(url: str, **more: Any) -> Login:
    return login(
        sasl_mechanism="OAUTHBEARER",
        sasl_oauthbearer_token_endpoint_url=url,
        sasl_oauthbearer_client_credentials_client_id="the id",
        sasl_oauthbearer_client_credentials_client_secret="the secret",
        **more,
    )


def test_a_token_of_an_endpoint_is_fetched_once() -> None:
    with Server(Answer.json(access_token=jwt(sub="me", exp=2**31), expires_in=3600)) as server:
        made = endpoint(server.url, sasl_oauthbearer_scope="a b", sasl_oauthbearer_extensions={"one": "1"})
        try:
            first = made.client("h").respond(None)
            assert first is not None
            assert first == made.client("other").respond(None)
            assert b"auth=Bearer " in first
            assert b"\x01one=1\x01" in first
            [request] = server.requests
            assert b"scope=a+b" in request.body or b"scope=a%20b" in request.body
        finally:
            made.close()


def test_a_refused_request_is_the_error_of_the_client() -> None:
    with Server(Answer.json(401, error="invalid_client")) as server:
        made = endpoint(server.url)
        try:
            with pytest.raises(SaslError, match="401"):
                made.client("h")
        finally:
            made.close()


def test_a_token_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(jwt(sub="me", exp=2**31))
    made = login(sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=path.as_uri())
    try:
        message = made.client("h").respond(None)
        assert message is not None
        assert path.read_text().encode() in message
    finally:
        made.close()


def test_settings_of_the_endpoint_and_of_the_refresh(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, authority: Path
) -> None:
    sources: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    refreshers: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    class Refresher:
        last_error = ""

        def __init__(self, *given: Any, **more: Any) -> None:
            refreshers.append((given[1:], more))

        def current(self) -> Token:
            return Token("token", None, {})

    monkeypatch.setattr(login_module, "TokenEndpoint", lambda *given, **more: sources.append((given, more)))
    monkeypatch.setattr(login_module, "TokenRefresher", Refresher)
    endpoint(
        "https://h/token",
        sasl_oauthbearer_scope="scope",
        sasl_oauthbearer_header_urlencode=True,
        sasl_oauthbearer_extensions={"a": "b"},
        https_ca_location=str(authority),
        sasl_login_connect_timeout_ms=1500,
        sasl_login_read_timeout_ms=2500,
        sasl_login_refresh_window_factor=0.6,
        sasl_login_refresh_window_jitter=0.1,
        sasl_login_refresh_min_period_seconds=7,
        sasl_login_refresh_buffer_seconds=8,
        sasl_login_retry_backoff_ms=9,
        sasl_login_retry_backoff_max_ms=10,
    ).client("h")
    [(given, more)] = sources
    assert given == ("https://h/token", "the id", "the secret", "scope")
    assert more == {
        "extensions": {"a": "b"},
        "urlencode": True,
        "cafile": str(authority),
        "connect_timeout_s": 1.5,
        "read_timeout_s": 2.5,
    }
    [(given, more)] = refreshers
    assert given == (0.6, 0.1, 7.0, 8.0)
    assert (more["retry_backoff_ms"], more["retry_backoff_max_ms"]) == (9.0, 10.0)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from devkafka.keys import Keys

    return Keys(tmp_path_factory.mktemp("keys")).ca


def test_repr_shows_nothing() -> None:
    made = login(sasl_mechanism="PLAIN", sasl_plain_username="alice", sasl_plain_password="marked-secret")
    assert repr(made) == "Login(PLAIN)"
