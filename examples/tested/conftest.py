"""Defines two fixtures: a producer that sends nothing, and one for a real Kafka."""

import os
import uuid
from collections.abc import Iterator
from unittest import mock

import orders
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from cyproducer import KafkaProducer, RecordMetadata
from cyproducer.testing import KafkaProducerSpec


@pytest.fixture
def producer(monkeypatch: pytest.MonkeyPatch) -> mock.Mock:
    """Replace the application's producer by one that refuses wrong arguments, and writes each record at offset 0."""
    made: mock.Mock = mock.create_autospec(KafkaProducerSpec, instance=True)
    made.send.return_value.result.return_value = RecordMetadata(
        "orders", partition=0, offset=0, timestamp=0, serialized_key_size=0, serialized_value_size=0
    )
    monkeypatch.setattr(orders, "producer", made)
    return made


@pytest.fixture(scope="session")
def real_producer() -> Iterator[KafkaProducer]:
    """Make a producer for a real Kafka. Its sender ends one second after the last process of the test run."""
    with KafkaProducer(
        bootstrap_servers=os.environ["KAFKA"], sender_group="tests", sender_idle_timeout_ms=1000
    ) as made:
        yield made


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch, real_producer: KafkaProducer) -> Iterator[str]:
    """Let the application use a real Kafka, and a topic of the test's own; yield the topic."""
    admin = AdminClient({"bootstrap.servers": os.environ["KAFKA"]})
    topic = f"test-{uuid.uuid4()}"
    admin.create_topics([NewTopic(topic, num_partitions=1)])[topic].result()
    monkeypatch.setattr(orders, "producer", real_producer)
    monkeypatch.setattr(orders, "TOPIC", topic)
    yield topic
    admin.delete_topics([topic])[topic].result()
