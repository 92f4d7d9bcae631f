"""Makes the SASL messages of the connections in the helper.

A mechanism may compute for long (SCRAM) or wait for a server (Kerberos, a token endpoint). The sender's loop must not
wait for that.

    the job "sasl begin"   {"node", "number", "host"[, "token", "extensions"]} -> STEP: begins the exchange `number` of
                           a connection; an older one of the same node is forgotten
    the job "sasl go on"   {"node", "number", "challenge"} -> STEP
    the job "sasl check"   {"token", "extensions", "brokers"} -> {}: a broker has accepted the token
    STEP                   {"message", "complete", "advice", "secrets"}
    each                   or {"error", "retryable"}
"""

import base64
import contextlib
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from cyproducer.config.kinds import host_port
from cyproducer.security.login import Login
from cyproducer.security.mechanism import SaslClient, SaslError
from cyproducer.security.token_check import check_token
from cyproducer.security.token_source import Token
from cyproducer.sender.cluster.broker import Broker
from cyproducer.sender.cluster.resolver import CANONICAL_NAMES, canonical_names
from cyproducer.sender.cluster.supplied_tokens import Refusal, SuppliedTokens
from cyproducer.sender.system.helper import Fields, Helper, HelperError, Job, JobError, NotAskedError
from cyproducer.sender.system.tasks import Tasks

__all__ = ["Exchange", "SaslLogin", "SaslStep", "jobs"]

#: How the settings begin that the jobs use. Those of TLS and the brokers are for the check of a token.
_USED = (
    "sasl_",
    "https_",
    "ssl_",
    "proxy_",
    "security_protocol",
    "bootstrap_servers",
    "client_id",
    "client_dns_lookup",
)


class SaslStep(NamedTuple):
    """What the client does next: it sends a message (None: nothing is to be sent any more).

    complete    the checks of the client have passed
    """

    message: bytes | None
    complete: bool


class Exchange:
    """The SASL exchange of a connection. `node`: that of the connection, which has one exchange at a time.

    advice      what to do if the broker refuses the last message
    secrets     what the broker has got, and no text of it may show
    """

    def __init__(self, node: int, number: int, mechanism: str) -> None:
        self.node = node
        self.number = number
        self.mechanism = mechanism
        self.advice = ""
        self.secrets: tuple[str, ...] = ()


class SaslLogin:
    """Makes the SASL messages of the connections.

    settings: of the sender.
    ready: the brokers that are connected, which can check a token; by node.
    tokens: the OAuth tokens that front-ends supply; None: the credentials are in the settings.
    """

    def __init__(self, settings: Mapping[str, Any], helper: Helper, tasks: Tasks, ready: Mapping[int, Broker]) -> None:
        self._helper = helper
        self._ready = ready
        self.mechanism: str = settings["sasl_mechanism"]
        self.tokens: SuppliedTokens | None = None
        if self.mechanism == "OAUTHBEARER" and not settings.get("sasl_oauthbearer_token_endpoint_url"):
            self.tokens = SuppliedTokens(settings, tasks, self._check_token)
        self._numbers = itertools.count()

    def __repr__(self) -> str:
        return f"SaslLogin({self.mechanism})"

    def new_exchange(self, node: int) -> Exchange:
        return Exchange(node, next(self._numbers), self.mechanism)

    async def begin(self, exchange: Exchange, host: str) -> SaslStep:
        """Begin an exchange with a broker. Return the first message. Raise SaslError."""
        fields: Fields = {"host": host}
        if self.tokens is not None:
            token, error = self.tokens.usable()
            if token is None:
                raise SaslError(error, retryable=True)
            fields |= _fields_of(token)
        step = await self._step("sasl begin", exchange, fields)
        if step.message is None:
            raise SaslError("SASL failed: the client has no first message", retryable=True)
        return step

    async def go_on(self, exchange: Exchange, challenge: bytes) -> SaslStep:
        """Answer a challenge of the broker. Return the next message. Raise SaslError."""
        return await self._step("sasl go on", exchange, {"challenge": base64.b64encode(challenge).decode()})

    async def _step(self, job: str, exchange: Exchange, fields: Fields) -> SaslStep:
        answer = await self._ask(job, {"node": exchange.node, "number": exchange.number, **fields})
        message = None if answer["message"] is None else base64.b64decode(answer["message"])
        exchange.advice = answer["advice"]
        exchange.secrets += _parts(message, answer["secrets"])
        return SaslStep(message, answer["complete"])

    async def _check_token(self, token: Token) -> Refusal | None:
        known = [(broker.checked_host, broker.port) for broker in self._ready.values()]
        try:
            await self._ask("sasl check", _fields_of(token) | {"brokers": known})
        except SaslError as error:
            return Refusal("UNCHECKED" if error.retryable else "TOKEN", str(error))
        return None

    async def _ask(self, job: str, fields: Fields) -> Fields:
        try:
            answer = await self._helper.ask(job, fields)
        except NotAskedError as error:
            raise SaslError(f"SASL failed: the process for it cannot be asked ({error})", retryable=True) from None
        except JobError as error:
            raise SaslError(f"SASL failed: {error}") from None
        except HelperError:
            raise SaslError("SASL failed: the process for it has ended", retryable=True) from None
        if "error" in answer:
            raise SaslError(answer["error"], answer["retryable"])
        return answer


def _fields_of(token: Token) -> Fields:
    return {"token": token.value, "extensions": dict(token.extensions)}


# ---------------------------------------------------------------------- the jobs


def jobs(settings: Mapping[str, Any]) -> dict[str, Job]:
    """Return the jobs of a sender with these settings, for one helper."""
    made = _Jobs({name: value for name, value in settings.items() if name.startswith(_USED)})
    return {"sasl begin": _job(made.begin), "sasl go on": _job(made.go_on), "sasl check": _job(made.check)}


def _job(run: Job) -> Job:
    """Return a job whose errors are answers."""

    def answered(question: Fields) -> Fields:
        try:
            return run(question)
        except SaslError as error:
            return {"error": str(error), "retryable": error.retryable}
        except Exception as error:  # its text may show a secret
            return {"error": f"SASL failed: {type(error).__name__}", "retryable": True}

    return answered


class _Jobs:
    """The exchanges that go on. Several threads use it: some wait for a server."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._login = Login(settings)
        self._lock = threading.Lock()
        self._clients: dict[int, tuple[int, SaslClient]] = {}  # by node, with the number of the exchange

    def begin(self, question: Fields) -> Fields:
        """Make a client, and its first message."""
        token = _token_of(question) if "token" in question else None
        return self._respond(question, self._login.client(question["host"], token), None)

    def go_on(self, question: Fields) -> Fields:
        """Make the message that follows a challenge."""
        with self._lock:
            number, client = self._clients.get(question["node"], (None, None))
            if client is None or number != question["number"]:
                raise SaslError("SASL failed: the process for it was started again; the next attempt may succeed", True)
            del self._clients[question["node"]]
        return self._respond(question, client, base64.b64decode(question["challenge"]))

    def _respond(self, question: Fields, client: SaslClient, challenge: bytes | None) -> Fields:
        """Make the next message, and keep the client if another challenge follows."""
        message = client.respond(challenge)
        if message is not None:
            node, number = question["node"], question["number"]
            with self._lock:
                known = self._clients.get(node)
                if known is None or known[0] < number:  # the connection has not begun another exchange meanwhile
                    self._clients[node] = number, client
        return {
            "message": None if message is None else base64.b64encode(message).decode(),
            "complete": client.complete,
            "advice": client.advice,
            "secrets": _places(message or b"", client.secrets),
        }

    def check(self, question: Fields) -> Fields:
        """Let a broker check a token."""
        known = [(str(host), int(port)) for host, port in question["brokers"]]
        check_token(self._settings, itertools.chain(known, self._bootstrap()), _token_of(question))
        return {}

    def _bootstrap(self) -> Iterator[tuple[str, int]]:
        """Yield the addresses of the bootstrap servers, with the names that the certificates must have."""
        for host, port in map(host_port, self._settings["bootstrap_servers"]):
            names = [host]
            if self._settings.get("client_dns_lookup") == CANONICAL_NAMES:
                with contextlib.suppress(OSError, ValueError):  # the check tells what is wrong with the name
                    names = canonical_names(host, port)
            yield from ((name, port) for name in names)


def _token_of(question: Fields) -> Token:
    return Token(question["token"], None, question["extensions"])


def _places(message: bytes, secrets: Iterable[str]) -> list[tuple[int, int]]:
    """Return where the secrets are in a message. A token may fill the socket's buffer, so it is sent once."""
    parts = [secret.encode() for secret in secrets]
    return [(message.find(part), len(part)) for part in parts if part in message]


def _parts(message: bytes | None, places: Iterable[tuple[int, int]]) -> tuple[str, ...]:
    return tuple((message or b"")[at : at + length].decode() for at, length in places)
