"""Tests that producers with small differences share a sender, with a real Kafka."""

from collections.abc import Callable
from typing import Any

from devkafka.node import KafkaCluster

from cyproducer.observe.status import status

#: As nine programs of one host give them.
DIFFERENT: tuple[dict[str, Any], ...] = (
    {},
    {"bootstrap_servers": "localhost"},
    {"client_id": "shop"},
    {"client_id": "billing", "acks": 1},
    {"linger_ms": 50, "compression_type": "lz4"},
    {"batch_size": 1 << 20, "buffer_memory": 8 << 20},
    {"max_block_ms": 10_000, "delivery_timeout_ms": 60_000, "key_serializer": str.encode},
    {"enable_idempotence": False, "retries": 3, "sender_idle_timeout_ms": 5_000},
    {"transactional_id": "orders", "transaction_timeout_ms": 20_000, "client_id": "orders"},
)


def test_nine_producers_with_small_differences_share_one_sender(
    kafka: KafkaCluster, topic: str, make_producer: Callable[..., Any]
) -> None:
    producers = []
    for number, settings in enumerate(DIFFERENT):
        if "bootstrap_servers" in settings:
            settings = {"bootstrap_servers": kafka.bootstrap_servers.replace("127.0.0.1", "localhost")}
        producer = make_producer(**settings)
        producers.append(producer)
        if "transactional_id" in settings:
            producer.init_transactions()
            with producer.transaction():
                future = producer.send(topic, b"%d" % number)
        else:
            future = producer.send(topic, b"%d" % number)
        assert future.result(60).topic == topic
    (sender,) = status()
    assert len(sender["front_ends"]) == len(DIFFERENT)
    assert sender["client_id"] == "cyproducer"
    ids = [row["client_id"] for row in sender["front_ends"]]
    assert ids == [settings.get("client_id", "cyproducer") for settings in DIFFERENT]


def test_a_group_keeps_senders_apart(topic: str, make_producer: Callable[..., Any]) -> None:
    for name in ("shop", "billing"):
        make_producer(client_id=name, sender_group=name).send(topic, b"x").result(60)
    assert sorted(sender["client_id"] for sender in status()) == ["billing", "shop"]
