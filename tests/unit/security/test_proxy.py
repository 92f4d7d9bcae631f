"""Tests the messages to a proxy and its answers, in any pieces: SOCKS5 and CONNECT of HTTP."""

import base64
from typing import Any

import pytest

from cyproducer.security.proxy import Proxy, ProxyError

USER = {"proxy_username": "u", "proxy_password": "p"}
GREETING, GREETING_OF_USER = b"\5\1\0", b"\5\2\0\2"
CONNECTED = b"\5\0\0\1\0\0\0\0\0\0"


def proxy(scheme: str, **settings: Any) -> Proxy:
    return Proxy({"proxy_url": f"{scheme}://proxy:1080", **settings})


def told(of: Proxy, answers: list[bytes], host: str = "kafka", port: int = 9092, pieces: int = 1 << 20) -> list[bytes]:
    """Return the messages to a proxy that gives these answers, each in pieces of so many bytes."""
    talk = of.ask(host, port)
    messages = [next(talk)]
    for number, answer in enumerate(answers):
        parts = [answer[at : at + pieces] for at in range(0, len(answer), pieces)]
        for part in parts[:-1]:
            assert talk.send(part) == b""
        try:
            messages.append(talk.send(parts[-1]))
        except StopIteration:
            assert number == len(answers) - 1, "it has ended too early"
            return messages
    raise AssertionError("the connection is not made")


@pytest.mark.parametrize("pieces", [1, 3, 1000])
@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("kafka", b"\3\5kafka"),
        ("10.0.0.7", b"\1\x0a\0\0\7"),
        ("2001:db8::1", b"\4\x20\1\x0d\xb8" + bytes(11) + b"\1"),
    ],
)
def test_socks(host: str, address: bytes, pieces: int) -> None:
    """The name goes to the proxy as it is: it may be known only there."""
    found = told(proxy("socks5"), [b"\5\0", CONNECTED], host, 9093, pieces)
    assert found == [GREETING, b"\5\1\0" + address + b"\x23\x85"]


@pytest.mark.parametrize("end", [b"\1" + bytes(6), b"\4" + bytes(18), b"\3\3abc" + bytes(2)], ids=["4", "6", "name"])
@pytest.mark.parametrize("pieces", [1, 1000])
def test_the_answer_of_socks_may_have_any_address(end: bytes, pieces: int) -> None:
    assert len(told(proxy("socks5"), [b"\5\0", b"\5\0\0" + end], pieces=pieces)) == 2


def test_a_name_that_is_not_ascii() -> None:
    assert told(proxy("socks5"), [b"\5\0", CONNECTED], "kafka-ü")[1][:5] == b"\5\1\0\3\x0e"
    (message,) = told(proxy("http"), [b"HTTP/1.1 200 OK\r\n\r\n"], "kafka-ü")
    assert message.startswith(b"CONNECT xn--kafka--8ya:9092 ")


@pytest.mark.parametrize(("scheme", "host"), [("http", "a b"), ("http", "a\r\nX: y"), ("socks5", "ü" * 70)])
def test_a_name_that_cannot_be_asked_for(scheme: str, host: str) -> None:
    with pytest.raises(ProxyError, match=r"cannot be asked for|is no name of a host"):
        told(proxy(scheme), [b"\5\0", CONNECTED], host)


@pytest.mark.parametrize(
    ("scheme", "begin", "more"),
    [("http", b"", b"HTTP/1.1 100 C\r\n\r\n"), ("http", b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"), ("http", b"", b"x")],
)
def test_an_answer_that_does_not_end(scheme: str, begin: bytes, more: bytes) -> None:
    talk = proxy(scheme).ask("kafka", 9092)
    next(talk)
    with pytest.raises(ProxyError):
        talk.send(begin + more)
        for _ in range(20_000):
            talk.send(more)


def test_credentials_of_socks() -> None:
    found = told(proxy("socks5", **USER), [b"\5\2", b"\1\0", CONNECTED])
    assert found[:2] == [GREETING_OF_USER, b"\1\1u\1p"]
    assert told(proxy("socks5", **USER), [b"\5\0", CONNECTED])[0] == GREETING_OF_USER, "the proxy demands none"
    assert len(told(proxy("socks5", **USER), [b"\5\2", b"\5\0", CONNECTED])) == 3, "as some proxies answer"


@pytest.mark.parametrize(
    ("settings", "answers", "said", "is_refusal"),
    [
        ({}, [b"\5\xff"], "demands a user and a password", True),
        ({}, [b"\5\2"], "demands a user and a password", True),
        (USER, [b"\5\xff"], "accepts no user and password", True),
        (USER, [b"\5\2", b"\1\1"], "refuses the user 'u' or the password", True),
        ({}, [b"\5\0", b"\5\5\0\1" + bytes(6)], "cannot connect to kafka:9092: connection refused", False),
        ({}, [b"\5\0", b"\5\4\0\1" + bytes(6)], "cannot connect to kafka:9092: host unreachable", False),
        ({}, [b"\4\0"], "no valid answer of SOCKS5", False),
        ({}, [b"HTTP/1.1 400"], "no valid answer of SOCKS5", False),
        ({}, [b"\5\0", b"\5\0\0\x33" + bytes(6)], "no valid answer of SOCKS5", False),
        ({}, [b"\5\0", b"\5\x55\0\1" + bytes(6)], "cannot connect to kafka:9092: code 85", False),
        ({}, [b"\5\0", b"\5\2"], "cannot connect to kafka:9092: connection not allowed by ruleset", False),
    ],
)
def test_errors_of_socks(settings: dict[str, str], answers: list[bytes], said: str, is_refusal: bool) -> None:
    with pytest.raises(ProxyError) as caught:
        told(proxy("socks5", **settings), answers)
    assert said in str(caught.value)
    assert caught.value.is_refusal == is_refusal


@pytest.mark.parametrize("pieces", [1, 7, 1000])
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 Connection established\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nProxy-Agent: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    ],
)
def test_http(answer: bytes, pieces: int) -> None:
    (message,) = told(proxy("http"), [answer], pieces=pieces)
    assert message == b"CONNECT kafka:9092 HTTP/1.1\r\nHost: kafka:9092\r\n\r\n"


def test_http_with_credentials_and_an_address() -> None:
    (message,) = told(proxy("http", **USER), [b"HTTP/1.1 200 OK\r\n\r\n"], "2001:db8::1")
    assert message.startswith(b"CONNECT [2001:db8::1]:9092 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic " + base64.b64encode(b"u:p") + b"\r\n" in message


@pytest.mark.parametrize(
    ("settings", "answer", "said", "is_refusal"),
    [
        ({}, b"HTTP/1.1 407 Who\r\nContent-Length: 2\r\n\r\nno", "demands a user and a password", True),
        (USER, b"HTTP/1.1 407 Who\r\n\r\n", "refuses the user 'u'", True),
        ({}, b"HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nbad", "it answers with the status 502", False),
        ({}, b"\5\0\r\n\r\n", "no valid answer of HTTP", False),
        ({}, b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "does not end its answer", False),
        ({}, b"HTTP/1.1 200 OK\r\n\r\nmore", "has sent data before the broker was asked", False),
    ],
)
def test_errors_of_http(settings: dict[str, str], answer: bytes, said: str, is_refusal: bool) -> None:
    with pytest.raises(ProxyError) as caught:
        told(proxy("http", **settings), [answer])
    assert said in str(caught.value)
    assert caught.value.is_refusal == is_refusal


@pytest.mark.parametrize(("scheme", "module"), [("socks5", "socksio"), ("http", "h11")])
def test_a_library_that_is_missing(scheme: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(ProxyError, match=r"pip install 'cyproducer\[proxy\]'"):
        next(proxy(scheme).ask("kafka", 9092))
