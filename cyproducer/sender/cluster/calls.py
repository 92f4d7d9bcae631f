"""Asks brokers on behalf of tasks, and finds the coordinators of keys.

Every call may be repeated: a call whose connection ends can have reached the broker.
"""

import copy
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from cyproducer.codes import UNSUPPORTED_VERSION
from cyproducer.error_table import describe, error_of
from cyproducer.protocol.apis import NEVER
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import first_version
from cyproducer.sender.cluster.backoff import ExponentialBackoff
from cyproducer.sender.cluster.cluster_metadata import ClusterMetadata
from cyproducer.sender.cluster.connection import Connection, InvalidRequestError, NoAnswerError
from cyproducer.sender.cluster.connections import Connections
from cyproducer.sender.cluster.report import Report
from cyproducer.sender.system.tasks import Task, Tasks, TimeLimitError, sleep

__all__ = [
    "GROUP",
    "PAUSE_MS",
    "TRANSACTION",
    "Answer",
    "Body",
    "BrokerError",
    "CallError",
    "Calls",
    "InvalidAnswerError",
    "UnansweredError",
    "UnsupportedError",
    "always",
    "code_of",
    "nothing",
]

GROUP, TRANSACTION = 0, 1  # the key types of FindCoordinator
BATCHED_KEYS_FROM = first_version(ApiKey.FIND_COORDINATOR, "coordinator_keys")
PAUSE_MS = 20  # between attempts, if the broker asks for another one

Answer = dict[str, Any]
Body = Callable[[int], dict[str, Any]]
"""Makes the body of a request for a version. It may raise a CallError."""


class CallError(Exception):
    """A call cannot be made, or has no result; the text says why."""


class UnansweredError(CallError):
    """The broker cannot be reached, or does not answer in time."""


class InvalidAnswerError(CallError):
    """The response cannot be read."""


class BrokerError(CallError):
    """The broker has refused the request with `code`, which is not retriable."""

    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text or describe(code))
        self.code = code


class UnsupportedError(BrokerError):
    """The broker does not support the API, or not in the version that is needed."""

    def __init__(self, text: str) -> None:
        super().__init__(UNSUPPORTED_VERSION, text)


def always(body: dict[str, Any]) -> Body:
    """Return what makes the same body for each version."""
    return lambda version: body


def nothing() -> None:
    """Check nothing."""


def code_of(body: Answer) -> int:
    """Return the error code of a response that has one for the whole."""
    return int(body["error_code"])


class Calls:
    """Makes the calls of one task, or of several. `last_error`: the text of the last call that failed.

    `call_ms` limits each call. `is_patient`: a call also waits for a broker to which a connection has failed.
    """

    def __init__(
        self,
        connections: Connections,
        cluster: ClusterMetadata,
        tasks: Tasks,
        report: Report,
        call_ms: int,
        backoff: ExponentialBackoff,
        *,
        is_patient: bool = False,
    ) -> None:
        self._connections = connections
        self._cluster = cluster
        self._tasks = tasks
        self._report = report
        self._call_ms = call_ms
        self._backoff = backoff
        self._is_patient = is_patient
        self.last_error = ""

    def for_task(self) -> "Calls":
        """Return such calls for one task: `last_error` is that of its own calls."""
        own = copy.copy(self)
        own.last_error = ""
        return own

    @property
    def brokers(self) -> Mapping[int, tuple[str, int, str | None]]:
        """The (host, port, rack) of the brokers of the cluster, by their ids."""
        return self._cluster.brokers

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster; None if the brokers have none."""
        return self._cluster.cluster_id

    def check_refusal(self) -> None:
        """Raise UnansweredError if no broker can be used, and one of them refuses the credentials or certificates."""
        if self._connections.is_refused:
            raise self.unanswered()

    async def pause(self, attempts: int) -> None:
        """Wait before another attempt, after so many others."""
        await sleep(self._backoff.delay_ms(attempts))

    def start(self, work: Coroutine[Any, Any, None], limit_ms: int | None = None) -> Task:
        """Begin to run a coroutine that makes calls. While it runs, the brokers of the cluster are kept up to date."""
        self._connections.add_user()
        return self._tasks.start(self._run(work), limit_ms)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self._connections.remove_user()
            raise
        self._connections.remove_user()

    async def ask(
        self, broker_id: int | None, api: ApiKey, body: Body, *, last: int = NEVER, limit_ms: int | None = None
    ) -> Answer:
        """Send a request to a broker (None: to any one), and return the body of its response. Raise CallError.

        `last`: the newest version that may be used. `limit_ms`: the time limit, if it is less than that of each call.
        """
        until_ms = self._tasks.now_ms + min(self._call_ms, self._call_ms if limit_ms is None else limit_ms)
        try:
            connection = await self._connection_to(broker_id, api, until_ms)
            return await self._ask(connection, broker_id, api, body, last, until_ms)
        except TimeLimitError:
            self.last_error = str(self.unanswered(broker_id))
            raise
        except CallError as error:
            self.last_error = str(error)
            raise

    async def _ask(
        self, connection: Connection, broker_id: int | None, api: ApiKey, body: Body, last: int, until_ms: int
    ) -> Answer:
        name = connection.broker.name
        if not connection.takes_requests:
            raise self.unanswered(broker_id)
        newest = connection.version_of(api)
        if newest is None:
            raise UnsupportedError(f"broker {name} does not support {api.name}")
        version = min(newest, last)
        request = body(version)
        try:
            limit_ms = max(until_ms - self._tasks.now_ms, 0)
            return await connection.ask(api, request, version=version, limit_ms=limit_ms)
        except InvalidRequestError as error:
            raise CallError(str(error)) from None
        except TimeoutError:
            raise self.unanswered(broker_id) from None
        except ProtocolError as error:  # the connection is kept: it has the batches of all processes
            raise InvalidAnswerError(f"broker {name} has sent an invalid response: {error}") from None
        except NoAnswerError:
            raise UnansweredError(f"broker {name} has closed the connection") from None

    def unanswered(self, broker_id: int | None = None) -> UnansweredError:
        """Return the error of a call that has no answer in time."""
        if self._cluster.bootstrapping:
            reason = self._cluster.last_error or self._report.last_error
            return UnansweredError(f"no bootstrap server has answered{': ' if reason else ''}{reason}")
        who = "" if broker_id is None else f"of broker {broker_id} "
        return UnansweredError(f"no answer {who}within {self._call_ms} ms")

    async def _connection_to(self, broker_id: int | None, api: ApiKey, until_ms: int) -> Connection:
        """Wait for a connection that can take the request now."""
        began_ms, answers = self._tasks.now_ms, self._cluster.answers
        while True:
            found = self._any(api) if broker_id is None else self._of(broker_id, began_ms, answers)
            if not isinstance(found, int):
                return found
            left_ms = until_ms - self._tasks.now_ms
            if left_ms <= 0:
                raise self.unanswered(broker_id)
            await self._connections.changed.wait(min(found, left_ms))

    def _any(self, api: ApiKey) -> Connection | int:
        """Return the least loaded connection; or in how many ms to look again."""
        connection = self._connections.least_loaded(api)
        if connection is None and self._connections.least_loaded() is None:
            return self._connections.connect_any()
        if connection is None and not self._connections.knows(api):
            raise UnsupportedError(f"no connected broker supports {api.name}")
        return connection if connection is not None and connection.can_send_request else PAUSE_MS

    def _of(self, broker_id: int, began_ms: int, answers: int) -> Connection | int:
        """Return the connection to a broker; or in how many ms to look again. Raise CallError if it is in vain.

        The call has begun at `began_ms`, after so many answers with metadata.
        """
        if broker_id not in self._cluster.brokers:  # it is new, or it has left the cluster
            if self._cluster.answers > answers:
                raise UnansweredError(f"broker {broker_id} is not one of the cluster, by the newest metadata")
            self._cluster.request_update()
            return PAUSE_MS
        connection = self._connections.get(broker_id)
        if connection is None:
            return PAUSE_MS
        if not connection.takes_requests:
            broker = connection.broker
            if not self._is_patient and connection.has_failed_since(began_ms):
                raise UnansweredError(f"broker {broker.name} cannot be reached: {broker.last_error}")
            return connection.open(self._tasks.now_ms)
        connection = self._connections.for_call(connection)
        return connection if connection.can_send_request else PAUSE_MS

    # ------------------------------------------------------------ series of calls

    async def wait_for_cluster(self, check: Callable[[], None] = nothing) -> None:
        """Wait until a broker has answered with the metadata of the cluster. `check` is called before each pause."""
        while self._cluster.bootstrapping:
            check()
            await sleep(PAUSE_MS)

    async def repeat(
        self,
        ask: Callable[[], Awaitable[Answer]],
        code_of: Callable[[Answer], int],
        check: Callable[[], None] = nothing,
    ) -> Answer:
        """Make a call again while the answer is an error that is retriable. Return the answer without an error.

        `check` is called before each call and each pause. Raise BrokerError for another error.
        """
        attempts = 0
        while True:
            check()
            answer = await ask()
            code = code_of(answer)
            if not code:
                return answer
            if not error_of(code).retriable:
                raise BrokerError(code)
            check()
            await self.pause(attempts)
            attempts += 1

    async def find_coordinator(self, key_type: int, key: str, check: Callable[[], None] = nothing) -> int:
        """Return the broker id of the coordinator, of which the metadata may know nothing yet.

        `check` is called before each call and each pause. Raise BrokerError for an error that is not retriable.
        """

        def request(version: int) -> dict[str, Any]:
            if version == 0 and key_type != GROUP:
                text = "the broker is too old to find the coordinator of a transaction (before Kafka 0.11)"
                raise UnsupportedError(text)
            keys = {"coordinator_keys": [key]} if version >= BATCHED_KEYS_FROM else {"key": key}
            return {"key_type": key_type, **keys}

        def place(body: Answer) -> Answer:
            found: Answer = body["coordinators"][0] if body["coordinators"] else body
            return found

        while True:
            try:
                body = await self.repeat(
                    lambda: self.ask(None, ApiKey.FIND_COORDINATOR, request), lambda body: code_of(place(body)), check
                )
            except UnansweredError:
                check()
                await sleep(PAUSE_MS)  # another broker is asked
                continue
            return int(place(body)["node_id"])

    async def ask_coordinator(
        self,
        coordinator: tuple[int, str],
        ask: Callable[[int], Awaitable[Answer]],
        code_of: Callable[[Answer], int],
        text_of: Callable[[int], str] = describe,
    ) -> tuple[Answer, int]:
        """Ask the coordinator, which is looked up before each attempt. Return (its answer, its broker id).

        coordinator: (key type, key). ask: asks the broker with an id. Raise BrokerError for an error that is not
        retriable, with `text_of` its code.
        """
        attempts = 0
        while True:
            broker_id = await self.find_coordinator(*coordinator)
            try:
                answer = await ask(broker_id)
            except UnansweredError:
                pass
            else:
                code = code_of(answer)
                if not code:
                    return answer, broker_id
                if not error_of(code).retriable:
                    raise BrokerError(code, text_of(code))
            await self.pause(attempts)
            attempts += 1
