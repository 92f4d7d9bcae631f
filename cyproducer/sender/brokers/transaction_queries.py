"""Asks the brokers about transactions, and aborts one: for `cyproducer txn`, as Kafka's Admin client does.

A query is a generator of calls to brokers. Every call may be repeated: a call whose connection ends is sent again, in
most cases after the coordinator was looked up once more.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

from cyproducer.cluster.backoff import ExponentialBackoff
from cyproducer.error_table import describe
from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.broker import Link
from cyproducer.sender.brokers.coordinator_calls import (
    PAUSE_MS,
    TRANSACTION,
    Answer,
    Call,
    CallError,
    CallRunner,
    NoAnswerError,
    Pause,
    Steps,
    UnsupportedError,
    ask_coordinator,
    code_of,
    repeat,
    wait_for_cluster,
)
from cyproducer.sender.brokers.shared_transaction_queries import Place, committed_offset, last_sequences, max_timeout
from cyproducer.sender.engine.native import Loop

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers

__all__ = ["TransactionQueries"]

DURATION_FROM = 1  # ListTransactions
QUERY_MS = 30_000
CALL_MS = 5_000  # after this time a broker counts as one that does not answer
QUERIES_MAX = 64
CONCURRENT_TRANSACTIONS = 51
TRANSACTIONAL_ID_NOT_FOUND = 105
OPEN = ["Ongoing", "PrepareCommit", "PrepareAbort"]
#: What the coordinator still has to do when the end of a transaction is decided, and what it has done.
COMMITTED = ("PrepareCommit", "CompleteCommit")
ABORTED = ("PrepareAbort", "PrepareEpochFence", "CompleteAbort", "Empty")


class TransactionQueries:
    """Runs queries about transactions, one request at a time for each.

    A question is {"do": "list", "states", "older_than_ms"}, {"do": "describe", "ids"} or {"do": "abort", "id"}. The
    answer is {"transactions": [...], "unanswered": {broker: text}}, {"transactions": [...]}, {"aborted", "text"}, or
    {"error": text} if the query failed. {"do": "offset", "group", "partition": [topic, number]}, {"do": "sequences",
    "producer_id", "partitions": [[topic, number]]} and {"do": "max timeout", "id"} have the answers of
    `shared_transaction_queries.py`.
    """

    def __init__(self, brokers: "Brokers", loop: Loop, backoff: ExponentialBackoff, log: logging.Logger) -> None:
        self._brokers = brokers
        self._backoff = backoff
        self._log = log
        self._runner = CallRunner(brokers, loop, log)

    @property
    def wanted(self) -> bool:
        """Whether a query needs the brokers of the cluster, also if no process sends anything."""
        return self._runner.count > 0

    def ask(self, question: dict[str, Any], answer: Callable[[Answer], None], now_ms: int) -> None:
        """Begin a query. `answer` is called once, at the latest after 30 s. Raise ValueError for another question."""
        if self._runner.count >= QUERIES_MAX:
            raise ValueError(f"{QUERIES_MAX} queries about transactions are being answered; try again later")
        steps = self._steps_of(question)

        def end(result: Answer | CallError) -> None:
            if isinstance(result, UnsupportedError) and question["do"] in ("list", "describe", "abort"):
                answer({"error": f"{result} (Kafka 3.0 and newer can show transactions)"})
            else:
                answer({"error": str(result)} if isinstance(result, CallError) else result)

        self._runner.start(steps, end, now_ms, CALL_MS, QUERY_MS)

    def _steps_of(self, question: dict[str, Any]) -> Steps[Answer]:
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
        if kind == "offset" and _is_texts([question.get("group")]):
            return committed_offset(
                self._brokers, self._backoff, question["group"], *_places([question.get("partition")])
            )
        if kind == "sequences" and type(question.get("producer_id")) is int:
            places = _places(question.get("partitions"))
            return last_sequences(self._brokers, self._backoff, question["producer_id"], places)
        if kind == "max timeout" and _is_texts([question.get("id")]):
            return max_timeout(self._brokers, self._backoff, question["id"])
        raise ValueError(f"not a question about transactions: {str(kind)[:40]!r}")

    def maintain(self, now_ms: int) -> int:
        """Do what is due for all queries. Return in how many ms something is due again."""
        return self._runner.maintain(now_ms)

    def on_closed(self, link: Link, now_ms: int) -> None:
        """Fail the calls in flight on a connection that has ended."""
        self._runner.on_closed(link, now_ms)

    # ------------------------------------------------------------ queries

    def _list(self, states: list[str], older_than_ms: int) -> Steps[Answer]:
        yield from wait_for_cluster(self._brokers)
        rows: list[Answer] = []
        unanswered: dict[str, str] = {}

        def request(version: int) -> dict[str, Any]:
            if older_than_ms < 0:
                return {"state_filters": states}
            if version < DURATION_FROM:
                raise CallError("the broker cannot choose transactions by their duration (Kafka 3.8 and newer can)")
            return {"state_filters": states or OPEN, "duration_filter": older_than_ms}

        for broker_id, (host, port, _) in sorted(self._brokers.metadata.brokers.items()):
            try:
                body = yield from repeat(Call(broker_id, ApiKey.LIST_TRANSACTIONS, request), code_of, self._backoff)
            except NoAnswerError as error:
                unanswered[f"{host}:{port} (id {broker_id})"] = str(error)
                continue
            if body["unknown_state_filters"]:
                raise CallError(f"the broker knows no state {', '.join(body['unknown_state_filters'])}")
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

    def _describe(self, ids: list[str]) -> Steps[Answer]:
        yield from wait_for_cluster(self._brokers)
        rows = []
        for transactional_id in ids:
            rows.append((yield from self._describe_one(transactional_id)))
        return {"transactions": rows}

    def _describe_one(self, transactional_id: str) -> Steps[Answer]:
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

    def _abort(self, transactional_id: str) -> Steps[Answer]:
        """Abort the open transaction as Admin.fenceProducers does: InitProducerId raises the epoch of the producer.

        The coordinator answers CONCURRENT_TRANSACTIONS until all partitions have the end of the transaction.
        """
        yield from wait_for_cluster(self._brokers)
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
            yield Pause(PAUSE_MS)
        self._log.warning("the producer of %s is fenced by request; its transaction: %s", transactional_id, ended_as)
        if ended_as in COMMITTED:
            return {"aborted": False, "text": f"the transaction of {transactional_id} was being committed already"}
        if ended_as not in ABORTED:
            return {
                "aborted": False,
                "text": f"the transaction of {transactional_id} has ended, and its producer is fenced",
            }
        return {"aborted": True, "text": f"aborted the transaction of {transactional_id} and fenced its producer"}

    def _ask_coordinator(
        self, transactional_id: str, api: ApiKey, body: dict[str, Any], code_of: Callable[[Answer], int]
    ) -> Steps[tuple[Answer, int]]:
        """Ask the coordinator of a transactional id. Return (its answer, its broker id)."""
        return ask_coordinator(
            self._brokers,
            self._backoff,
            (TRANSACTION, transactional_id),
            lambda broker_id: Call(broker_id, api, lambda version: body),
            code_of,
            lambda code: _refused(transactional_id, code),
        )


def _refused(transactional_id: str, code: int) -> str:
    if code == TRANSACTIONAL_ID_NOT_FOUND:
        return f"{transactional_id}: no producer has used this transactional id lately (TRANSACTIONAL_ID_NOT_FOUND)"
    return f"{transactional_id}: {describe(code)}"


def _is_texts(value: Any) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(text, str) and len(text.encode()) < 1 << 15 for text in value)


def _places(value: Any) -> list[Place]:
    """Return the partitions of a question. Raise ValueError if they are not a list of [topic, number]."""
    try:
        found = [(topic, number) for topic, number in value]
    except (TypeError, ValueError):
        found = []
    right = all(_is_texts([topic]) and type(number) is int and 0 <= number < 1 << 31 for topic, number in found)
    if not found or not right:
        raise ValueError("a question about partitions needs a list of [topic, number]")
    return found
