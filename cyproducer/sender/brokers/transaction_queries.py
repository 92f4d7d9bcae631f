"""Asks the brokers about transactions, and aborts one: for `cyproducer txn`, as Kafka's Admin client does.

A query is a generator. It yields calls to brokers and pauses between them, and gets the answers. Every call may be
repeated: a call whose connection ends is sent again, in most cases after the coordinator was looked up once more.
"""

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

from cyproducer.cluster.backoff import ExponentialBackoff
from cyproducer.error_table import describe, error_of
from cyproducer.protocol.fields import ProtocolError
from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, Link

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers

__all__ = ["TransactionQueries"]

TRANSACTIONAL_ID = 1  # a key type of FindCoordinator
BATCHED_KEYS_FROM = 4  # FindCoordinator
DURATION_FROM = 1  # ListTransactions
QUERY_MS = 30_000
CALL_MS = 5_000  # after this time a broker counts as one that does not answer
PAUSE_MS = 20  # between attempts, if the broker asks for another one
QUERIES_MAX = 64
CONCURRENT_TRANSACTIONS = 51
TRANSACTIONAL_ID_NOT_FOUND = 105
OPEN = ["Ongoing", "PrepareCommit", "PrepareAbort"]
#: What the coordinator still has to do when the end of a transaction is decided, and what it has done.
COMMITTED = ("PrepareCommit", "CompleteCommit")
ABORTED = ("PrepareAbort", "PrepareEpochFence", "CompleteAbort", "Empty")

Answer = dict[str, Any]


class _Call(NamedTuple):
    """A request to one broker; `broker_id` None: to any broker. `body` makes the request's body for a version.

    The query gets the body of the response.
    """

    broker_id: int | None
    api: ApiKey
    body: Callable[[int], dict[str, Any]]


class _Pause(NamedTuple):
    ms: int


Steps = Generator[_Call | _Pause, Any, Answer]


class _QueryError(Exception):
    """The query ends with this text."""


class _NoAnswerError(_QueryError):
    """The broker cannot be reached, or does not answer in time."""


class _Query:
    def __init__(self, steps: Steps, answer: Callable[[Answer], None], now_ms: int) -> None:
        self.steps = steps
        self.answer = answer
        self.until_ms = now_ms + QUERY_MS
        self.call: _Call | None = None
        self.call_until_ms = 0
        self.at_ms = now_ms
        self.asked: Link | None = None
        self.last_error = ""


class TransactionQueries:
    """Runs queries about transactions, one request at a time for each.

    A question is {"do": "list", "states", "older_than_ms"}, {"do": "describe", "ids"} or {"do": "abort", "id"}. The
    answer is {"transactions": [...], "unanswered": {broker: text}}, {"transactions": [...]}, {"aborted", "text"}, or
    {"error": text} if the query failed.
    """

    def __init__(self, brokers: "Brokers", loop: Any, backoff: ExponentialBackoff, log: logging.Logger) -> None:
        self._brokers = brokers
        self._loop = loop
        self._backoff = backoff
        self._log = log
        self._queries: list[_Query] = []

    @property
    def wanted(self) -> bool:
        """Whether a query needs the brokers of the cluster, also if no process sends anything."""
        return bool(self._queries)

    def ask(self, question: dict[str, Any], answer: Callable[[Answer], None], now_ms: int) -> None:
        """Begin a query. `answer` is called once, at the latest after 30 s. Raise ValueError for another question."""
        if len(self._queries) >= QUERIES_MAX:
            raise ValueError(f"{QUERIES_MAX} queries about transactions are being answered; try again later")
        steps = self._steps_of(question)
        self._queries.append(query := _Query(steps, answer, now_ms))
        self._advance(query, None, now_ms)

    def _steps_of(self, question: dict[str, Any]) -> Steps:
        kind = question.get("do")
        if kind == "list":
            states, older_ms = question.get("states"), question.get("older_than_ms")
            if not _is_texts(states) or type(older_ms) is not int or not -1 <= older_ms < 1 << 63:
                raise ValueError("a list of transactions needs `states` (texts) and `older_than_ms` (an integer)")
            return self._list(states, older_ms)
        if kind == "describe" and _is_texts(question.get("ids")):
            return self._describe(question["ids"])
        if kind == "abort" and _is_texts([question.get("id")]):
            return self._abort(question["id"])
        raise ValueError(f"not a question about transactions: {str(kind)[:40]!r}")

    # ------------------------------------------------------------ running

    def maintain(self, now_ms: int) -> int:
        """Do what is due for all queries. Return in how many ms something is due again."""
        due_ms = NOTHING_DUE_MS
        for query in list(self._queries):
            due_ms = min(due_ms, self._go_on(query, now_ms))
        return due_ms

    def on_closed(self, link: Link, now_ms: int) -> None:
        """Fail the calls in flight on a connection that has ended."""
        for query in [query for query in self._queries if query.asked is link]:
            self._advance(query, _NoAnswerError(f"broker {link.name} has closed the connection"), now_ms)

    def _go_on(self, query: _Query, now_ms: int) -> int:
        if query.call is None:
            if query.at_ms > now_ms:
                return query.at_ms - now_ms
            self._advance(query, None, now_ms)
            return 0
        if now_ms >= query.call_until_ms:
            self._advance(query, self._no_answer(query), now_ms)
            return 0
        wait_ms = query.call_until_ms - now_ms
        if query.asked is None:
            wait_ms = min(wait_ms, self._send(query, query.call, now_ms))
        return wait_ms

    def _no_answer(self, query: _Query) -> _NoAnswerError:
        if self._brokers.metadata.bootstrapping:
            reason = self._brokers.metadata.last_error or self._brokers.last_error
            return _NoAnswerError(f"no bootstrap server has answered{': ' if reason else ''}{reason}")
        broker_id = None if query.call is None else query.call.broker_id
        return _NoAnswerError(f"no answer {'' if broker_id is None else f'of broker {broker_id} '}within {CALL_MS} ms")

    def _send(self, query: _Query, call: _Call, now_ms: int) -> int:
        """Send the call if its broker can take a request. Otherwise connect. Return in how many ms to look again."""
        if call.broker_id is None:
            link = self._brokers.least_loaded(call.api)
            if link is None and self._brokers.least_loaded() is None:
                return self._brokers.connect_any(now_ms)
            if link is None and not self._brokers.node_choice.knows(call.api):
                text = f"no connected broker has {call.api.name} (Kafka 3.0 and newer)"
                self._advance(query, _QueryError(text), now_ms)
                return 0
        elif call.broker_id in self._brokers.metadata.brokers:
            link = self._brokers.links.get(call.broker_id)
            if link is not None and link.versions is None:
                return self._brokers.connect(link, now_ms)
        else:
            link = None  # such a broker is not connected to; newer metadata may have it
        if link is None or not self._loop.takes_requests(link.index):
            return PAUSE_MS
        assert link.versions is not None
        if call.api not in link.versions:
            text = f"broker {link.name} does not support {call.api.name}: transactions can be shown from Kafka 3.0 on"
            self._advance(query, _QueryError(text), now_ms)
            return 0
        query.asked = link

        def respond(link: Link, payload: bytes, now_ms: int) -> None:
            if query.call is not call or query not in self._queries:
                return
            try:
                body = self._brokers.take_answer(link, call.api, payload)
            except ProtocolError as error:  # the connection is kept: it has the batches of all processes
                text = f"broker {link.name} has sent an invalid response: {error}"
                self._advance(query, _QueryError(text), now_ms)
            else:
                self._advance(query, body, now_ms)

        try:
            self._brokers.request(link, call.api, call.body(link.versions[call.api]), respond)
        except (ProtocolError, _QueryError) as error:
            self._advance(query, _QueryError(str(error)), now_ms)
        return NOTHING_DUE_MS

    def _advance(self, query: _Query, got: Any, now_ms: int) -> None:
        """Give the query what it waits for, and note what it waits for next."""
        query.call = query.asked = None
        if isinstance(got, _QueryError):
            query.last_error = str(got)
        try:
            if now_ms >= query.until_ms and not isinstance(got, dict):
                raise _QueryError(query.last_error or str(self._no_answer(query)))
            step = query.steps.throw(got) if isinstance(got, _QueryError) else query.steps.send(got)
        except StopIteration as end:
            self._end(query, end.value)
        except _QueryError as error:
            self._end(query, {"error": str(error)})
        else:
            if isinstance(step, _Pause):
                query.at_ms = now_ms + step.ms
            else:
                query.call, query.call_until_ms = step, min(now_ms + CALL_MS, query.until_ms)

    def _end(self, query: _Query, answer: Answer) -> None:
        self._queries.remove(query)
        query.steps.close()
        query.answer(answer)

    # ------------------------------------------------------------ queries

    def _cluster(self) -> Generator[_Pause, Any, None]:
        """Wait until a broker has answered with the metadata of the cluster."""
        while self._brokers.metadata.bootstrapping:
            yield _Pause(PAUSE_MS)

    def _list(self, states: list[str], older_than_ms: int) -> Steps:
        yield from self._cluster()
        rows: list[Answer] = []
        unanswered: dict[str, str] = {}

        def request(version: int) -> dict[str, Any]:
            if older_than_ms < 0:
                return {"state_filters": states}
            if version < DURATION_FROM:
                raise _QueryError("the broker cannot choose transactions by their duration (Kafka 3.8 and newer can)")
            return {"state_filters": states or OPEN, "duration_filter": older_than_ms}

        for broker_id, (host, port, _) in sorted(self._brokers.metadata.brokers.items()):
            try:
                body = yield from self._repeat(_Call(broker_id, ApiKey.LIST_TRANSACTIONS, request), _code)
            except _NoAnswerError as error:
                unanswered[f"{host}:{port} (id {broker_id})"] = str(error)
                continue
            if body["unknown_state_filters"]:
                raise _QueryError(f"the broker knows no state {', '.join(body['unknown_state_filters'])}")
            rows += [
                {
                    "transactional_id": row["transactional_id"],
                    "coordinator": broker_id,
                    "producer_id": row["producer_id"],
                    "state": row["transaction_state"],
                }
                for row in body["transaction_states"]
            ]
        return {"transactions": sorted(rows, key=lambda row: row["transactional_id"]), "unanswered": unanswered}

    def _describe(self, ids: list[str]) -> Steps:
        yield from self._cluster()
        rows = []
        for transactional_id in ids:
            rows.append((yield from self._describe_one(transactional_id)))
        return {"transactions": rows}

    def _describe_one(self, transactional_id: str) -> Steps:
        found, broker_id = yield from self._ask_coordinator(
            transactional_id,
            ApiKey.DESCRIBE_TRANSACTIONS,
            {"transactional_ids": [transactional_id]},
            lambda body: int(body["transaction_states"][0]["error_code"]) if body["transaction_states"] else -1,
        )
        state = found["transaction_states"][0]
        return {
            "transactional_id": transactional_id,
            "coordinator": broker_id,
            "producer_id": state["producer_id"],
            "producer_epoch": state["producer_epoch"],
            "state": state["transaction_state"],
            "timeout_ms": state["transaction_timeout_ms"],
            "started_at": state["transaction_start_time_ms"] / 1000 if state["transaction_start_time_ms"] > 0 else None,
            "partitions": sorted(
                (topic["topic"], number) for topic in state["topics"] for number in topic["partitions"]
            ),
        }

    def _abort(self, transactional_id: str) -> Steps:
        """Abort the open transaction as Admin.fenceProducers does: InitProducerId raises the epoch of the producer.

        The coordinator answers CONCURRENT_TRANSACTIONS until all partitions have the end of the transaction.
        """
        yield from self._cluster()
        before = yield from self._describe_one(transactional_id)
        if before["state"] != "Ongoing":
            return {"aborted": False, "text": f"no transaction of {transactional_id} is open (state {before['state']})"}
        ended_as = ""

        def is_done(body: Answer) -> int:
            return 0 if body["error_code"] == CONCURRENT_TRANSACTIONS else int(body["error_code"])

        request = {
            "transactional_id": transactional_id,
            "transaction_timeout_ms": before["timeout_ms"],
            "producer_id": -1,
            "producer_epoch": -1,
        }
        while True:
            body, _ = yield from self._ask_coordinator(transactional_id, ApiKey.INIT_PRODUCER_ID, request, is_done)
            if not body["error_code"]:
                break
            if ended_as in ("", "Ongoing"):  # the coordinator has not begun to end it yet
                ended_as = (yield from self._describe_one(transactional_id))["state"]
            yield _Pause(PAUSE_MS)
        self._log.warning("the producer of %s is fenced by request; its transaction: %s", transactional_id, ended_as)
        if ended_as in COMMITTED:
            return {"aborted": False, "text": f"the transaction of {transactional_id} was being committed already"}
        if ended_as not in ABORTED:
            return {
                "aborted": False,
                "text": f"the transaction of {transactional_id} has ended, and its producer is fenced",
            }
        return {"aborted": True, "text": f"aborted the transaction of {transactional_id} and fenced its producer"}

    # ------------------------------------------------------------ coordinators

    def _ask_coordinator(
        self, transactional_id: str, api: ApiKey, body: dict[str, Any], code_of: Callable[[Answer], int]
    ) -> Generator[_Call | _Pause, Any, tuple[Answer, int]]:
        """Ask the coordinator, which is looked up before each attempt. Return (its answer, its broker id)."""
        attempts = 0
        while True:
            broker_id = yield from self._find_coordinator(transactional_id)
            try:
                answer = yield _Call(broker_id, api, lambda version: body)
            except _NoAnswerError:
                code = None
            else:
                code = code_of(answer)
                if not code:
                    return answer, broker_id
                if not error_of(code).retriable:
                    raise _QueryError(_refused(transactional_id, code))
            yield _Pause(self._backoff.delay_ms(attempts))
            attempts += 1

    def _find_coordinator(self, transactional_id: str) -> Generator[_Call | _Pause, Any, int]:
        def request(version: int) -> dict[str, Any]:
            if version == 0:
                raise _QueryError("the broker is too old to find the coordinator of a transaction (before Kafka 0.11)")
            keys = (
                {"coordinator_keys": [transactional_id]} if version >= BATCHED_KEYS_FROM else {"key": transactional_id}
            )
            return {"key_type": TRANSACTIONAL_ID, **keys}

        def place(body: Answer) -> Answer:
            found: Answer = body["coordinators"][0] if body["coordinators"] else body
            return found

        def code_of(body: Answer) -> int:
            return int(place(body)["error_code"])

        while True:
            try:
                body = yield from self._repeat(_Call(None, ApiKey.FIND_COORDINATOR, request), code_of)
            except _NoAnswerError:
                yield _Pause(PAUSE_MS)  # another broker is asked, until the time of the query is over
                continue
            broker_id = int(place(body)["node_id"])
            if broker_id not in self._brokers.metadata.brokers:
                self._brokers.metadata.request_update()
            return broker_id

    def _repeat(self, call: _Call, code_of: Callable[[Answer], int]) -> Generator[_Call | _Pause, Any, Answer]:
        """Make a call again while the answer is an error that is retriable. Return the answer without an error."""
        attempts = 0
        while True:
            answer: Answer = yield call
            code = code_of(answer)
            if not code:
                return answer
            if not error_of(code).retriable:
                raise _QueryError(describe(code))
            yield _Pause(self._backoff.delay_ms(attempts))
            attempts += 1


def _code(body: Answer) -> int:
    return int(body["error_code"])


def _refused(transactional_id: str, code: int) -> str:
    if code == TRANSACTIONAL_ID_NOT_FOUND:
        return f"{transactional_id}: no producer has used this transactional id lately (TRANSACTIONAL_ID_NOT_FOUND)"
    return f"{transactional_id}: {describe(code)}"


def _is_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(text, str) and len(text.encode()) < 1 << 15 for text in value)
