"""Starts Kafka nodes behind answer proxies: producers reach them through these, the tests directly."""

import contextlib
import time
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from devkafka.node import HOST, KafkaCluster, KafkaNode, free_ports

from unanswered.proxy import AnswerProxy

NEVER_EXPIRES_MS = 86_400_000
EXPIRES_MS = 1_000


class ProxiedCluster:
    """`nodes` Kafka nodes; the producers' listener is advertised as the proxy's address, the other one as its own."""

    def __init__(self, kafka: KafkaCluster, proxies: list[AnswerProxy], direct: list[int]) -> None:
        self.kafka = kafka
        self.proxies = proxies
        self.direct = ",".join(f"{HOST}:{port}" for port in direct)

    @property
    def bootstrap_servers(self) -> str:
        """The producers' bootstrap servers: the proxies."""
        return ",".join(f"{HOST}:{proxy.port}" for proxy in self.proxies)

    def swallow(self, on: bool) -> None:
        for proxy in self.proxies:
            proxy.swallow = on

    def refuse(self, on: bool) -> None:
        for proxy in self.proxies:
            proxy.refuse = on

    def cut(self) -> None:
        for proxy in self.proxies:
            proxy.cut()

    def log_of(self, topic: str, partition: int) -> dict[int, bytes]:
        """Return {offset: value} of a partition, read by a foreign client."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.direct,
                "group.id": "reader",
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
                "log_level": 0,
            }
        )
        try:
            low, high = _watermarks(consumer, topic, partition)
            consumer.assign([TopicPartition(topic, partition, low)])
            found: dict[int, bytes] = {}
            deadline = time.monotonic() + 60
            while len(found) < high - low and time.monotonic() < deadline:
                message = consumer.poll(0.5)
                if message is not None and not message.error():
                    found[message.offset()] = message.value()
            return found
        finally:
            consumer.close()

    def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """Return where the log of each partition ends, whatever outcomes the producers have."""
        consumer = Consumer({"bootstrap.servers": self.direct, "group.id": "reader", "log_level": 0})
        try:
            return {partition: _watermarks(consumer, topic, partition)[1] for partition in range(partitions)}
        finally:
            consumer.close()

    def await_ends(self, topic: str, wanted: dict[int, int], timeout: float) -> dict[int, int]:
        """Wait until each log ends at its offset, or time is up (a connection takes five requests without answer)."""
        deadline = time.monotonic() + timeout
        while (ends := self.ends(topic, len(wanted))) != wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        return ends

    def _admin(self) -> AdminClient:
        """Make a client for one use: it keeps its sockets as long as it lives."""
        return AdminClient({"bootstrap.servers": self.direct, "log_level": 0})

    def delete_records(self, topic: str, ends: dict[int, int]) -> None:
        """Delete everything below these offsets."""
        admin = self._admin()
        asked = admin.delete_records([TopicPartition(topic, p, end) for p, end in ends.items()])
        for answer in asked.values():
            answer.result(30)

    def expire_producers(self, after_ms: int) -> None:
        """Set producer.id.expiration.ms of all nodes; they check their state ten times a second."""
        admin = self._admin()
        for node in self.kafka.nodes:
            resource = ConfigResource(
                ResourceType.BROKER,
                str(node.number),
                incremental_configs=[
                    ConfigEntry("producer.id.expiration.ms", str(after_ms), incremental_operation=AlterConfigOpType.SET)
                ],
            )
            for answer in admin.incremental_alter_configs([resource]).values():
                answer.result(30)


def _watermarks(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return (first offset, end) of a partition; a leader that was just elected may refuse at first."""
    deadline = time.monotonic() + 30
    while True:
        try:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
            return int(low), int(high)
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def proxied_cluster(nodes: int) -> Iterator[ProxiedCluster]:
    """Start the nodes and their proxies, and end them after the block."""
    ports, direct = free_ports(2 * nodes)[:nodes], []
    while len(direct) < nodes:
        direct += [port for port in free_ports(1) if port not in ports]
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(AnswerProxy(port)) for port in ports]

        def properties(node: KafkaNode) -> dict[str, object]:
            at = node.number - 1
            return {
                "listeners": f"PLAINTEXT://{HOST}:{ports[at]},DIRECT://{HOST}:{direct[at]},"
                f"CONTROLLER://{HOST}:{node.controller_port}",
                "advertised.listeners": f"PLAINTEXT://{HOST}:{proxies[at].port},DIRECT://{HOST}:{direct[at]}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "inter.broker.listener.name": "DIRECT",
                "producer.id.expiration.check.interval.ms": 100,
                "producer.id.expiration.ms": NEVER_EXPIRES_MS,
            }

        kafka = stack.enter_context(KafkaCluster(nodes, ports=ports, properties=properties))
        yield ProxiedCluster(kafka, proxies, direct)
