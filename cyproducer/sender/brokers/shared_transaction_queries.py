"""Asks the brokers what a process has to know that commits the records of many writers.

That is an offset, the last sequence numbers, and how long a transaction may take.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cyproducer.cluster.backoff import ExponentialBackoff
from cyproducer.error_table import describe, error_of
from cyproducer.protocol.versions import ApiKey
from cyproducer.sender.brokers.coordinator_calls import (
    GROUP,
    TRANSACTION,
    Answer,
    BrokerError,
    Call,
    CallError,
    NoAnswerError,
    Pause,
    Steps,
    UnsupportedError,
    ask_coordinator,
    wait_for_cluster,
)

if TYPE_CHECKING:
    from cyproducer.sender.brokers.broker_connections import Brokers

__all__ = ["committed_offset", "last_sequences", "max_timeout"]

STABLE_FROM = 7  # OffsetFetch
GROUPS_FROM = 8  # OffsetFetch
NO_SEQUENCE = -1
OF_BROKER = 4  # the resource type of DescribeConfigs
MAX_TIMEOUT = "transaction.max.timeout.ms"
_NOT_TOLD = {31: "no right to DESCRIBE_CONFIGS of the cluster (CLUSTER_AUTHORIZATION_FAILED)"}

Place = tuple[str, int]
"""A topic and the number of a partition."""


def committed_offset(brokers: "Brokers", backoff: ExponentialBackoff, group: str, place: Place) -> Steps[Answer]:
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

    yield from wait_for_cluster(brokers)
    body, _ = yield from ask_coordinator(
        brokers, backoff, (GROUP, group), lambda broker_id: Call(broker_id, ApiKey.OFFSET_FETCH, request), code_of
    )
    row = rows_of(body)[0]
    return {"offset": row["committed_offset"], "metadata": row["metadata"] or ""}


def max_timeout(brokers: "Brokers", backoff: ExponentialBackoff, transactional_id: str) -> Steps[Answer]:
    """Return {"timeout_ms"}: transaction.max.timeout.ms of the broker that coordinates the transactional id.

    The broker tells it only to a principal that may describe the configuration of the cluster.
    """

    def call_of(broker_id: int) -> Call:
        resource = {"resource_type": OF_BROKER, "resource_name": str(broker_id), "configuration_keys": [MAX_TIMEOUT]}
        return Call(broker_id, ApiKey.DESCRIBE_CONFIGS, lambda version: {"resources": [resource]})

    def code_of(body: Answer) -> int:
        return int(body["results"][0]["error_code"]) if body["results"] else -1

    yield from wait_for_cluster(brokers)
    body, broker_id = yield from ask_coordinator(
        brokers,
        backoff,
        (TRANSACTION, transactional_id),
        call_of,
        code_of,
        lambda code: f"the broker does not tell {MAX_TIMEOUT}: {_NOT_TOLD.get(code) or describe(code)}",
    )
    for config in body["results"][0]["configs"]:
        if config["name"] == MAX_TIMEOUT and (config["value"] or "").isdecimal():
            return {"timeout_ms": int(config["value"])}
    raise CallError(f"broker {broker_id} has no {MAX_TIMEOUT}")


def last_sequences(
    brokers: "Brokers", backoff: ExponentialBackoff, producer_id: int, places: Sequence[Place]
) -> Steps[Answer]:
    """Return {"sequences": [[topic, partition, epoch, last sequence, start of the transaction]]}, as in `places`.

    The last three are -1 if the partition has no record of the producer, and the start also if no transaction is open.
    """
    yield from wait_for_cluster(brokers)
    found: dict[Place, tuple[int, int, int]] = {}
    attempts = 0
    while len(found) < len(places):
        leaders = yield from _leaders(brokers, [place for place in places if place not in found])
        for leader, led in leaders.items():
            found |= yield from _sequences_of(leader, led, producer_id)
        if len(found) < len(places):
            yield Pause(backoff.delay_ms(attempts))
            attempts += 1
    return {"sequences": [[*place, *found[place]] for place in places]}


def _leaders(brokers: "Brokers", places: Sequence[Place]) -> Steps[dict[int, list[Place]]]:
    """Return the partitions by the broker id of their leader. Those without a leader now are left out."""
    topics = [{"name": name} for name in sorted({name for name, _ in places})]
    body = yield Call(None, ApiKey.METADATA, lambda version: _metadata_request(topics))
    found: dict[int, list[Place]] = {}
    for topic in body["topics"]:
        code = int(topic["error_code"])
        if code and not error_of(code).retriable:
            raise BrokerError(code, f"topic {topic['name']}: {describe(code)}")
        for partition in topic["partitions"]:
            place = topic["name"], partition["partition_index"]
            if place in places and partition["leader_id"] in brokers.metadata.brokers:
                found.setdefault(partition["leader_id"], []).append(place)
    return found


def _metadata_request(topics: list[dict[str, Any]]) -> Answer:
    return {"topics": topics, "allow_auto_topic_creation": False}


def _sequences_of(leader: int, places: list[Place], producer_id: int) -> Steps[dict[Place, tuple[int, int, int]]]:
    """Ask one leader. Partitions that it does not answer now, or does not lead, are left out."""
    topics: dict[str, list[int]] = {}
    for name, number in places:
        topics.setdefault(name, []).append(number)
    request = {"topics": [{"name": name, "partition_indexes": numbers} for name, numbers in topics.items()]}
    found: dict[Place, tuple[int, int, int]] = {}
    try:
        body = yield Call(leader, ApiKey.DESCRIBE_PRODUCERS, lambda version: request)
    except NoAnswerError:
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
