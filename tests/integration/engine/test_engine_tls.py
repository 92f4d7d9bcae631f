"""Tests how the loop reads from and writes to a connection with TLS, with a proxy that makes records as no Kafka does.

The connections to a real Kafka with TLS are in `tests/integration/security`.
"""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from kfake.scripted_broker import ScriptedBroker
from support.engine_rig import EngineRig
from support.front_end import topic_number
from support.tcp_server import serving

from cyproducer.devkafka.keys import Keys

PARTITIONS = 100
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
