"""Tests that a broker that takes connections, and does not go on with TLS, stops no other broker's connection."""

import socket
from collections.abc import Callable

from support.process import wait_until
from support.secure_kafka import SecureKafka, secure_kafka_fixture
from support.secure_settings import SettingsFor
from support.tcp_server import serving

from cyproducer import KafkaProducer
from cyproducer.observe.status import status

Make = Callable[..., KafkaProducer]
PARTITIONS = 12
COUNT = 300
LIMITS = ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms")

secure_kafka = secure_kafka_fixture(nodes=3)


def states() -> dict[int, str]:
    """Return the states of the sender's connections by the numbers of the brokers, as far as it knows these."""
    [running] = status()
    return {each["broker_id"]: each["state"] for each in running["connections"]}


def test_a_broker_that_stalls(secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor) -> None:
    """A node is stopped before the sender has a connection to it. The kernel takes the connection for it."""
    topic = secure_kafka.topic_for("User:ANONYMOUS", partitions=PARTITIONS)
    leaders = secure_kafka.cluster.metadata(topic).leaders
    settings = settings_for("SSL", bootstrap_servers=secure_kafka.cluster.address_of("SSL", 1))
    # The handshake stalls for as long as the test lasts.
    producer = make_producer(**settings, **dict.fromkeys(LIMITS, 600_000))
    first = next(partition for partition, leader in leaders.items() if leader == 1)
    producer.send(topic, b"first", partition=first).result(30)
    unused = [broker for broker in set(leaders.values()) if states().get(broker, "closed") == "closed"]
    assert unused, "the sender has a connection to each broker"
    stalled = unused[0]
    there = next(partition for partition, leader in leaders.items() if leader == stalled)
    secure_kafka.cluster.pause(stalled)
    try:
        waiting = producer.send(topic, b"waits", partition=there)
        wait_until(lambda: states().get(stalled) == "handshaking", 30, "a handshake that stalls")
        for number in range(COUNT):
            producer.send(topic, b"%d" % number, partition=first).result(30)
        assert states()[stalled] == "handshaking"
        assert not waiting.done()
    finally:
        secure_kafka.cluster.resume(stalled)
    assert waiting.result(60).partition == there
    values = secure_kafka.read(topic, COUNT + 2).value
    assert sorted(values) == sorted([b"first", b"waits", *(b"%d" % number for number in range(COUNT))])


def test_a_bootstrap_server_that_stalls(
    secure_kafka: SecureKafka, make_producer: Make, settings_for: SettingsFor
) -> None:
    """It takes each connection and never answers. The others are asked, whichever is the first one."""
    topic = secure_kafka.topic_for("User:ANONYMOUS")
    taken: list[socket.socket] = []

    def stall(connection: socket.socket) -> None:
        taken.append(connection)
        while connection.recv(1000):
            pass

    with serving(stall) as port:
        servers = [*[f"localhost:{port}"] * 3, secure_kafka.cluster.address_of("SSL", 1)]
        settings = settings_for("SSL", bootstrap_servers=servers, max_block_ms=60_000, **dict.fromkeys(LIMITS, 2000))
        for client in range(12):  # each has a sender of its own, which may begin with any server
            producer = make_producer(**settings, sender_group=f"client-{client}")
            assert producer.send(topic, b"%d" % client).result(60).offset == client
            producer.close(10)
            if taken:
                break
        assert taken, "no sender has asked the server that stalls"
