"""Holds settings of the Kafka nodes that many tests share."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from devkafka.node import KafkaNode

# With few threads, a node that nobody uses takes less CPU time.
FEW_THREADS = {
    "num.io.threads": 2,
    "num.network.threads": 1,
    "background.threads": 2,
    "group.coordinator.threads": 1,
    "share.coordinator.threads": 1,
}
# The members of groups by KIP-848 are lost after 10 s, as those of the other protocol in the tests.
QUICK_GROUPS = {
    "group.consumer.min.session.timeout.ms": 6000,
    "group.consumer.session.timeout.ms": 10_000,
    "group.consumer.min.heartbeat.interval.ms": 1000,
    "group.consumer.heartbeat.interval.ms": 2000,
}


def shared_node(node: "KafkaNode") -> dict[str, object]:
    """Return the settings of a node of the fixtures `kafka` and `kafka3`."""
    return {"broker.rack": f"rack-{node.number}", **QUICK_GROUPS, **FEW_THREADS}
