"""Tests the exchanges of SASL in the helper: their ends, and which brokers are asked to check an OAuth token."""

import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.asking import Asked, Asking, helpers
from support.process import kill9, wait_until

from cyproducer.security.login import Login
from cyproducer.security.mechanism import SaslError
from cyproducer.sender.cluster import sasl_login
from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.broker import Backoffs, Broker
from cyproducer.sender.cluster.sasl_login import SaslLogin, SaslStep
from cyproducer.sender.cluster.supplied_tokens import Refusal

SETTINGS = {
    "bootstrap_servers": ["alias:9093", "unknown:9094"],
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_kerberos_service_name": "kafka",
    "client_id": "c",
}
PLAIN = SETTINGS | {"sasl_mechanism": "PLAIN"}
AGAIN = "SASL failed: the process for it was started again; the next attempt may succeed"
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
    settings, results = SETTINGS | {"client_dns_lookup": lookup}, list[Refusal | None]()
    asking = Asking(sasl_login.jobs(settings))
    login = SaslLogin(settings, asking.helper, asking.tasks, {0: Broker(1, "known", 9095, BACKOFFS)})
    try:
        assert login.tokens is not None
        login.tokens.accept_new("a token", None, {}, results.append)
        asking.tasks.run(0)
        while not results:
            asking.turn()
    finally:
        asking.close()
    assert results == [Refusal("TOKEN", asked)]


class Client:
    """A mechanism with one message for each challenge."""

    mechanism, may_block, server_error, advice, secrets = "PLAIN", True, "", "check it", ("secret",)

    def __init__(self, host: str) -> None:
        self.host, self.complete = host, False

    def respond(self, challenge: bytes | None) -> bytes | None:
        if self.host == "hangs" or challenge == b"hang":
            time.sleep(1000)
        if challenge == b"fail":
            raise ValueError("a secret")
        if challenge == b"refuse":
            raise SaslError("the broker does not know the password")
        self.complete = challenge == b"end"
        return None if self.complete or self.host == "silent" else b"secret of " + self.host.encode()


@pytest.fixture
def asking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Asking]:
    monkeypatch.setattr(Login, "client", lambda self, host, token=None: Client(host))
    asking = Asking(sasl_login.jobs(PLAIN))
    yield asking
    asking.close()


@pytest.fixture
def login(asking: Asking) -> SaslLogin:
    return SaslLogin(PLAIN, asking.helper, asking.tasks, {})


def failure(asked: Asked) -> tuple[str, bool]:
    """Return the error of a message, and whether another attempt may succeed."""
    with pytest.raises(SaslError) as caught:
        asked.wait()
    return str(caught.value), caught.value.retryable


def test_an_exchange(asking: Asking, login: SaslLogin) -> None:
    exchange = login.new_exchange(7)
    assert asking.start(login.begin(exchange, "b")).wait() == SaslStep(b"secret of b", False)
    assert (exchange.advice, exchange.secrets) == ("check it", ("secret",))
    assert asking.start(login.go_on(exchange, b"more")).wait() == SaslStep(b"secret of b", False)
    assert asking.start(login.go_on(exchange, b"end")).wait() == SaslStep(None, True)
    assert "was started again" in failure(asking.start(login.go_on(exchange, b"end")))[0], "it is forgotten"


def test_errors_of_an_exchange(asking: Asking, login: SaslLogin) -> None:
    for challenge, error in (
        (b"fail", ("SASL failed: ValueError", True)),
        (b"refuse", ("the broker does not know the password", False)),
    ):
        exchange = login.new_exchange(7)
        asking.start(login.begin(exchange, "b")).wait()
        assert failure(asking.start(login.go_on(exchange, challenge))) == error
    silent = asking.start(login.begin(login.new_exchange(7), "silent"))
    assert failure(silent) == ("SASL failed: the client has no first message", True)


def test_an_exchange_ends_with_its_helper(asking: Asking, login: SaslLogin) -> None:
    """The next helper cannot go on with it, but it can begin another one."""
    exchange = login.new_exchange(1)
    asking.start(login.begin(exchange, "b")).wait()
    waiting = asking.start(login.go_on(exchange, b"hang"))
    beginning = asking.start(login.begin(login.new_exchange(2), "b"))
    (pid,) = helpers()
    kill9(pid)
    assert failure(waiting) == (AGAIN, True)
    assert beginning.wait().message == b"secret of b"
    assert failure(asking.start(login.go_on(exchange, b"more"))) == (AGAIN, True)


def test_a_message_that_ends_the_helper_twice(asking: Asking, login: SaslLogin) -> None:
    hanging = asking.start(login.begin(login.new_exchange(1), "hangs"))
    for _ in range(2):
        (pid,) = wait_until(helpers, 20, "a helper")
        kill9(pid)
        asking.turn()
    assert failure(hanging) == ("SASL failed: the process for it has ended", True)


def test_a_connection_that_begins_again_has_one_exchange() -> None:
    """The first message of the former one may come after that of the next one."""
    jobs = sasl_login._Jobs(PLAIN)
    clients = {number: Client(str(number)) for number in (1, 2, 3)}
    for number in (1, 3, 2):
        jobs._respond({"node": 7, "number": number}, clients[number], None)  # type: ignore[arg-type]
    assert jobs._clients == {7: (3, clients[3])}
    with pytest.raises(SaslError, match="was started again"):
        jobs.go_on({"node": 7, "number": 2, "challenge": ""})
    assert jobs._clients == {7: (3, clients[3])}
    jobs._respond({"node": 8, "number": 4}, clients[1], None)  # type: ignore[arg-type]
    assert [number for number, _ in jobs._clients.values()] == [3, 4]
