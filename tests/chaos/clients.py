"""Says how the clients of a chaos run reach the brokers: over PLAINTEXT, or over a secure listener."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devkafka.node import KafkaCluster
from devkafka.security import LISTENERS
from support.secure_kafka import SecureKafka, running_secure_kafka
from support.secure_settings import settings_of

__all__ = ["PROTOCOLS", "Clients", "plain_clients", "running_brokers", "secure_clients"]

BROKERS = 3
#: The name of each protocol is also that of the listener.
PROTOCOLS = ("PLAINTEXT", *sorted(set(LISTENERS) & set(LISTENERS.values())))
#: ``connections.max.reauth.ms``: each connection authenticates again many times in a run.
SESSION_MS = 5000


@dataclass(frozen=True)
class Clients:
    """The settings of the clients of a cluster.

    producer    of KafkaProducer, without bootstrap_servers
    consumer    of confluent-kafka, which reads the topic back
    grant       gives both the rights on a topic
    """

    cluster: KafkaCluster
    servers: str
    producer: dict[str, Any]
    consumer: dict[str, Any]
    grant: Callable[[str], None]

    def create_topic(self, name: str, partitions: int, replication: int, configs: dict[str, str]) -> str:
        topic = self.cluster.create_topic(name, partitions, replication, configs)
        self.grant(topic)
        return topic


def plain_clients(cluster: KafkaCluster) -> Clients:
    return Clients(cluster, cluster.bootstrap_servers, {}, {}, lambda _: None)


def secure_clients(kafka: SecureKafka, protocol: str, mechanism: str | None) -> Clients:
    """Return the settings for the listener of a protocol, for alice or, without a mechanism, without a name."""
    producer = settings_of(kafka, protocol, mechanism)
    servers = producer.pop("bootstrap_servers")
    del producer["max_block_ms"]  # the runs have their own
    user = {None: "ANONYMOUS", "OAUTHBEARER": kafka.tokens.client_id}.get(mechanism, "alice")
    consumer = kafka.rdkafka(protocol, mechanism)
    return Clients(kafka.cluster, servers, producer, consumer, lambda topic: kafka.grant(topic, f"User:{user}"))


@contextlib.contextmanager
def running_brokers(protocol: str, mechanism: str | None) -> Iterator[Clients]:
    """Run the brokers of the command."""
    if protocol == "PLAINTEXT":
        with KafkaCluster(BROKERS) as cluster:
            yield plain_clients(cluster)
        return
    with tempfile.TemporaryDirectory(prefix=f"cyp-secure-{os.getpid()}-") as directory:
        with running_secure_kafka(Path(directory), BROKERS, max_reauth_ms=SESSION_MS) as kafka:
            yield secure_clients(kafka, protocol, mechanism)
