"""Chooses the protocol of transactions of a real cluster: transaction.version 1, or 2 (KIP-890)."""

from devkafka.node import KafkaCluster
from kafka import KafkaAdminClient

from support.process import wait_until

FEATURE = "transaction.version"
# The broker aborts a transaction 200 ms after its time limit, and not 10 s after it.
QUICK_ABORT = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}


def level_of(address: str) -> int:
    """Return the level of the feature that a broker announces; 0 if it announces none."""
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        return int(admin.describe_features()[FEATURE].get("finalized", (0, 0))[1])
    finally:
        admin.close()


def use_level(cluster: KafkaCluster, level: int) -> None:
    """Change the level of the feature, and wait until all brokers announce it."""
    former = level_of(cluster.nodes[0].address)
    if former != level:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        kind = "UPGRADE" if level > former else "SAFE_DOWNGRADE"
        assert admin.update_features({FEATURE: (kind, level)}) == {FEATURE: "OK"}
        admin.close()
    for node in cluster.nodes:
        wait_until(lambda node=node: level_of(node.address) == level, 30, f"{node.address} has level {level}")
