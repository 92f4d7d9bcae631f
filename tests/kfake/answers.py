"""Answers each request as a Kafka broker does. ANSWERS has the function of each API."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from cyproducer.codes import LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER, UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION
from cyproducer.protocol.schema import SUPPORTED
from kfake.codes import API_VERSIONS, DESCRIBE_PRODUCERS, GET_SUBSCRIPTIONS, INIT_PRODUCER_ID, METADATA, PRODUCE, PUSH
from kfake.coordinator import READS, WRITES
from kfake.telemetry import CLOSE, MALFORMED

if TYPE_CHECKING:
    from kfake.cluster import Cluster, Request

TELEMETRY = GET_SUBSCRIPTIONS, PUSH
PRODUCE_WITH_TOPIC_IDS = 13  # the first version


class ConnectionEndedError(Exception):
    """The connection ends instead of a response."""


def versions(cluster: "Cluster", request: "Request") -> dict[str, Any]:
    code = cluster.error_of(request)
    keys = [
        {"api_key": key, "min_version": first, "max_version": cluster.versions_most.get(key, last)}
        for key, (first, last) in sorted(SUPPORTED.items())
        if key not in cluster.apis_left_out
        if key not in (*READS, *WRITES) or cluster.coordinators is not None
        if key not in TELEMETRY or (cluster.telemetry is not None and cluster.telemetry.supports(request.node))
    ]
    features = {} if cluster.coordinators is None else cluster.coordinators.features()
    return {"error_code": code, "api_keys": keys, **features}


def metadata(cluster: "Cluster", request: "Request") -> dict[str, Any]:
    topics = [_topic(cluster, request, item["name"]) for item in request.body["topics"] or ()]
    return {"brokers": nodes(cluster), "cluster_id": "simulated", "controller_id": 1, "topics": topics}


def nodes(cluster: "Cluster") -> list[dict[str, Any]]:
    return [{"node_id": n.number, "host": n.host, "port": n.port} for n in cluster.nodes.values() if n.up]


def _topic(cluster: "Cluster", request: "Request", name: str) -> dict[str, Any]:
    view = cluster.view_of(request.node, name)
    code = cluster.error_of(request)
    if view is None or code:
        return {"error_code": code or UNKNOWN_TOPIC_OR_PARTITION, "name": name, "partitions": []}
    topic_id, leaders = view
    partitions = []
    for index, (leader, epoch) in enumerate(leaders):
        code = cluster.error_of(request)
        node = cluster.nodes.get(leader)
        if not code and (leader < 0 or (node is not None and not node.up)):
            code = LEADER_NOT_AVAILABLE
        partitions.append(
            {
                "error_code": code,
                "partition_index": index,
                "leader_id": -1 if code else leader,
                "leader_epoch": epoch,
                "replica_nodes": [],
                "isr_nodes": [],
            }
        )
    has_id = {} if topic_id is None else {"topic_id": topic_id}
    return {"error_code": 0, "name": name, "partitions": partitions, **has_id}


def producer_id(cluster: "Cluster", request: "Request") -> dict[str, Any]:
    if request.body["transactional_id"] is not None:
        return coordinated(cluster, request)
    cluster.producer_ids += 1
    code = cluster.error_of(request)
    given = (-1, -1) if code else (1000 + cluster.producer_ids, cluster.producer_epoch)
    return {"error_code": code, "producer_id": given[0], "producer_epoch": given[1]}


def producers(cluster: "Cluster", request: "Request") -> dict[str, Any]:
    topics = []
    for topic in request.body["topics"]:
        rows = [
            _producers_of(cluster, request, cluster.topics.get(topic["name"]), index)
            for index in topic["partition_indexes"]
        ]
        topics.append({"name": topic["name"], "partitions": rows})
    return {"topics": topics}


def _producers_of(cluster: "Cluster", request: "Request", topic: Any, index: int) -> dict[str, Any]:
    found = cluster.leads(request.node, topic, index)
    code = found if isinstance(found, int) else cluster.error_of(request)
    active = [
        {"producer_id": number, "producer_epoch": known.epoch, "coordinator_epoch": -1}
        for number, known in (() if code else found.producers.items())
    ]
    return {"partition_index": index, "error_code": code, "active_producers": active}


def produce(cluster: "Cluster", request: "Request") -> dict[str, Any] | None:
    topics = []
    seen = set()
    has_ids = request.version >= PRODUCE_WITH_TOPIC_IDS
    for asked in request.body["topic_data"]:
        rows = []
        topic = cluster.topic_of(asked, has_ids)
        for item in asked["partition_data"]:
            place = asked["topic_id"], asked["name"], item["index"]
            if place in seen:
                cluster.complaints.append(f"partition {item['index']} is twice in a request")
            seen.add(place)
            if topic is None and has_ids:
                cluster.met["unknown topic id"] += 1
                row = {"index": item["index"], "error_code": UNKNOWN_TOPIC_ID, "base_offset": -1}
            else:
                row = _result(cluster, request, topic, item)
            if not cluster.omits(request, item["index"]):
                rows.append(row)
        topics.append({"name": asked["name"], "topic_id": asked["topic_id"], "partition_responses": rows})
    if request.body["acks"] == 0:
        return None
    endpoints = {} if cluster.names_leader is None else {"node_endpoints": nodes(cluster)}
    return {"responses": topics, **endpoints}


def _result(cluster: "Cluster", request: "Request", topic: Any, item: dict[str, Any]) -> dict[str, Any]:
    code, offset, bad = cluster.result_of(request, topic, item)
    named = [
        {"batch_index": at, "batch_index_error_message": f"record {at} is one that this topic refuses"} for at in bad
    ]
    row = {
        "index": item["index"],
        "error_code": code,
        "base_offset": offset,
        "record_errors": named if cluster.names_bad_records() else [],
        "error_message": cluster.says if code else None,
    }
    if code == NOT_LEADER_OR_FOLLOWER and cluster.names_leader is not None:
        leader, epoch = cluster.names_leader(topic.partitions[item["index"]])
        row["current_leader"] = {"leader_id": leader, "leader_epoch": epoch}
    return row


def coordinated(cluster: "Cluster", request: "Request") -> dict[str, Any]:
    assert cluster.coordinators is not None
    return cluster.coordinators.answer(request.api, request.version, request.node, request.body, cluster.address_of)


def telemetry(cluster: "Cluster", request: "Request") -> dict[str, Any] | bytes | None:
    assert cluster.telemetry is not None
    answer = cluster.telemetry.answer(request.api, request.node, request.body)
    if answer == CLOSE:
        raise ConnectionEndedError
    if answer == MALFORMED:
        return b"\0\0\0\x05" + request.correlation_id.to_bytes(4, "big") + b"\0"
    assert not isinstance(answer, int)
    return answer


ANSWERS: dict[int, Callable[["Cluster", "Request"], dict[str, Any] | bytes | None]] = {
    PRODUCE: produce,
    METADATA: metadata,
    API_VERSIONS: versions,
    INIT_PRODUCER_ID: producer_id,
    DESCRIBE_PRODUCERS: producers,
    **dict.fromkeys((*READS, *WRITES), coordinated),
    **dict.fromkeys(TELEMETRY, telemetry),
}
