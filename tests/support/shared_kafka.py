"""Starts one Kafka node for all processes of a run of pytest-xdist, and gives each of them its address."""

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from support.node_settings import shared_node
from support.process import wait_until

NODE = pytest.StashKey[str]()
_FIELD = "shared_kafka"


class SharedKafka:
    """A node that another process has started: only what does not disturb the tests of other processes."""

    def __init__(self, address: str) -> None:
        self.bootstrap_servers = address

    def pids(self) -> list[int]:
        """Return the processes of the node that belong to this one: none."""
        return []

    def create_topic(
        self, name: str, partitions: int = 1, replication: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until the node knows it, and return its name."""
        from confluent_kafka.admin import AdminClient, NewTopic
        from devkafka.metadata import ask_metadata

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        wanted = NewTopic(name, partitions, replication, config=dict(configs or {}))
        admin.create_topics([wanted], operation_timeout=30, request_timeout=30)[name].result(30)
        host, _, port = self.bootstrap_servers.partition(":")

        def known() -> bool:
            leaders = ask_metadata(host, int(port), name).leaders
            return len(leaders) == partitions and min(leaders.values()) >= 0

        wait_until(known, 30, f"the leaders of topic {name}")
        return name


def start_shared_kafka(config: pytest.Config) -> None:
    """Start the node in the process that the others report to. It ends with the run."""
    if hasattr(config, "workerinput"):
        return
    from devkafka.node import DownloadError, JavaMissingError, KafkaCluster

    running = contextlib.ExitStack()
    config.add_cleanup(running.close)
    directory = running.enter_context(tempfile.TemporaryDirectory(prefix="cyp-kafka-", ignore_cleanup_errors=True))
    try:
        cluster = KafkaCluster(1, Path(directory), properties=shared_node)
    except (JavaMissingError, DownloadError) as error:
        raise pytest.UsageError(str(error)) from None
    cluster.start()
    running.callback(cluster.stop, grace=0)
    config.stash[NODE] = cluster.bootstrap_servers


def pass_shared_kafka(node: Any) -> None:
    """Put the node's address into what a starting process of pytest-xdist is given."""
    if NODE in node.config.stash:
        node.workerinput[_FIELD] = node.config.stash[NODE]


def shared_kafka(config: pytest.Config) -> SharedKafka | None:
    """Return the shared node; None if the run has none."""
    found = getattr(config, "workerinput", {}).get(_FIELD) or config.stash.get(NODE, None)
    return SharedKafka(found) if found else None
