"""Tests how the loop writes to a TLS connection of a real Kafka: in which pieces, and that nothing is held back."""

import socket
import ssl

import pytest
from support.engine_rig import EngineRig
from support.front_end import run_until, topic_number
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor

PARTITIONS = 24
VALUE = bytes(3900)
GATHERED_BYTES = 65536
"""As in tls.pyx."""


def corked(sock: socket.socket) -> bool:
    return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK))


def test_the_kernel_waits_for_full_segments_until_the_end_of_a_request(
    secure_kafka: SecureKafka, settings_for: SettingsFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small request is sent at once. One of 24 batches is written in two calls, and is sent after the second one."""
    calls: list[tuple[int, bool]] = []
    sockets: set[ssl.SSLSocket] = set()
    original = ssl.SSLSocket.send

    def send(self: ssl.SSLSocket, data: memoryview) -> int:
        calls.append((len(data), corked(self)))
        sockets.add(self)
        return original(self, data)

    monkeypatch.setattr(ssl.SSLSocket, "send", send)
    topic = secure_kafka.topic_for("User:ANONYMOUS", partitions=PARTITIONS)
    settings = settings_for("SSL")
    rig = EngineRig(settings.pop("bootstrap_servers"), **settings)
    try:
        front_end = rig.attach()
        number = topic_number(rig.engine, front_end, topic)
        front_end.send(0, [(1, None, b"small")], topic=number, partition=0)
        assert rig.outcomes(front_end, 1)[0][5:] == (0, 3)
        assert calls and all(size < GATHERED_BYTES and not held for size, held in calls)
        calls.clear()
        for partition in range(PARTITIONS):
            front_end.send(1 + partition, [(1, None, VALUE)], topic=number, partition=partition)
        outcomes = rig.outcomes(front_end, PARTITIONS)
        assert {outcome[5:] for outcome in outcomes} == {(0, 3)}
        large = [(size, held) for size, held in calls if size > 16384]
        assert [size == GATHERED_BYTES for size, _ in large] == [True, False]
        assert all(held for _, held in large)
        run_until(rig.engine, lambda: not any(map(corked, sockets)))
    finally:
        rig.close()
