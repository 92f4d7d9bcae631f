"""Starts the three brokers, one of them behind a proxy, and does to them what administrators do."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import ElectionType, Producer, TopicPartition, admin
from devkafka.jars import KAFKA_VERSION
from devkafka.metadata import Metadata, ask_metadata
from devkafka.node import HOST, KafkaCluster, KafkaNode, free_ports
from kafka import TopicPartition as Place
from kafka.admin import KafkaAdminClient

from faults.proxy import PortProxy

NODES = 3
#: The node whose port clients reach through the proxy.
PROXIED = 3
WAIT_S = 90.0
#: The value of the records of `await_writable`.
PROBE = b"probe"
_POLL_S = 0.01
_ANYONE = "User:ANONYMOUS"
# Controllers must talk to each other before the rules are loaded, which only a user of a name in super.users may do.
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "super.users": "User:controller",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": (
        f'{_LOGIN} username="controller" password="local" user_controller="local";'
    ),
}
_RIGHTS = ("READ", "DESCRIBE", "DELETE", "ALTER", "ALTER_CONFIGS", "DESCRIBE_CONFIGS", "WRITE")


class FaultyCluster:
    """Three brokers with an authorizer. The tests reach them by a listener of their own, producers by another one."""

    def __init__(self, kafka: KafkaCluster, direct: list[int], proxy: PortProxy) -> None:
        self.kafka = kafka
        self.proxy = proxy
        self._direct = direct

    @property
    def bootstrap_servers(self) -> str:
        """The brokers as producers reach them."""
        ports = [node.port for node in self.kafka.nodes]
        ports[PROXIED - 1] = self.proxy.port
        return ",".join(f"{HOST}:{port}" for port in ports)

    @property
    def direct(self) -> str:
        """The brokers as the tests reach them: without the proxy."""
        return ",".join(f"{HOST}:{port}" for port in self._direct)

    # ------------------------------------------------------------------ what the brokers know

    def running(self) -> list[KafkaNode]:
        return [node for node in self.kafka.nodes if node.pid is not None and not node.paused]

    def metadata(self, node: KafkaNode, topic: str) -> Metadata:
        return ask_metadata(HOST, self._direct[node.number - 1], topic)

    def await_metadata(self, topic: str, ready: Callable[[Metadata], bool], what: str, timeout: float = WAIT_S) -> int:
        """Wait until the metadata of every running broker is `ready`; return the time (monotonic ns)."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                if all(ready(self.metadata(node, topic)) for node in self.running()):
                    return time.monotonic_ns()
            except OSError:
                pass  # it has just started, or is just ending
            if time.monotonic() > deadline:
                raise AssertionError(f"topic {topic}: {what} did not come true within {timeout:g} s")
            time.sleep(_POLL_S)

    def await_leaders(self, topic: str, partitions: int) -> int:
        """Wait until each partition has a running leader and enough replicas in sync; return the time."""
        alive = {node.number for node in self.running()}

        def ready(known: Metadata) -> bool:
            return len(known.leaders) == partitions and all(
                leader in alive and len(alive.intersection(known.in_sync[partition])) >= 2
                for partition, leader in known.leaders.items()
            )

        return self.await_metadata(topic, ready, "a leader for each partition")

    def await_these_leaders(self, topic: str, wanted: dict[int, int]) -> int:
        """Wait until the partitions have these leaders; return the time."""
        return self.await_metadata(topic, lambda known: known.leaders == wanted, "the election of the leaders")

    def await_in_sync(self, topic: str, replicas: int = NODES) -> int:
        """Wait until all replicas of each partition are in sync; return the time."""

        def ready(known: Metadata) -> bool:
            return bool(known.in_sync) and all(len(nodes) == replicas for nodes in known.in_sync.values())

        return self.await_metadata(topic, ready, "all replicas in sync")

    def await_writable(self, topic: str, partitions: int) -> int:
        """Wait until a new foreign producer has written a record to each partition; return the time.

        A broker that leads its partitions is not yet well: after a start it needs time for its first requests.
        """
        left = set(range(partitions))
        deadline = time.monotonic() + WAIT_S
        while left and time.monotonic() < deadline:
            producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 0, "log_level": 0})
            for partition in sorted(left):
                producer.produce(
                    topic,
                    PROBE,
                    partition=partition,
                    on_delivery=lambda error, message: left.discard(message.partition()) if error is None else None,
                )
            producer.flush(WAIT_S)
        if left:
            raise AssertionError(f"topic {topic}: a foreign producer cannot write to the partitions {sorted(left)}")
        return time.monotonic_ns()

    # ------------------------------------------------------------------ administration

    def _ask(self, ask: Callable[[admin.AdminClient], Any]) -> None:
        """Ask a client, which keeps its sockets as long as it lives, and wait for the answers."""
        client = admin.AdminClient({"bootstrap.servers": self.direct, "log_level": 0})
        for answer in ask(client).values():
            answer.result(WAIT_S)

    def create_topic(self, name: str, partitions: int, replication: int) -> None:
        """Create a topic and wait until all brokers have its leaders."""
        wanted = admin.NewTopic(name, partitions, replication)
        self._ask(lambda client: client.create_topics([wanted], operation_timeout=WAIT_S, request_timeout=WAIT_S))
        self.await_leaders(name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until no broker knows it."""
        self._ask(lambda client: client.delete_topics([name], operation_timeout=WAIT_S, request_timeout=WAIT_S))
        self.await_metadata(name, lambda known: not known.leaders, "the end of the topic")

    def add_partitions(self, name: str, total: int) -> None:
        self._ask(lambda client: client.create_partitions([admin.NewPartitions(name, total)]))

    def configure(self, topic: str, name: str, value: str | None) -> None:
        """Set a setting of a topic; None takes it back."""
        operation = admin.AlterConfigOpType.DELETE if value is None else admin.AlterConfigOpType.SET
        entry = admin.ConfigEntry(name, value, incremental_operation=operation)
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=[entry])
        self._ask(lambda client: client.incremental_alter_configs([resource]))

    def elect_preferred(self, topic: str, partitions: int) -> None:
        """Make the first replica of each partition its leader, unless it is already."""
        places = [TopicPartition(topic, partition) for partition in range(partitions)]
        # The client fails with any of the two timeouts.
        self._ask(lambda client: {"": client.elect_leaders(ElectionType.PREFERRED, places)})

    def assign(self, topic: str, replicas: dict[int, list[int]]) -> None:
        """Begin to move partitions to other replicas, or to change the order of their replicas."""
        client = KafkaAdminClient(bootstrap_servers=self.direct)
        try:
            answer = client.alter_partition_reassignments({Place(topic, part): to for part, to in replicas.items()})
            refused = {place: error for place, error in answer.items() if error is not None}
            if refused:
                raise AssertionError(f"the reassignment of {topic} was refused: {refused}")
        finally:
            client.close()

    def replicas(self, topic: str) -> dict[int, list[int]]:
        """Return the replicas of each partition, the preferred leader first."""
        client = admin.AdminClient({"bootstrap.servers": self.direct, "log_level": 0})
        found = client.list_topics(topic, timeout=30).topics[topic].partitions
        return {number: list(partition.replicas) for number, partition in found.items()}

    def limit_bytes(self, rate: int | None) -> None:
        """Set the quota of each client id, in bytes a second and broker; None takes it back."""
        change = ["--delete-config", "producer_byte_rate"]
        if rate is not None:
            change = ["--add-config", f"producer_byte_rate={rate}"]
        clients = ["--entity-type", "clients", "--entity-default"]
        self.kafka.tool("kafka.admin.ConfigCommand", "--bootstrap-server", self.direct, "--alter", *change, *clients)

    def allow(self, topic: str) -> None:
        """Give every client its rights to a topic by name, so that one of them can be withdrawn."""
        self._ask(lambda client: client.create_acls([_rule(topic, right) for right in _RIGHTS]))

    def allow_write(self, topic: str, on: bool) -> None:
        """Withdraw the right to write, or give it back."""
        rule = _rule(topic, "WRITE")
        if on:
            self._ask(lambda client: client.create_acls([rule]))
            return
        pattern = admin.ResourcePatternType.LITERAL
        chosen = admin.AclBindingFilter(
            admin.ResourceType.TOPIC, topic, pattern, _ANYONE, "*", rule.operation, rule.permission_type
        )
        self._ask(lambda client: client.delete_acls([chosen]))


def _rule(topic: str, right: str) -> admin.AclBinding:
    return admin.AclBinding(
        admin.ResourceType.TOPIC,
        topic,
        admin.ResourcePatternType.LITERAL,
        _ANYONE,
        "*",
        admin.AclOperation[right],
        admin.AclPermissionType.ALLOW,
    )


@contextlib.contextmanager
def faulty_cluster(
    version: str = KAFKA_VERSION, directory: str | os.PathLike[str] | None = None
) -> Iterator[FaultyCluster]:
    """Start the nodes and the proxy, and end them after the block."""
    ports = free_ports(2 * NODES + 1)
    listening, direct, proxied = ports[:NODES], ports[NODES:-1], ports[-1]
    recent = version == KAFKA_VERSION

    def properties(node: KafkaNode) -> dict[str, object]:
        at = node.number - 1
        mine = proxied if node.number == PROXIED else listening[at]
        found: dict[str, object] = {
            "listeners": f"PLAINTEXT://{HOST}:{listening[at]},DIRECT://{HOST}:{direct[at]},"
            f"CONTROLLER://{HOST}:{node.controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{mine},DIRECT://{HOST}:{direct[at]}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,DIRECT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "DIRECT",
            # A client is throttled for at most this time.
            "quota.window.num": 2,
            "quota.window.size.seconds": 1,
        }
        return found | (_AUTHORIZER if recent else {})

    with contextlib.ExitStack() as stack:
        kafka = stack.enter_context(
            KafkaCluster(NODES, directory, ports=listening, properties=properties, version=version)
        )
        proxy = stack.enter_context(PortProxy(proxied, listening[PROXIED - 1]))
        yield FaultyCluster(kafka, direct, proxy)
