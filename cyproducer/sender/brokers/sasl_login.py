"""Makes the SASL messages of the connections in a process beside the sender.

A mechanism may compute for long (SCRAM) or wait for a server (Kerberos, a token endpoint). The sender's loop must not
wait for that. So it asks a helper process for each message, and gets the answer through `collect()`.
"""

import base64
import contextlib
import functools
import gc
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cyproducer.host import control_messages
from cyproducer.security.login import Login
from cyproducer.security.mechanism import SaslClient, SaslError
from cyproducer.sender.system.helper_process import HelperProcess

__all__ = ["Answer", "Exchange", "SaslLogin"]


class Answer(NamedTuple):
    """What the helper says to a challenge: the next message (None: nothing to send), or why SASL has failed.

    complete   the checks of the client have passed
    """

    message: bytes | None
    complete: bool
    error: str


Then = Callable[[Answer], None]


class Exchange:
    """The SASL exchange of one connection."""

    def __init__(self, number: int, mechanism: str) -> None:
        self.number = number
        self.mechanism = mechanism


class SaslLogin:
    """Asks the helper process for SASL messages. `fd` is readable when answers wait for `collect()`.

    settings: all settings of the sender; those of SASL are used.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.mechanism: str = settings["sasl_mechanism"]
        used = {name: value for name, value in settings.items() if name.startswith(("sasl_", "https_"))}
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
        self._ask({"do": "begin", "number": exchange.number, "host": host}, exchange, then)

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

    def _ask(self, question: dict[str, Any], exchange: Exchange, then: Then) -> None:
        self._waiting[exchange.number] = then
        try:
            self._helper.ask(question)
        except (OSError, control_messages.HandshakeError) as error:
            del self._waiting[exchange.number]
            then(Answer(None, False, f"SASL failed: the process for it cannot be asked ({error})"))

    def collect(self) -> None:
        """Deliver the answers that have arrived. If the helper has ended, all exchanges fail."""
        for answer, _ in self._helper.answers():
            if answer is None:
                waiting, self._waiting = self._waiting, {}
                for then in waiting.values():
                    then(Answer(None, False, "SASL failed: the process for it has ended"))
                return
            then_one = self._waiting.pop(answer["number"], None)
            if then_one is not None:
                message = answer.get("message")
                then_one(
                    Answer(
                        None if message is None else base64.b64decode(message),
                        answer.get("complete", False),
                        answer.get("error", ""),
                    )
                )

    def close(self) -> None:
        """Drop the exchanges and end the helper. A second call does nothing."""
        self._waiting.clear()
        self._helper.close()
        self.fd = self._helper.fd


# ---------------------------------------------------------------------- the helper


def _serve(settings: Mapping[str, Any], sock: socket.socket) -> None:
    gc.enable()  # this process lives as long as the sender
    helper = _Helper(Login(settings), sock)
    while True:
        question, _ = control_messages.receive(sock)
        if question is None:
            return
        helper.take(question)


class _Helper:
    """Answers the questions of the sender, each in a thread: some wait for a server."""

    def __init__(self, login: Login, sock: socket.socket) -> None:
        self._login = login
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
            client = self._clients.get(number)
            challenge = None
            if question["do"] == "begin":
                client = self._login.client(question["host"])
                if number in self._clients:  # the exchange has not ended meanwhile
                    self._clients[number] = client
            else:
                challenge = base64.b64decode(question["challenge"])
            if client is None:
                raise SaslError("SASL failed: the process for it was started again; the next attempt may succeed")
            message = client.respond(challenge)
            answer["message"] = None if message is None else base64.b64encode(message).decode()
            answer["complete"] = client.complete
        except SaslError as error:
            answer["error"] = str(error)
        except Exception as error:  # its text may show a secret
            answer["error"] = f"SASL failed: {type(error).__name__}"
        with contextlib.suppress(OSError):  # the sender is gone
            try:
                control_messages.send(self._socket, answer)
            except control_messages.HandshakeError:
                control_messages.send(self._socket, {"number": number, "error": "SASL failed: a message is too long"})
