"""Where the demo's records go: a broker that was named, a real Kafka of its own, or librdkafka's imitation."""

import contextlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cyproducer.cli.kafka_node import (
    JavaMissingError,
    KafkaCluster,
    KafkaStartError,
    find_java,
    mock_cluster,
)

PARTITIONS = 6
TOPICS = ("lines", "files", "heads", "texts", "identifiers", "stream")
_ADMIN_TIMEOUT_S = 15.0
# The imitation keeps 5 MiB of a partition and drops what is older.
MOCK_LINES_MAX = 40_000


class BrokerError(Exception):
    """There is no broker to use; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Broker:
    """What was chosen. `kind` is "given", "kafka" or "mock"; `pids` are the processes of a node of ours."""

    kind: str
    servers: str
    says: str
    pids: frozenset[int] = frozenset()


@contextlib.contextmanager
def open_broker(given: str | None, port: int | None, say: Callable[[str], None]) -> Iterator[Broker]:
    """The broker that was given, else a Kafka node, else (without Java) the mock cluster; ended at the exit.

    Raises BrokerError, DownloadError, KafkaStartError.
    """
    if given is not None:
        yield Broker("given", given, f"the broker at {given}, which is used as it is")
        return
    try:
        find_java()
    except JavaMissingError as error:
        say(f"No real Kafka here: {error}")
        with mock_cluster() as servers:
            yield Broker("mock", servers, f"librdkafka's embedded mock cluster at {servers}, no real Kafka")
        return
    if port is not None:
        _require_free(port)
    say("Starting a Kafka node ...")
    with _start_node(port) as node:
        says = f"Apache Kafka at {node.bootstrap_servers}, a node of the demo's own"
        yield Broker("kafka", node.bootstrap_servers, says, frozenset(node.pids()))


@contextlib.contextmanager
def _start_node(port: int | None) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(1, ports=None if port is None else [port])
    try:
        cluster.start()
    except KafkaStartError as error:
        if port is not None or "Address already in use" not in str(error):
            raise
        # Somebody took the free port between the choice and the start.
        cluster = KafkaCluster(1)
        cluster.start()
    with contextlib.ExitStack() as stack:
        stack.callback(cluster.stop)
        yield cluster


def _require_free(port: int) -> None:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError as error:
            raise BrokerError(
                f"port {port} of 127.0.0.1 cannot be used ({os.strerror(error.errno or 0)}). Give another "
                "with --port, none for a free one, or, if a Kafka broker listens there, "
                f"--bootstrap-servers 127.0.0.1:{port}"
            ) from None


@contextlib.contextmanager
def demo_topics(broker: Broker, keep: bool) -> Iterator[dict[str, str]]:
    """Topics that nobody else has: {what for: name}; deleted at the exit from a broker that was given.

    Raises BrokerError if the broker does not answer or refuses.
    """
    stamp = f"cyproducer-demo-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    names = {topic: f"{stamp}.{topic}" for topic in TOPICS}
    if broker.kind == "mock":
        _touch_in_mock(broker.servers, list(names.values()))
        yield names
        return
    _create(broker.servers, list(names.values()))
    try:
        yield names
    finally:
        if broker.kind == "given" and not keep:
            _delete(broker.servers, list(names.values()))


def _admin(servers: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def _create(servers: str, names: list[str]) -> None:
    from confluent_kafka.cimpl import KafkaException, NewTopic

    # The records' own timestamps are years old: with the usual retention Kafka deletes them in a moment.
    config = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
    admin = _admin(servers)
    wanted = [NewTopic(name, PARTITIONS, -1, config=config) for name in names]
    made = admin.create_topics(wanted, operation_timeout=_ADMIN_TIMEOUT_S, request_timeout=_ADMIN_TIMEOUT_S)
    try:
        for future in made.values():
            future.result(_ADMIN_TIMEOUT_S + 5)
    except (KafkaException, TimeoutError) as error:
        detail = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error)
        raise BrokerError(
            f"the broker at {servers} does not create the demo's topics: {detail}. Check the address, and "
            "that this user may create topics there; without --bootstrap-servers the demo starts its own"
        ) from None


def _delete(servers: str, names: list[str]) -> None:
    admin = _admin(servers)  # without a name it would end before its requests
    deleted = admin.delete_topics(names, operation_timeout=_ADMIN_TIMEOUT_S)
    for future in deleted.values():
        with contextlib.suppress(Exception):
            future.result(_ADMIN_TIMEOUT_S + 5)


def _touch_in_mock(servers: str, names: list[str]) -> None:
    """The imitation makes a topic when a producer of librdkafka first asks for it."""
    from confluent_kafka import Producer

    asker = Producer({"bootstrap.servers": servers, "log_level": 0})
    for name in names:
        asker.list_topics(name, timeout=_ADMIN_TIMEOUT_S)


def broker_addresses(broker: Broker) -> set[tuple[str, int]]:
    """(IP address, port) of every broker of the cluster, by its own account and by the list given."""
    known = _admin(broker.servers).list_topics(timeout=_ADMIN_TIMEOUT_S).brokers.values()
    named = [(entry.host, entry.port) for entry in known]
    for server in broker.servers.split(","):
        found_in = re.fullmatch(r"\[?(.*?)\]?(?::(\d+))?", server.strip())
        if found_in is not None:
            named.append((found_in[1], int(found_in[2] or 9092)))
    found = set()
    for host, port in named:
        with contextlib.suppress(OSError):
            for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
                found.add((str(entry[4][0]), port))
    return found
