"""Tests a producer whose brokers are all replaced, on real Kafka nodes (testProducerRebootstrap in Kafka)."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.consumer import read_topic
from unanswered.proxy import AnswerProxy

from cyproducer import errors


@pytest.fixture
def successor(tmp_path: Path, register_cluster: Callable) -> Iterator[KafkaCluster]:
    """Yield a second cluster, which takes the place of the first one."""
    with KafkaCluster(1, tmp_path) as cluster, register_cluster(cluster):
        yield cluster
        cluster.stop(grace=0)


def port_of(cluster: KafkaCluster) -> int:
    return int(cluster.bootstrap_servers.rpartition(":")[2])


@pytest.mark.parametrize("strategy", ["rebootstrap", pytest.param("none", marks=pytest.mark.long)])
def test_a_producer_follows_its_bootstrap_address_to_other_brokers(
    strategy: str, kafka: KafkaCluster, successor: KafkaCluster, make_producer: Callable
) -> None:
    topic = f"replaced-{strategy}"
    kafka.create_topic(topic)
    successor.create_topic(topic)
    with AnswerProxy(port_of(kafka)) as proxy:
        producer = make_producer(
            bootstrap_servers=f"127.0.0.1:{proxy.port}",
            metadata_recovery_strategy=strategy,
            request_timeout_ms=2000,
            delivery_timeout_ms=8000 if strategy == "none" else 60_000,
            max_block_ms=60_000,
        )
        producer.send(topic, b"first").result(60)
        proxy.target = port_of(successor)
        proxy.cut()
        kafka.kill()
        future = producer.send(topic, b"second")
        if strategy == "none":
            with pytest.raises((errors.KafkaTimeoutError, errors.OutcomeUnknownError)):
                future.result(60)
            return
        future.result(60)
        assert read_topic(successor.bootstrap_servers, topic, 1).value == [b"second"]
