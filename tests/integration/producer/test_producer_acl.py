"""Tests missing rights, granted while the producer lives, on a real Kafka with an authorizer."""

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import admin
from devkafka.node import KafkaCluster

from cyproducer import KafkaProducer
from cyproducer.errors import ClusterAuthorizationFailedError, TopicAuthorizationFailedError

WHO = "User:ANONYMOUS"


def rule(
    resource: admin.ResourceType, name: str, operation: admin.AclOperation, permission: admin.AclPermissionType
) -> admin.AclBinding:
    return admin.AclBinding(resource, name, admin.ResourcePatternType.LITERAL, WHO, "*", operation, permission)


ALLOWED = [
    rule(resource, name, admin.AclOperation.ALL, admin.AclPermissionType.ALLOW)
    for resource, name in ((admin.ResourceType.BROKER, "kafka-cluster"), (admin.ResourceType.TOPIC, "*"))
]
#: InitProducerId takes one of these two rights.
DENIED = [
    rule(resource, name, operation, admin.AclPermissionType.DENY)
    for resource, name, operation in (
        (admin.ResourceType.BROKER, "kafka-cluster", admin.AclOperation.IDEMPOTENT_WRITE),
        (admin.ResourceType.TOPIC, "*", admin.AclOperation.WRITE),
    )
]


@pytest.fixture
def guarded(tmp_path, register_cluster) -> Iterator[KafkaCluster]:
    """Yield a node with an authorizer that allows everything for which there is no rule."""
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with KafkaCluster(1, tmp_path, properties=authorizer) as cluster, register_cluster(cluster):
        yield cluster
        cluster.stop(grace=0)


def test_a_producer_id_that_is_refused_fails_the_records_until_the_right_is_granted(guarded, make_producer) -> None:
    topic = guarded.create_topic("t")
    client = admin.AdminClient({"bootstrap.servers": guarded.bootstrap_servers})
    for done in client.create_acls([*ALLOWED, *DENIED]).values():
        done.result(30)
    producer: KafkaProducer = make_producer(bootstrap_servers=guarded.bootstrap_servers)
    with pytest.raises(ClusterAuthorizationFailedError, match="so the record was not sent"):
        producer.send(topic, b"refused").result(60)  # delivery_timeout_ms is 120 s
    plain: KafkaProducer = make_producer(bootstrap_servers=guarded.bootstrap_servers, acks=1)
    with pytest.raises(TopicAuthorizationFailedError):  # it needs no producer id, but WRITE on the topic
        plain.send(topic, b"refused").result(60)
    filters = [
        admin.AclBindingFilter(
            each.restype, each.name, each.resource_pattern_type, WHO, "*", each.operation, each.permission_type
        )
        for each in DENIED
    ]
    for done in client.delete_acls(filters).values():
        done.result(30)
    deadline = time.monotonic() + 60
    while True:
        try:
            assert producer.send(topic, b"granted").result(60).offset == 0
            break
        except ClusterAuthorizationFailedError:  # the broker applies the change a moment later
            assert time.monotonic() < deadline
