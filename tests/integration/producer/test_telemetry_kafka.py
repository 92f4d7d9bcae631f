"""Tests the push of metrics (KIP-714) to a real Kafka node with a plugin that keeps what clients push."""

import math
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.process import wait_until
from support.supervised import another, kill, pair, the_sender
from support.telemetry_node import Push, TelemetryNode, telemetry_node

from cyproducer import KafkaProducer
from cyproducer.errors import IllegalStateError

STARTS = "org.apache.kafka.producer."
RECORDS = 50


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, register_cluster: Callable[..., Any]) -> Iterator[TelemetryNode]:
    with telemetry_node(tmp_path_factory.mktemp("telemetry")) as node, register_cluster(node.cluster):
        for name in ("whole", "shared", "killed"):
            node.subscribe(name, STARTS, 200)
        node.subscribe("part", f"{STARTS}record.queue.time.,{STARTS}node.request.latency.max", 200)
        yield node


@pytest.fixture
def make(node: TelemetryNode, make_producer: Callable[..., Any]) -> Callable[..., KafkaProducer]:
    def make(client_id: str, **settings: Any) -> KafkaProducer:
        return make_producer(
            bootstrap_servers=node.cluster.bootstrap_servers, client_id=client_id, sender_group=client_id, **settings
        )

    return make


def send(producer: KafkaProducer, topic: str, count: int = RECORDS) -> None:
    for number in range(count):
        producer.send(topic, b"value %d" % number, partition=0)
    producer.flush(60)


def of_last(pushes: list[Push]) -> list[Push]:
    """Return the pushes of the last client instance."""
    return [push for push in pushes if push.client_instance_id == pushes[-1].client_instance_id]


def total(pushes: list[Push], name: str, **attributes: str) -> float:
    """Return what the sums of all pushes add up to: a broker of Kafka wants deltas."""
    return sum(push.payload.values.get((STARTS + name, tuple(attributes.items())), 0) for push in pushes)


def pushed(node: TelemetryNode, client_id: str, records: int, terminating: bool = False) -> list[Push]:
    """Wait until the last client instance has pushed so many records, and return its pushes.

    A record counts when it is sent. The answer, which the latency tells, may come after the next push.
    """

    def enough() -> list[Push]:
        found = of_last(node.pushes(client_id))
        if not found or total(found, "record.send.total") != records or found[-1].terminating != terminating:
            return []
        return found if (STARTS + "request.latency.avg", ()) in found[-1].payload.values else []

    return wait_until(enough, 60, f"pushes with {records} records")


def test_what_a_broker_receives_is_what_metrics_shows(node: TelemetryNode, make: Any, new_topic: Any) -> None:
    topic = new_topic(1, cluster=node.cluster)
    producer = make("whole")
    send(producer, topic)
    pushes = pushed(node, "whole", RECORDS)
    identity = producer.client_instance_id(0)
    assert isinstance(identity, uuid.UUID)
    assert {(push.client_instance_id, push.content_type) for push in pushes} == {(identity, "OTLP")}
    shown = producer.metrics()

    def compare(group: str, middle: str, names: set[str], **attributes: str) -> None:
        values = {}
        for name in names:
            full = middle + name.replace("-", ".")
            last = pushes[-1].payload.values.get((STARTS + full, tuple(attributes.items())), math.nan)
            values[name] = total(pushes, full, **attributes) if name.endswith("-total") else last
        assert values == pytest.approx({name: shown[group][name] for name in names}, nan_ok=True), group

    # what does not change with time, or with a push
    steady = ("batch-", "record-", "records-", "produce-throttle", "connection-c", "bufferpool", "buffer-", "request-l")
    names = {name for name in shown["producer-metrics"] if name.startswith(steady) and not name.endswith("-rate")}
    names -= {"record-accepted-total", "batch-total", "batch-error-total", "batches-pending"}
    assert len(names) == 23
    compare("producer-metrics", "", names)
    of_topic = {"record-send-total", "byte-total", "compression-rate", "record-error-total"}
    compare("producer-topic-metrics." + topic, "topic.", of_topic, topic=topic)
    latency = {"request-latency-avg", "request-latency-max"}
    compare("producer-node-metrics.node-1", "node.", latency, node_id="node-1")
    # KIP-714 requires these of every producer
    for name in ("connection.creation.rate", "connection.creation.total", "produce.throttle.time.avg",
                 "produce.throttle.time.max", "record.queue.time.avg", "record.queue.time.max"):  # fmt: skip
        assert (STARTS + name, ()) in pushes[-1].payload.values
    assert not any(push.terminating for push in pushes)
    producer.close()
    ended = pushed(node, "whole", RECORDS, terminating=True)
    assert [push.terminating for push in ended] == [False] * (len(ended) - 1) + [True]


def test_without_a_subscription_nothing_is_pushed(node: TelemetryNode, make: Any, new_topic: Any) -> None:
    producer = make("other")
    assert producer.client_instance_id(60) is not None  # the broker was asked
    send(producer, new_topic(1, cluster=node.cluster))
    observed = make("whole")  # has time for a push, so the other one had time, too
    before = len(node.pushes("whole"))
    send(observed, new_topic(1, cluster=node.cluster))
    wait_until(lambda: len(node.pushes("whole")) > before + 2, 60, "pushes")
    producer.close()
    assert node.pushes("other") == []


def test_only_the_requested_metrics_are_pushed(node: TelemetryNode, make: Any, new_topic: Any) -> None:
    send(make("part"), new_topic(1, cluster=node.cluster))
    wanted = {"record.queue.time.avg", "record.queue.time.max", "node.request.latency.max"}

    def names() -> set[str]:
        return {name.removeprefix(STARTS) for push in node.pushes("part") for name in push.payload.names()}

    wait_until(lambda: names() >= wanted, 60, "the metrics")
    assert names() == wanted


def test_producers_of_one_sender_are_one_client(node: TelemetryNode, make: Any, new_topic: Any) -> None:
    topic = new_topic(1, cluster=node.cluster)
    one, other = make("shared"), make("shared")
    send(one, topic)
    send(other, topic)
    push = pushed(node, "shared", 2 * RECORDS)[-1]
    assert one.client_instance_id(0) == other.client_instance_id(0) == push.client_instance_id
    assert one.metrics()["producer-metrics"]["record-send-total"] == RECORDS
    assert len({push.client_instance_id for push in node.pushes("shared")}) == 1


def test_a_successor_is_another_client_and_counts_from_its_start(
    node: TelemetryNode, make: Any, new_topic: Any
) -> None:
    topic = new_topic(1, cluster=node.cluster)
    producer = make("killed")
    send(producer, topic)
    before = pushed(node, "killed", RECORDS)[-1]
    former = pair()
    kill("sender")
    another(former)
    send(producer, topic, 7)
    after = pushed(node, "killed", 7)[-1]
    assert after.client_instance_id == producer.client_instance_id(0) != before.client_instance_id
    assert the_sender()["metrics"]["producer-metrics"]["record-send-total"] == RECORDS + 7


def test_a_broker_without_a_plugin_assigns_no_id(kafka: Any, make_producer: Any, topic: str) -> None:
    producer = make_producer()
    send(producer, topic)
    assert producer.client_instance_id(0.3) is None


def test_a_named_sender_that_does_not_push_has_no_id(make_producer: Any, foreground: Any) -> None:
    named = foreground(settings={"enable_metrics_push": False}).ready()
    with pytest.raises(IllegalStateError, match="enable_metrics_push=False"):
        make_producer(sender=str(named.socket)).client_instance_id(5)


def test_a_producer_that_does_not_push_has_no_id(make_producer: Any) -> None:
    producer = make_producer(bootstrap_servers="127.0.0.1:9", **{"enable.metrics.push": "false"})
    with pytest.raises(IllegalStateError, match="enable_metrics_push=False"):
        producer.client_instance_id()
    with pytest.raises(ValueError, match="timeout=-1"):
        producer.client_instance_id(-1)
