"""Lists, describes and aborts the transactions of a cluster, and asks for what one has written, through a sender."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from cyproducer.errors import KafkaError
from cyproducer.observe.requests import request_document

__all__ = [
    "CommittedOffset",
    "LastSequence",
    "TransactionQueryError",
    "abort",
    "committed_offset",
    "describe",
    "last_sequences",
    "list_all",
    "max_timeout",
]

_TIMEOUT_S = 40.0  # the sender answers after 30 s at the latest
_PARTITIONS_OF_A_MESSAGE = 100  # with the longest names of topics, they fit into one


class CommittedOffset(NamedTuple):
    """What a group has committed for a partition; offset -1: nothing."""

    offset: int
    metadata: str


class TransactionQueryError(KafkaError):
    """The brokers have refused a query about transactions, or have not answered it."""


def list_all(path: str, states: list[str], older_than_s: float | None = None) -> dict[str, Any]:
    """Return the transactional ids that the coordinators of the cluster know.

    path           control socket of a sender
    states         only those in one of these states, by Kafka's names such as "Ongoing"; empty: all
    older_than_s   only transactions that have been open for longer, in seconds

    The result is {"transactions": [{transactional_id, coordinator, producer_id, state}], "unanswered": {broker: why}}.
    Raise SenderUnavailableError without a sender, TransactionQueryError if the brokers refuse.
    """
    older_ms = -1 if older_than_s is None else int(older_than_s * 1000)
    return _ask(path, {"do": "list", "states": states, "older_than_ms": older_ms})


def describe(path: str, transactional_ids: list[str]) -> list[dict[str, Any]]:
    """Return what the coordinators know of these transactional ids, in their order.

    The result is a list of {transactional_id, coordinator, producer_id, producer_epoch, state, timeout_ms, started_at,
    partitions: [[topic, partition]]}. `started_at` is in seconds since 1970, None without an open transaction. Raise as
    list_all(); an id that the cluster does not know raises TransactionQueryError, too.
    """
    rows: list[dict[str, Any]] = _ask(path, {"do": "describe", "ids": transactional_ids})["transactions"]
    return rows


def abort(path: str, transactional_id: str) -> dict[str, Any]:
    """Abort the open transaction of a transactional id, and fence its producer. Return {"aborted": bool, "text": str}.

    Without an open transaction nothing is done. Raise as describe().
    """
    return _ask(path, {"do": "abort", "id": transactional_id})


def committed_offset(path: str, group: str, topic: str, partition: int) -> CommittedOffset:
    """Return the offset that a group has committed for a partition.

    It waits for the end of a transaction that has an offset of the partition. Raise as list_all().
    """
    answer = _ask(path, {"do": "offset", "group": group, "partition": [topic, partition]})
    return CommittedOffset(answer["offset"], answer["metadata"])


def max_timeout(path: str, transactional_id: str) -> int:
    """Return how long a transaction of this id may take at its coordinator, in ms: transaction.max.timeout.ms.

    Raise as list_all(); a principal needs the right to DESCRIBE_CONFIGS of the cluster.
    """
    timeout_ms: int = _ask(path, {"do": "max timeout", "id": transactional_id})["timeout_ms"]
    return timeout_ms


class LastSequence(NamedTuple):
    """What the leader of a partition knows of a producer: all -1 if the partition has no record of it.

    epoch     of the last record
    sequence  of the last record; -1 after the end of a transaction
    start     the offset of the first record of the open transaction; -1 if none is open
    """

    epoch: int
    sequence: int
    start: int


def last_sequences(
    path: str, producer_id: int, partitions: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], LastSequence]:
    """Return {(topic, partition): LastSequence} of a producer. Raise as list_all()."""
    found: dict[tuple[str, int], LastSequence] = {}
    for at in range(0, len(partitions), _PARTITIONS_OF_A_MESSAGE):
        asked = [list(each) for each in partitions[at : at + _PARTITIONS_OF_A_MESSAGE]]
        answer = _ask(path, {"do": "sequences", "producer_id": producer_id, "partitions": asked})
        found |= {(topic, number): LastSequence(*known) for topic, number, *known in answer["sequences"]}
    return found


def _ask(path: str, question: dict[str, Any]) -> dict[str, Any]:
    answer = request_document(path, {"op": "transactions", **question}, _TIMEOUT_S, "answer about transactions")
    if "error" in answer:
        raise TransactionQueryError(answer["error"])
    return answer
