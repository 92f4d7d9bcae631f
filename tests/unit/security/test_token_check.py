"""Tests the check of an OAuth token at a broker: its limits of time, and which of several brokers decides."""

import base64
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from support.process import wait_until

from cyproducer.security import token_check
from cyproducer.security.mechanism import SaslError
from cyproducer.security.token_check import check_token
from cyproducer.security.token_source import Token

SETTINGS = {"security_protocol": "SASL_PLAINTEXT", "client_id": "c"}
TOKEN = Token("the-token", None, {})
MECHANISMS = struct.pack(">hih11s", 0, 1, 11, b"OAUTHBEARER")
ACCEPTED = struct.pack(">hhi", 0, -1, 0)
REFUSED = struct.pack(">hh2si", 58, 2, b"no", 0)

Broker = Callable[[socket.socket], None]


class Brokers:
    """Listens for connections, and handles each with a function in a thread, until close()."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def start(self, handle: Broker) -> tuple[str, int]:
        listening = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(listening)
        self._run(self._accept, listening, handle)
        address: tuple[str, int] = listening.getsockname()
        return address

    def _run(self, function: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=function, args=arguments))
        self._threads[-1].start()

    def _accept(self, listening: socket.socket, handle: Broker) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                self._sockets.append(connection)
                self._run(self._handle, connection, handle)

    @staticmethod
    def _handle(connection: socket.socket, handle: Broker) -> None:
        with suppress(OSError), connection:
            handle(connection)

    def close(self) -> None:
        for each in list(self._sockets):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(30)


def answering(*bodies: bytes) -> Broker:
    """Return a broker that answers the requests of each connection with these bodies."""

    def handle(connection: socket.socket) -> None:
        for body in bodies:
            size = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
            request = connection.recv(size, socket.MSG_WAITALL)
            connection.sendall(struct.pack(">i4s", len(body) + 4, request[4:8]) + body)

    return handle


def hanging_up(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(1000):
        pass


def trickling(connection: socket.socket) -> None:
    """Send one byte after the other, until the other end has gone."""
    connection.sendall((1 << 20).to_bytes(4, "big"))
    while True:
        connection.sendall(b"\0")
        time.sleep(0.01)


@pytest.fixture
def brokers() -> Iterator[Brokers]:
    found = Brokers()
    yield found
    found.close()


def test_a_broker_decides(brokers: Brokers) -> None:
    check_token(SETTINGS, [brokers.start(answering(MECHANISMS, ACCEPTED))], TOKEN)
    refusing = brokers.start(answering(MECHANISMS, REFUSED))
    with pytest.raises(SaslError, match="the broker refuses the OAuth token: no") as caught:
        check_token(SETTINGS, [refusing], TOKEN)
    assert not caught.value.retryable
    closing = brokers.start(hanging_up)
    repeated = f"no such login: {TOKEN.value} {base64.b64encode(TOKEN.value.encode()).decode()}".encode()
    repeating = struct.pack(f">hh{len(repeated)}si", 58, len(repeated), repeated, 0)
    with pytest.raises(SaslError, match=r"the broker refuses the OAuth token: no such login: <hidden> <hidden>$"):
        check_token(SETTINGS, [brokers.start(answering(MECHANISMS, repeating))], TOKEN)
    check_token(SETTINGS, [closing, brokers.start(answering(MECHANISMS, ACCEPTED))], TOKEN)
    for addresses, reason in (([closing], "the broker closed the connection"), ([], "there is no address of a broker")):
        with pytest.raises(SaslError, match=f"no broker could check .*{reason}") as caught:
            check_token(SETTINGS, addresses, TOKEN)
        assert caught.value.retryable


def test_a_broker_that_answers_byte_by_byte(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time is limited as a whole. Another broker decides then; without one, nobody has decided."""
    monkeypatch.setattr(token_check, "_BROKER_S", 0.2)
    slow, good = brokers.start(trickling), brokers.start(answering(MECHANISMS, ACCEPTED))
    results: list[str] = []

    def check(addresses: list[tuple[str, int]]) -> None:
        try:
            check_token(SETTINGS, addresses, TOKEN)
            results.append("accepted")
        except SaslError as error:
            results.append(str(error))

    for addresses in ([slow, good], [slow]):
        threading.Thread(target=check, args=(addresses,), daemon=True).start()
    wait_until(lambda: len(results) == 2, 30, "the end of both checks")
    assert "accepted" in results
    assert f"no broker could check the OAuth token: 127.0.0.1:{slow[1]}: timed out" in results


def test_the_time_at_all_brokers_together(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_check, "CHECK_S", 0.3)
    slow = brokers.start(trickling)
    asked: list[int] = []

    def addresses() -> Iterator[tuple[str, int]]:
        for number in range(1000):
            asked.append(number)
            yield slow

    with pytest.raises(SaslError, match=r"no broker could check .*timed out"):
        check_token(SETTINGS, addresses(), TOKEN)
    assert asked == [0]
