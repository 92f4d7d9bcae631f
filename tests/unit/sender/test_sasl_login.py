"""Tests which brokers the sender's helper process asks to check an OAuth token."""

import select
import socket
from typing import Any

import pytest

from cyproducer.security.mechanism import SaslError
from cyproducer.sender.cluster import sasl_login
from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.broker import Backoffs, Broker
from cyproducer.sender.cluster.sasl_login import SaslLogin
from cyproducer.sender.cluster.supplied_tokens import Refusal

SETTINGS = {
    "bootstrap_servers": ["alias:9093", "unknown:9094"],
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_kerberos_service_name": "kafka",
    "client_id": "c",
}
BACKOFFS = Backoffs(ExponentialBackoff(1, 1), ExponentialBackoff(1, 1))
NAMES = {"192.0.2.1": "one.example", "192.0.2.2": "two.example", "192.0.2.3": "one.example"}


def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[Any, ...]]:
    """Replace the system's look-up: "alias" has three addresses."""
    if host != "alias":
        raise socket.gaierror(-2, "Name or service not known")
    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in NAMES]


def check_token(settings: Any, addresses: Any, token: Any) -> None:
    """Replace the check: tell the addresses that would be asked."""
    raise SaslError(" ".join(f"{host}:{port}" for host, port in addresses))


@pytest.mark.parametrize(
    ("lookup", "asked"),
    [
        ("use_all_dns_ips", "known:9095 alias:9093 unknown:9094"),
        ("resolve_canonical_bootstrap_servers_only", "known:9095 one.example:9093 two.example:9093 unknown:9094"),
    ],
)
def test_the_check_of_a_token_asks_bootstrap_servers_by_the_names_of_the_connections(
    monkeypatch: pytest.MonkeyPatch, lookup: str, asked: str
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(socket, "getnameinfo", lambda address, flags: (NAMES[address[0]], str(address[1])))
    monkeypatch.setattr(sasl_login, "check_token", check_token)
    results: list[Refusal | None] = []
    login = SaslLogin(SETTINGS | {"client_dns_lookup": lookup}, {0: Broker(1, "known", 9095, BACKOFFS)})
    try:
        assert login.tokens is not None
        login.tokens.take_new("a token", None, {}, results.append)
        poller = select.poll()
        poller.register(login.fd, select.POLLIN)
        while not results:
            assert poller.poll(20_000), "no answer"
            login.collect()
    finally:
        login.close()
    assert results == [Refusal("TOKEN", asked)]
