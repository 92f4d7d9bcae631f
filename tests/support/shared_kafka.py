"""Starts one Kafka node for all processes of a run of pytest-xdist, and gives each of them access to it.

A test that needs the node to itself, because it counts the node's connections, waits until no other test runs.
"""

import contextlib
import fcntl
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.node_settings import shared_node
from support.process import wait_until

NODE = pytest.StashKey[tuple[str, str]]()
_FIELD = "shared_kafka"


class SharedKafka:
    """A node that another process has started: only what does not disturb the tests of other processes.

    directory   where the processes have files for their locks
    """

    def __init__(self, address: str, directory: str) -> None:
        self.bootstrap_servers = address
        self._directory = Path(directory)

    def pids(self) -> list[int]:
        """Return the processes of the node that belong to this one: none."""
        return []

    @contextlib.contextmanager
    def used(self, alone: bool) -> Iterator[None]:
        """Wait until no test uses the node alone, or until no other test uses it if `alone` is true."""
        with open(self._directory / "queue.lock", "w") as queue, open(self._directory / "use.lock", "w") as use:
            fcntl.flock(queue, fcntl.LOCK_EX)  # so that further tests do not overtake one that waits
            fcntl.flock(use, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            fcntl.flock(queue, fcntl.LOCK_UN)
            yield

    def create_topic(
        self, name: str, partitions: int = 1, replication: int = 1, configs: Mapping[str, str] | None = None
    ) -> str:
        """Create a topic, wait until the node knows it, and return its name."""
        from confluent_kafka.admin import AdminClient, NewTopic

        from cyproducer.devkafka.metadata import ask_metadata

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
    from cyproducer.devkafka.node import DownloadError, JavaMissingError, KafkaCluster

    running = contextlib.ExitStack()
    config.add_cleanup(running.close)
    directory = running.enter_context(tempfile.TemporaryDirectory(prefix="cyp-kafka-", ignore_cleanup_errors=True))
    try:
        cluster = KafkaCluster(1, Path(directory), properties=shared_node)
    except (JavaMissingError, DownloadError) as error:
        raise pytest.UsageError(str(error)) from None
    cluster.start()
    running.callback(cluster.stop, grace=0)
    config.stash[NODE] = cluster.bootstrap_servers, str(directory)


def pass_shared_kafka(node: Any) -> None:
    """Put the node's address into what a starting process of pytest-xdist is given."""
    if NODE in node.config.stash:
        node.workerinput[_FIELD] = node.config.stash[NODE]


def shared_kafka(config: pytest.Config) -> SharedKafka | None:
    """Return the shared node; None if the run has none."""
    found = getattr(config, "workerinput", {}).get(_FIELD) or config.stash.get(NODE, None)
    return SharedKafka(*found) if found else None
