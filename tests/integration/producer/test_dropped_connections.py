"""Measures how long a record takes on a connection to a real Kafka that was dropped silently while it was idle.

A proxy stands for the load balancer. It forgets the connections that it has, and takes new ones. The kernel drops their
packets.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from devkafka.node import HOST, KafkaCluster, KafkaNode
from support.dropped_packets import drop_arriving
from support.process import wait_until
from support.tcp_server import serving

from cyproducer import KafkaProducer

pytestmark = [pytest.mark.long, pytest.mark.as_root]

Make = Callable[..., KafkaProducer]
MOST_S = 3.0
KEEPALIVE_S = 10 + 4 * 3


class Balancer:
    """A broker behind a proxy, which is the address that it advertises."""

    def __init__(self, kafka: KafkaCluster, port: int, taken: list[socket.socket]) -> None:
        self.kafka = kafka
        self.address = f"{HOST}:{port}"
        self._taken = taken

    def forget(self) -> None:
        """Drop what arrives on the present connections from here on."""
        for connection in self._taken:
            try:
                drop_arriving(connection)
            except OSError:
                if connection.fileno() >= 0:  # else it has ended
                    raise


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def balancer(register_cluster: Callable[[KafkaCluster], AbstractContextManager[None]]) -> Iterator[Balancer]:
    taken: list[socket.socket] = []
    behind: list[tuple[str, int]] = []

    def handle(connection: socket.socket) -> None:
        taken.append(connection)
        with socket.create_connection(behind[0]) as broker:
            back = threading.Thread(target=pump, args=(broker, connection))
            back.start()
            pump(connection, broker)
            back.join()

    with serving(handle) as port:

        def properties(node: KafkaNode) -> dict[str, object]:
            behind.append((HOST, node.port))
            return {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}"}

        with KafkaCluster(properties=properties) as kafka, register_cluster(kafka):
            yield Balancer(kafka, port, taken)


def test_a_record_on_a_dropped_connection(
    balancer: Balancer, make_producer: Make, runtime_dir: Path, record_property: Callable[[str, object], None]
) -> None:
    """It is dropped just before the record, so no probe has found it."""
    topic = balancer.kafka.create_topic("dropped")
    producer = make_producer(bootstrap_servers=balancer.address)
    times = []
    for number in range(5):
        producer.send(topic, b"before").result(30)
        time.sleep(2)
        balancer.forget()
        begin = time.monotonic()
        assert producer.send(topic, b"after").result(30).offset == 2 * number + 1
        times.append(time.monotonic() - begin)
    record_property("seconds", times)
    assert max(times) < MOST_S, times
    log = "".join(path.read_text() for path in runtime_dir.glob("*.log"))
    assert log.count("nothing that is sent reaches it") == 5


def connections(runtime_dir: Path) -> int:
    """Return how many connections the sender has had so far."""
    return "".join(path.read_text() for path in runtime_dir.glob("*.log")).count("connected to broker")


def test_a_dropped_connection_is_found_while_it_is_idle(
    balancer: Balancer, make_producer: Make, runtime_dir: Path
) -> None:
    """Probes are not answered. The sender makes another connection before there is a record for it."""
    topic = balancer.kafka.create_topic("probed")
    producer = make_producer(bootstrap_servers=balancer.address)
    producer.send(topic, b"before").result(30)
    before = connections(runtime_dir)
    time.sleep(1)  # the last acknowledgement arrives, so that the proxy does not send its answer again
    balancer.forget()
    begin = time.monotonic()
    wait_until(lambda: connections(runtime_dir) == before + 1, 60, "another connection")
    assert time.monotonic() - begin < KEEPALIVE_S + 10
    begin = time.monotonic()
    assert producer.send(topic, b"after").result(30).offset == 1
    assert time.monotonic() - begin < 1


@pytest.mark.parametrize("stopped_s", [5, 25])
def test_a_stopped_broker_keeps_its_connection(
    kafka: KafkaCluster, make_producer: Make, runtime_dir: Path, stopped_s: float
) -> None:
    """Its kernel acknowledges what it gets, also probes. It is stopped while the connection is idle, and then used.

    The controller may have fenced the broker meanwhile, so that it refuses the first batches and gets them again.
    """
    topic = kafka.create_topic(f"stopped-{stopped_s}")
    producer = make_producer(bootstrap_servers=kafka.bootstrap_servers, request_timeout_ms=60_000)
    producer.send(topic, b"before").result(30)
    time.sleep(2)
    before = connections(runtime_dir)
    kafka.pause(1)
    try:
        futures = [producer.send(topic, bytes(100_000)) for _ in range(100)]
        time.sleep(stopped_s)
        assert not any(future.done() for future in futures)
    finally:
        kafka.resume(1)
    assert [future.result(60).offset for future in futures] == list(range(1, 101))
    assert connections(runtime_dir) == before
