"""Makes the SASL messages of the connections in a process beside the sender.

A mechanism may compute for long (SCRAM) or wait for a server (Kerberos, a token endpoint). The sender's loop must not
wait for that. So it asks a helper process for each message, and gets the answer through `collect()`.
"""

import base64
import contextlib
import functools
import gc
import itertools
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cyproducer.host import control_messages
from cyproducer.security.login import Login
from cyproducer.security.mechanism import SaslClient, SaslError
from cyproducer.security.token_check import check_token
from cyproducer.security.token_source import Token
from cyproducer.sender.cluster.broker import Broker
from cyproducer.sender.cluster.resolver import CANONICAL_NAMES, canonical_names, host_port
from cyproducer.sender.cluster.supplied_tokens import SuppliedTokens
from cyproducer.sender.system.daemonise import forbid_core_dumps
from cyproducer.sender.system.helper_process import HelperProcess

__all__ = ["Answer", "Exchange", "SaslLogin"]

#: How the settings begin that the helper uses. Those of TLS and the brokers are for the check of a token.
_USED = ("sasl_", "https_", "ssl_", "security_protocol", "bootstrap_servers", "client_id", "client_dns_lookup")


class Answer(NamedTuple):
    """What the helper says to a challenge: the next message (None: nothing to send), or why SASL has failed.

    complete    the checks of the client, or the check of a token, have passed
    undecided   the error is no refusal: another attempt may succeed
    advice      what to do if the broker refuses the message
    secrets     what the broker has got with this message, and no text of it may show
    """

    message: bytes | None
    complete: bool
    error: str
    undecided: bool = False
    advice: str = ""
    secrets: tuple[str, ...] = ()


Then = Callable[[Answer], None]


class Exchange:
    """The SASL exchange of one connection.

    advice      what to do if the broker refuses the last message
    secrets     what the broker has got, and no text of it may show
    """

    def __init__(self, number: int, mechanism: str) -> None:
        self.number = number
        self.mechanism = mechanism
        self.advice = ""
        self.secrets: tuple[str, ...] = ()


class SaslLogin:
    """Asks the helper process for SASL messages. `fd` is readable when answers wait for `collect()`.

    settings: all settings of the sender; those of security are used.
    ready: the brokers that are connected, which can check a token; by node.
    tokens: the OAuth tokens that front-ends supply; None: the credentials are in the settings.
    """

    def __init__(self, settings: Mapping[str, Any], ready: Mapping[int, Broker]) -> None:
        self._ready = ready
        self.mechanism: str = settings["sasl_mechanism"]
        self.tokens: SuppliedTokens | None = None
        if self.mechanism == "OAUTHBEARER" and not settings.get("sasl_oauthbearer_token_endpoint_url"):
            self.tokens = SuppliedTokens(settings, self._check_token)
        used = {name: value for name, value in settings.items() if name.startswith(_USED)}
        self._helper = HelperProcess("cyp-sasl", functools.partial(_serve, used))
        self.fd = self._helper.fd
        self._next = 0
        self._waiting: dict[int, Then] = {}

    def __repr__(self) -> str:
        return f"SaslLogin({self.mechanism})"

    def new_exchange(self) -> Exchange:
        exchange = Exchange(self._next, self.mechanism)
        self._next += 1
        return exchange

    def begin(self, exchange: Exchange, host: str, then: Then) -> None:
        """Begin an exchange with a broker. `then` gets the first message, perhaps before this returns."""
        question = {"do": "begin", "number": exchange.number, "host": host}
        if self.tokens is not None:
            token, error = self.tokens.usable()
            if token is None:
                then(Answer(None, False, error, undecided=True))
                return
            question["token"], question["extensions"] = token.value, dict(token.extensions)
        self._ask(question, exchange, then)

    def go_on(self, exchange: Exchange, challenge: bytes, then: Then) -> None:
        """Answer a challenge of the broker. `then` gets the next message."""
        encoded = base64.b64encode(challenge).decode()
        self._ask({"do": "go_on", "number": exchange.number, "challenge": encoded}, exchange, then)

    def end(self, exchange: Exchange) -> None:
        """Forget an exchange that is complete, or whose connection has ended."""
        self._waiting.pop(exchange.number, None)
        if not self._helper.is_running:
            return
        with contextlib.suppress(OSError, control_messages.HandshakeError):
            self._helper.ask({"do": "end", "number": exchange.number})

    def _check_token(self, token: Token, then: Callable[[Answer], None]) -> None:
        exchange = self.new_exchange()
        known = [(broker.checked_host, broker.port) for broker in self._ready.values()]
        fields = {"token": token.value, "extensions": dict(token.extensions), "brokers": known}
        self._ask({"do": "check", "number": exchange.number, **fields}, exchange, then)

    def _ask(self, question: dict[str, Any], exchange: Exchange, then: Then) -> None:
        self._waiting[exchange.number] = then
        try:
            self._helper.ask(question)
        except (OSError, control_messages.HandshakeError) as error:
            del self._waiting[exchange.number]
            then(Answer(None, False, f"SASL failed: the process for it cannot be asked ({error})", True))

    def collect(self) -> None:
        """Deliver the answers that have arrived. If the helper has ended, all exchanges fail."""
        for answer, _ in self._helper.answers():
            if answer is None:
                waiting, self._waiting = self._waiting, {}
                for then in waiting.values():
                    then(Answer(None, False, "SASL failed: the process for it has ended", True))
                return
            then_one = self._waiting.pop(answer["number"], None)
            if then_one is not None:
                message = base64.b64decode(answer["message"]) if answer.get("message") is not None else None
                then_one(
                    Answer(
                        message,
                        answer.get("complete", False),
                        answer.get("error", ""),
                        answer.get("undecided", False),
                        answer.get("advice", ""),
                        _parts(message, answer.get("secrets", ())),
                    )
                )

    def close(self) -> None:
        """Drop the exchanges and end the helper. A second call does nothing."""
        self._waiting.clear()
        self._helper.close()
        self.fd = self._helper.fd


def _places(message: bytes, secrets: Iterable[str]) -> list[tuple[int, int]]:
    """Return where the secrets are in a message. A token may fill the socket's buffer, so it is sent once."""
    parts = [secret.encode() for secret in secrets]
    return [(message.find(part), len(part)) for part in parts if part in message]


def _parts(message: bytes | None, places: Iterable[tuple[int, int]]) -> tuple[str, ...]:
    return tuple((message or b"")[at : at + length].decode() for at, length in places)


# ---------------------------------------------------------------------- the helper


def _serve(settings: Mapping[str, Any], sock: socket.socket) -> None:
    gc.enable()  # this process lives as long as the sender
    forbid_core_dumps()  # one would have the keys and tickets of Kerberos
    helper = _Helper(settings, sock)
    while True:
        question, _ = control_messages.receive(sock)
        if question is None:
            return
        helper.take(question)


class _Helper:
    """Answers the questions of the sender, each in a thread: some wait for a server."""

    def __init__(self, settings: Mapping[str, Any], sock: socket.socket) -> None:
        self._settings = settings
        self._login = Login(settings)
        self._socket = sock
        self._clients: dict[int, SaslClient | None] = {}

    def take(self, question: dict[str, Any]) -> None:
        if question["do"] == "end":
            self._clients.pop(question["number"], None)
            return
        if question["do"] == "begin":
            self._clients[question["number"]] = None
        threading.Thread(target=self._answer, args=(question,), daemon=True).start()

    def _answer(self, question: dict[str, Any]) -> None:
        number = question["number"]
        answer: dict[str, Any] = {"number": number}
        try:
            if question["do"] == "check":
                known = [(str(host), int(port)) for host, port in question["brokers"]]
                check_token(self._settings, itertools.chain(known, self._bootstrap()), _token_of(question))
                answer["complete"] = True
            else:
                client, challenge = self._client(question)
                message = client.respond(challenge)
                answer["message"] = None if message is None else base64.b64encode(message).decode()
                answer["complete"] = client.complete
                answer["advice"], answer["secrets"] = client.advice, _places(message or b"", client.secrets)
        except SaslError as error:
            answer["error"], answer["undecided"] = str(error), error.retryable
        except Exception as error:  # its text may show a secret
            answer["error"], answer["undecided"] = f"SASL failed: {type(error).__name__}", True
        with contextlib.suppress(OSError):  # the sender is gone
            try:
                control_messages.send(self._socket, answer)
            except control_messages.HandshakeError:
                control_messages.send(self._socket, {"number": number, "error": "SASL failed: a message is too long"})

    def _bootstrap(self) -> Iterator[tuple[str, int]]:
        """Yield the addresses of the bootstrap servers, with the names that the certificates must have."""
        for host, port in map(host_port, self._settings["bootstrap_servers"]):
            names = [host]
            if self._settings.get("client_dns_lookup") == CANONICAL_NAMES:
                with contextlib.suppress(OSError, ValueError):  # the check tells what is wrong with the name
                    names = canonical_names(host, port)
            yield from ((name, port) for name in names)

    def _client(self, question: dict[str, Any]) -> tuple[SaslClient, bytes | None]:
        """Return the client of an exchange, and the challenge for it. Raise SaslError."""
        number = question["number"]
        if question["do"] == "begin":
            token = _token_of(question) if "token" in question else None
            client = self._login.client(question["host"], token)
            if number in self._clients:  # the exchange has not ended meanwhile
                self._clients[number] = client
            return client, None
        known = self._clients.get(number)
        if known is None:
            raise SaslError("SASL failed: the process for it was started again; the next attempt may succeed", True)
        return known, base64.b64decode(question["challenge"])


def _token_of(question: dict[str, Any]) -> Token:
    return Token(question["token"], None, question["extensions"])
