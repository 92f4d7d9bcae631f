"""Asks the brokers about transactions, and aborts one: for `cyproducer txn`, as Kafka's Admin client does.

It also asks what a process has to know that commits the records of many writers: a committed offset, the last sequence
numbers, and how long a transaction may take. For `cyproducer doctor` it asks for the brokers of the cluster, and for a
topic, which it does not create. Every call may be repeated: a call whose connection ends is sent again, after the
coordinator was looked up once more if it is one to a coordinator.
"""

import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeGuard

from cyproducer.codes import CLUSTER_AUTHORIZATION_FAILED, CONCURRENT_TRANSACTIONS, TRANSACTIONAL_ID_NOT_FOUND
from cyproducer.error_table import describe, error_of
from cyproducer.protocol.kafka_messages import ApiKey
from cyproducer.protocol.schema import first_version
from cyproducer.sender.cluster.calls import (
    GROUP,
    PAUSE_MS,
    TRANSACTION,
    Answer,
    BrokerError,
    CallError,
    Calls,
    UnansweredError,
    UnsupportedError,
    always,
    code_of,
    nothing,
)
from cyproducer.sender.cluster.cluster_metadata import metadata_request
from cyproducer.sender.system.tasks import TimeLimitError, sleep

__all__ = ["Queries"]

Place = tuple[str, int]
"""A topic and the number of a partition."""
Query = Callable[[Calls], Coroutine[Any, Any, Answer]]
"""Answers a question by calls to brokers."""

STABLE_FROM = first_version(ApiKey.OFFSET_FETCH, "require_stable")
GROUPS_FROM = first_version(ApiKey.OFFSET_FETCH, "groups")
NO_SEQUENCE = -1
OF_BROKER = 4  # the resource type of DescribeConfigs
MAX_TIMEOUT = "transaction.max.timeout.ms"
_NOT_TOLD = {CLUSTER_AUTHORIZATION_FAILED: "no right to DESCRIBE_CONFIGS of the cluster (CLUSTER_AUTHORIZATION_FAILED)"}
DURATION_FROM = first_version(ApiKey.LIST_TRANSACTIONS, "duration_filter")
QUERY_MS = 30_000
QUERIES_MAX = 64
OPEN = ["Ongoing", "PrepareCommit", "PrepareAbort"]
#: What the coordinator still has to do when the end of a transaction is decided, and what it has done.
COMMITTED = ("PrepareCommit", "CompleteCommit")
ABORTED = ("PrepareAbort", "PrepareEpochFence", "CompleteAbort", "Empty")


class Queries:
    """Answers questions about transactions, by one request at a time for each.

    A question is {"do": "list", "states", "older_than_ms"}, {"do": "describe", "ids"} or {"do": "abort", "id"}. The
    answer is {"transactions": [...], "unanswered": {broker: text}}, {"transactions": [...]}, {"aborted", "text"}, or
    {"error": text} if the query failed. {"do": "offset", "group", "partition": [topic, number]}, {"do": "sequences",
    "producer_id", "partitions": [[topic, number]]}, {"do": "max timeout", "id"} and {"do": "metadata", "topic": name or
    null} have the answers of the methods below.
    """

    def __init__(self, calls: Calls, log: logging.Logger) -> None:
        self._calls = calls
        self._log = log
        self._count = 0  # of the queries that are being answered

    def ask(self, question: dict[str, Any], answer: Callable[[Answer], None]) -> None:
        """Begin a query. `answer` is called once, at the latest after 30 s. Raise ValueError for another question."""
        if self._count >= QUERIES_MAX:
            raise ValueError(f"{QUERIES_MAX} queries about transactions are being answered; try again later")
        query = self._query_of(question)
        self._count += 1
        self._calls.start(self._answer(question["do"], query, answer), QUERY_MS)

    async def _answer(self, kind: str, query: Query, answer: Callable[[Answer], None]) -> None:
        calls = self._calls.for_task()
        try:
            await calls.wait_for_cluster(calls.check_refusal if kind == "metadata" else nothing)
            result = await query(calls)
        except TimeLimitError:
            result = {"error": calls.last_error or str(calls.unanswered())}
        except UnsupportedError as error:
            needs = " (Kafka 3.0 and newer can show transactions)" if kind in ("list", "describe", "abort") else ""
            result = {"error": f"{error}{needs}"}
        except CallError as error:
            result = {"error": str(error)}
        except Exception as error:
            self._log.exception("a question about transactions could not be answered")
            result = {"error": f"it could not be answered ({type(error).__name__}: {error})"}
        self._count -= 1
        answer(result)

    def _query_of(self, question: dict[str, Any]) -> Query:
        kind = question.get("do")
        if kind == "list":
            states, older_ms = question.get("states"), question.get("older_than_ms")
            if not _is_texts(states) or type(older_ms) is not int or not -1 <= older_ms < 1 << 63:
                raise ValueError("a list of transactions needs `states` (texts) and `older_than_ms` (an integer)")
            return lambda calls: self._list(calls, states, older_ms)
        if kind == "describe" and _is_texts(question.get("ids")):
            return lambda calls: self._describe(calls, question["ids"])
        if kind == "abort" and _is_texts([question.get("id")]):
            return lambda calls: self._abort(calls, question["id"])
        if kind == "offset" and _is_texts([question.get("group")]):
            (place,) = _places([question.get("partition")])
            return lambda calls: _committed_offset(calls, question["group"], place)
        if kind == "sequences" and type(question.get("producer_id")) is int:
            places = _places(question.get("partitions"))
            return lambda calls: self._last_sequences(calls, question["producer_id"], places)
        if kind == "max timeout" and _is_texts([question.get("id")]):
            return lambda calls: _max_timeout(calls, question["id"])
        if kind == "metadata" and (question.get("topic") is None or _is_texts([question["topic"]])):
            return lambda calls: _metadata(calls, question.get("topic"))
        raise ValueError(f"not a question about transactions: {str(kind)[:40]!r}")

    # ------------------------------------------------------------ transactions of the cluster

    async def _list(self, calls: Calls, states: list[str], older_than_ms: int) -> Answer:
        rows: list[Answer] = []
        unanswered: dict[str, str] = {}

        def request(version: int) -> dict[str, Any]:
            if older_than_ms < 0:
                return {"state_filters": states, "producer_id_filters": []}
            if version < DURATION_FROM:
                raise CallError("the broker cannot choose transactions by their duration (Kafka 3.8 and newer can)")
            return {"state_filters": states or OPEN, "producer_id_filters": [], "duration_filter": older_than_ms}

        for broker_id, (host, port, _) in sorted(calls.brokers.items()):
            try:
                ask = functools.partial(calls.ask, broker_id, ApiKey.LIST_TRANSACTIONS, request)
                body = await calls.repeat(ask, code_of)
            except UnansweredError as error:
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

    async def _describe(self, calls: Calls, ids: list[str]) -> Answer:
        return {"transactions": [await self._describe_one(calls, transactional_id) for transactional_id in ids]}

    async def _describe_one(self, calls: Calls, transactional_id: str) -> Answer:
        found, broker_id = await _ask_coordinator(
            calls,
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

    async def _abort(self, calls: Calls, transactional_id: str) -> Answer:
        """Abort the open transaction as Admin.fenceProducers does: InitProducerId raises the epoch of the producer.

        The coordinator answers CONCURRENT_TRANSACTIONS until all partitions have the end of the transaction.
        """
        before = await self._describe_one(calls, transactional_id)
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
            body, _ = await _ask_coordinator(calls, transactional_id, ApiKey.INIT_PRODUCER_ID, request, is_done)
            if not body["error_code"]:
                break
            if ended_as in ("", "Ongoing"):  # the coordinator has not begun to end it yet
                ended_as = (await self._describe_one(calls, transactional_id))["state"]
            await sleep(PAUSE_MS)
        self._log.warning("the producer of %s is fenced by request; its transaction: %s", transactional_id, ended_as)
        if ended_as in COMMITTED:
            return {"aborted": False, "text": f"the transaction of {transactional_id} was being committed already"}
        if ended_as not in ABORTED:
            return {
                "aborted": False,
                "text": f"the transaction of {transactional_id} has ended, and its producer is fenced",
            }
        return {"aborted": True, "text": f"aborted the transaction of {transactional_id} and fenced its producer"}

    # ------------------------------------------------------------ records of many writers

    async def _last_sequences(self, calls: Calls, producer_id: int, places: Sequence[Place]) -> Answer:
        """Return {"sequences": [[topic, partition, epoch, last sequence, start of the transaction]]}, as in `places`.

        The last three are -1 if the partition has no record of the producer. The start is also if no transaction is
        open.
        """
        found: dict[Place, tuple[int, int, int]] = {}
        attempts = 0
        while len(found) < len(places):
            leaders = await self._leaders(calls, [place for place in places if place not in found])
            for leader, led in leaders.items():
                found |= await _sequences_of(calls, leader, led, producer_id)
            if len(found) < len(places):
                await calls.pause(attempts)
                attempts += 1
        return {"sequences": [[*place, *found[place]] for place in places]}

    async def _leaders(self, calls: Calls, places: Sequence[Place]) -> dict[int, list[Place]]:
        """Return the partitions by the broker id of their leader. Those without a leader now are left out."""
        request = metadata_request(sorted({name for name, _ in places}), allow_auto_topic_creation=False)
        body = await calls.ask(None, ApiKey.METADATA, always(request))
        found: dict[int, list[Place]] = {}
        for topic in body["topics"]:
            code = int(topic["error_code"])
            if code and not error_of(code).retriable:
                raise BrokerError(code, f"topic {topic['name']}: {describe(code)}")
            for partition in topic["partitions"]:
                place = topic["name"], partition["partition_index"]
                if place in places and partition["leader_id"] in calls.brokers:
                    found.setdefault(partition["leader_id"], []).append(place)
        return found


async def _sequences_of(
    calls: Calls, leader: int, places: list[Place], producer_id: int
) -> dict[Place, tuple[int, int, int]]:
    """Ask one leader. Partitions that it does not answer now, or does not lead, are left out."""
    topics: dict[str, list[int]] = {}
    for name, number in places:
        topics.setdefault(name, []).append(number)
    request = {"topics": [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]}
    found: dict[Place, tuple[int, int, int]] = {}
    try:
        body = await calls.ask(leader, ApiKey.DESCRIBE_PRODUCERS, always(request))
    except UnansweredError:
        return found
    for topic in body["topics"]:
        for partition in topic["partitions"]:
            code = int(partition["error_code"])
            if code and not error_of(code).retriable:
                raise BrokerError(code, f"topic {topic['name']}: {describe(code)}")
            if not code:
                state = -1, NO_SEQUENCE, -1
                for row in partition["active_producers"]:
                    if row["producer_id"] == producer_id:
                        state = row["producer_epoch"], row["last_sequence"], row["current_txn_start_offset"]
                found[topic["name"], partition["partition_index"]] = state
    return found


async def _committed_offset(calls: Calls, group: str, place: Place) -> Answer:
    """Return {"offset", "metadata"} that a group has committed for a partition; offset -1: none.

    While a transaction that is not complete has an offset of the partition, the question is repeated.
    """
    topics = [{"name": place[0], "partition_indexes": [place[1]]}]

    def request(version: int) -> Answer:
        if version < STABLE_FROM:
            raise UnsupportedError("the broker cannot leave out offsets of open transactions (before Kafka 2.5)")
        if version < GROUPS_FROM:
            return {"group_id": group, "topics": topics, "require_stable": True}
        return {"groups": [{"group_id": group, "topics": topics}], "require_stable": True}

    def rows_of(body: Answer) -> list[Answer]:
        found = body["groups"][0] if body["groups"] else body
        return [row for topic in found["topics"] for row in topic["partitions"]]

    def code_of(body: Answer) -> int:
        found, rows = body["groups"][0] if body["groups"] else body, rows_of(body)
        return int(found["error_code"]) or (int(rows[0]["error_code"]) if rows else -1)

    body, _ = await calls.ask_coordinator(
        (GROUP, group), lambda broker_id: calls.ask(broker_id, ApiKey.OFFSET_FETCH, request), code_of
    )
    row = rows_of(body)[0]
    return {"offset": row["committed_offset"], "metadata": row["metadata"] or ""}


async def _max_timeout(calls: Calls, transactional_id: str) -> Answer:
    """Return {"timeout_ms"}: transaction.max.timeout.ms of the broker that coordinates the transactional id.

    The broker tells it only to a principal that may describe the configuration of the cluster.
    """

    def ask(broker_id: int) -> Awaitable[Answer]:
        resource = {"resource_type": OF_BROKER, "resource_name": str(broker_id), "configuration_keys": [MAX_TIMEOUT]}
        return calls.ask(broker_id, ApiKey.DESCRIBE_CONFIGS, always({"resources": [resource]}))

    def code_of(body: Answer) -> int:
        return int(body["results"][0]["error_code"]) if body["results"] else -1

    body, broker_id = await calls.ask_coordinator(
        (TRANSACTION, transactional_id),
        ask,
        code_of,
        lambda code: f"the broker does not tell {MAX_TIMEOUT}: {_NOT_TOLD.get(code) or describe(code)}",
    )
    for config in body["results"][0]["configs"]:
        if config["name"] == MAX_TIMEOUT and (config["value"] or "").isdecimal():
            return {"timeout_ms": int(config["value"])}
    raise CallError(f"broker {broker_id} has no {MAX_TIMEOUT}")


async def _metadata(calls: Calls, topic: str | None) -> Answer:
    """Return {"cluster_id", "controller", "brokers": [[id, host, port]], "topic_error", "partitions"}.

    `topic_error` is a code, or 0. `partitions` are [number, broker id of the leader, or -1].
    """
    request = metadata_request([] if topic is None else [topic], allow_auto_topic_creation=False)
    body = await calls.ask(None, ApiKey.METADATA, always(request))
    nothing_asked: Answer = {"error_code": 0, "partitions": []}
    found: Answer = body["topics"][0] if topic is not None else nothing_asked
    return {
        "cluster_id": body["cluster_id"] or calls.cluster_id,
        "controller": body["controller_id"],
        "brokers": sorted((broker["node_id"], broker["host"], broker["port"]) for broker in body["brokers"]),
        "topic_error": found["error_code"],
        "partitions": sorted((row["partition_index"], row["leader_id"]) for row in found["partitions"]),
    }


async def _ask_coordinator(
    calls: Calls, transactional_id: str, api: ApiKey, body: dict[str, Any], code_of: Callable[[Answer], int]
) -> tuple[Answer, int]:
    """Ask the coordinator of a transactional id. Return (its answer, its broker id)."""
    return await calls.ask_coordinator(
        (TRANSACTION, transactional_id),
        lambda broker_id: calls.ask(broker_id, api, always(body)),
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
