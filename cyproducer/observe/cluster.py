"""Asks for the brokers of a cluster, and for one of its topics, through a sender. No topic is created."""

from typing import NamedTuple

from cyproducer.errors import KafkaError
from cyproducer.observe.requests import request_document

__all__ = ["BrokerAddress", "Cluster", "ClusterQueryError", "describe_cluster"]


class ClusterQueryError(KafkaError):
    """No broker has answered, or the brokers refuse this client."""


class BrokerAddress(NamedTuple):
    """A broker of the cluster, and the address that it advertises."""

    broker_id: int
    host: str
    port: int


class Cluster(NamedTuple):
    """What a broker says.

    cluster_id    None if the brokers have none
    controller    a broker's id; -1: not known
    topic_error   Kafka's code of an error of the topic, such as UNKNOWN_TOPIC_OR_PARTITION; 0: none
    leaders       {partition of the topic: broker id of its leader, or -1}
    """

    cluster_id: str | None
    controller: int
    brokers: list[BrokerAddress]
    topic_error: int
    leaders: dict[int, int]


def describe_cluster(path: str, topic: str | None, timeout: float) -> Cluster:
    """Ask through the sender with the control socket `path`, and wait up to `timeout` seconds.

    Raise ClusterQueryError with the reason if the brokers refuse this client or none answers within 30 s. Raise
    SenderUnavailableError without a sender, or without an answer in time.
    """
    question = {"op": "transactions", "do": "metadata", "topic": topic}
    answer = request_document(path, question, timeout, "answer about the cluster")
    if "error" in answer:
        raise ClusterQueryError(answer["error"])
    return Cluster(
        answer["cluster_id"],
        answer["controller"],
        [BrokerAddress(*broker) for broker in answer["brokers"]],
        answer["topic_error"],
        dict(answer["partitions"]),
    )
