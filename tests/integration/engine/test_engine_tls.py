"""Tests how the loop reads from and writes to a connection with TLS, with a proxy that makes records as no Kafka does.

The connections to a real Kafka with TLS are in `tests/integration/security`.
"""

import fcntl
import socket
import ssl
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from devkafka.keys import Keys
from kfake.scripted_broker import ScriptedBroker
from support.engine_rig import EngineRig
from support.front_end import run_until, topic_number
from support.process import wait_until
from support.tcp_server import serving

PARTITIONS = 100
TICKETS = 4000
TURN_BYTES = 2 * 18437  # at most, of messages without data
RECEIVE_BYTES = 200_000
RECEIVE_BUFFER_BYTES = 32768


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"))


@contextmanager
def behind_tls(broker: ScriptedBroker, keystore: Path, record_bytes: int) -> Iterator[int]:
    """Take TLS connections for the broker. Its answers are sent in records of so many bytes. Yield the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keystore)

    def handle(connection: socket.socket) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        host, port = broker.bootstrap_servers.split(":")
        with (
            context.wrap_socket(connection.dup(), server_side=True) as secured,
            socket.create_connection((host, int(port))) as plain,
        ):
            answers = threading.Thread(target=answer, args=(plain, secured))
            answers.start()
            try:
                while data := secured.recv(65536):
                    plain.sendall(data)
            finally:
                with suppress(OSError):
                    plain.shutdown(socket.SHUT_RDWR)
                answers.join()

    def answer(plain: socket.socket, secured: ssl.SSLSocket) -> None:
        with suppress(OSError):
            while data := plain.recv(65536):
                secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)  # so that they arrive together
                for at in range(0, len(data), record_bytes):
                    secured.sendall(data[at : at + record_bytes])
                secured.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

    with serving(handle) as port:
        broker.lies = lambda body: body["brokers"][0].update(host="localhost", port=port)
        yield port


@pytest.mark.parametrize("record_bytes", [1, 16384])
def test_records_of_any_length(keys: Keys, record_bytes: int) -> None:
    """Answers of many records are read to their end, and requests that fill the socket are written to theirs."""
    with (
        ScriptedBroker(partitions=PARTITIONS, nodes=1) as broker,
        behind_tls(broker, keys.broker.keystore, record_bytes) as port,
    ):
        rig = EngineRig(f"localhost:{port}", security_protocol="SSL", ssl_cafile=str(keys.ca))
        try:
            front_end = rig.attach()
            number = topic_number(rig.engine, front_end, "t")
            for partition in range(PARTITIONS):
                front_end.send(partition, [(1, None, bytes(10_000))], topic=number, partition=partition)
            outcomes = rig.outcomes(front_end, PARTITIONS)
            assert {outcome[5:] for outcome in outcomes} == {(0, 3)}
        finally:
            rig.close()
    assert broker.complaints == []


def test_messages_of_tls_without_data_do_not_hold_the_loop(keys: Keys) -> None:
    """A broker that sends session tickets, or KeyUpdates, as fast as they are read leaves other brokers their turn."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys.broker.keystore)
    context.num_tickets = TICKETS
    ready, go = threading.Event(), threading.Event()
    connections: list[socket.socket] = []

    def handle(connection: socket.socket) -> None:
        connections.append(connection)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        secured = context.wrap_bio(incoming, outgoing, server_side=True)
        while True:
            incoming.write(connection.recv(65536))
            with suppress(ssl.SSLWantReadError):
                secured.do_handshake()
                break
            connection.sendall(outgoing.read())
        if not incoming.pending:
            connection.recv(65536)  # a request: the loop has done its part of the handshake
        ready.set()
        go.wait(60)
        connection.sendall(outgoing.read())
        connection.recv(65536)

    def waiting_bytes() -> int:
        found = fcntl.ioctl(connections[0], termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(found, sys.byteorder)

    with serving(handle) as port:
        rig = EngineRig(
            f"localhost:{port}",
            security_protocol="SSL",
            ssl_cafile=str(keys.ca),
            receive_buffer_bytes=RECEIVE_BYTES,
        )
        try:
            rig.engine.want_topic(rig.attach().attach_id, "t")
            run_until(rig.engine, ready.is_set)
            go.set()
            wait_until(lambda: waiting_bytes() > 2 * TURN_BYTES)
            for _ in range(4):
                rig.engine.run(0)
            assert waiting_bytes() > 2 * TURN_BYTES, "one turn has read nearly all messages"
        finally:
            rig.close()
