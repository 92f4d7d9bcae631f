"""Provides the broker of the demo: given brokers, a Kafka node that the demo starts, or librdkafka's mock cluster."""

import contextlib
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from devkafka.node import (
    JavaMissingError,
    KafkaCluster,
    KafkaStartError,
    find_java,
    mock_cluster,
)

PARTITIONS = 6
_ADMIN_TIMEOUT_S = 15.0
# The mock cluster keeps 5 MiB per partition and drops older records.
MOCK_LINES_MAX = 40_000


class BrokerError(Exception):
    """No broker can be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker of a run. `kind` is "given", "kafka" or "mock"."""

    kind: str
    servers: str
    description: str


@contextlib.contextmanager
def open_broker(given: str | None, port: int | None, say: Callable[[str], None]) -> Iterator[Broker]:
    """Return the given broker, else a new Kafka node, else (without Java) the mock cluster; stop it at the exit.

    Raise BrokerError (also if nobody listens at the addresses given), DownloadError, KafkaStartError.
    """
    if given is not None:
        _require_listener(given)
        yield Broker("given", given, f"the given broker at {given}")
        return
    try:
        find_java()
    except JavaMissingError as error:
        say(f"Kafka cannot be started here: {error}")
        with mock_cluster() as servers:
            yield Broker("mock", servers, f"librdkafka's embedded mock cluster at {servers}, not a real Kafka")
        return
    if port is not None:
        _require_free(port)
    say("Starting a Kafka node ...")
    with _start_node(port) as node:
        description = f"Apache Kafka at {node.bootstrap_servers}, a node that the demo has started"
        yield Broker("kafka", node.bootstrap_servers, description)


@contextlib.contextmanager
def _start_node(port: int | None) -> Iterator[KafkaCluster]:
    cluster = KafkaCluster(1, ports=None if port is None else [port])
    try:
        cluster.start()
    except KafkaStartError as error:
        if port is not None or "Address already in use" not in str(error):
            raise
        # Another process took the free port between the choice and the start.
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
                f"port {port} of 127.0.0.1 cannot be used ({os.strerror(error.errno or 0)}). Use --port with another "
                "port, leave it out for a free port, or, if a Kafka broker listens there, use "
                f"--bootstrap-servers 127.0.0.1:{port}"
            ) from None


def _require_listener(servers: str) -> None:
    """Raise BrokerError if nobody listens: Kafka's clients would try to connect until their request times out."""
    complaints = []
    for host, port in _addresses(servers):
        try:
            socket.create_connection((host, port), timeout=_ADMIN_TIMEOUT_S).close()
        except (OSError, OverflowError, UnicodeError) as error:  # the last two: an invalid port, an invalid name
            complaints.append(f"{host}:{port}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise BrokerError(
        f"no broker can be reached at {servers} ({'; '.join(complaints) or 'no address'}). Check the address; "
        "without --bootstrap-servers the demo starts its own"
    )


def _addresses(servers: str) -> list[tuple[str, int]]:
    """Return (host, port) of each entry, with Kafka's default port for an entry without a port."""
    found = (re.fullmatch(r"\[?(.*?)\]?(?::(\d+))?", server.strip()) for server in servers.split(","))
    return [(entry[1], int(entry[2] or 9092)) for entry in found if entry is not None and entry[1]]


@contextlib.contextmanager
def demo_topics(broker: Broker, names: list[str], keep: bool) -> Iterator[None]:
    """Create these topics. At the exit, delete them from a given broker, unless `keep`.

    Raise BrokerError if the broker does not answer or refuses.
    """
    if broker.kind == "mock":
        _touch_in_mock(broker.servers, names)
        yield
        return
    _create(broker.servers, names)
    try:
        yield
    finally:
        if broker.kind == "given" and not keep:
            _delete(broker.servers, names)


def _admin(servers: str) -> Any:
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def _create(servers: str, names: list[str]) -> None:
    from confluent_kafka.cimpl import KafkaException, NewTopic

    admin = _admin(servers)
    wanted = [NewTopic(name, PARTITIONS, -1) for name in names]
    made = admin.create_topics(wanted, operation_timeout=_ADMIN_TIMEOUT_S, request_timeout=_ADMIN_TIMEOUT_S)
    try:
        for future in made.values():
            future.result(_ADMIN_TIMEOUT_S + 5)
    except (KafkaException, TimeoutError) as error:
        detail = error.args[0].str() if error.args and hasattr(error.args[0], "str") else str(error)
        raise BrokerError(
            f"the broker at {servers} does not create the demo's topics: {detail}. Check the address, and whether "
            "this user may create topics there. Without --bootstrap-servers the demo starts its own broker"
        ) from None


def _delete(servers: str, names: list[str]) -> None:
    admin = _admin(servers)  # without this reference the client would be destroyed before its requests end
    deleted = admin.delete_topics(names, operation_timeout=_ADMIN_TIMEOUT_S)
    for future in deleted.values():
        with contextlib.suppress(Exception):
            future.result(_ADMIN_TIMEOUT_S + 5)


def _touch_in_mock(servers: str, names: list[str]) -> None:
    """Create topics in the mock cluster, which makes a topic when a producer of librdkafka requests its metadata."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for name in names:
        producer.list_topics(name, timeout=_ADMIN_TIMEOUT_S)
