"""Tests how the loop writes to a TLS connection of a real Kafka: in which pieces, and that nothing is held back."""

import socket

import pytest
from support.engine_rig import EngineRig
from support.front_end import topic_number
from support.secure_kafka import SecureKafka
from support.secure_settings import SettingsFor

PARTITIONS = 24
VALUE = bytes(3900)
GATHERED_BYTES = 65536
"""As in tls.pyx."""


def test_the_kernel_waits_for_full_segments_until_the_end_of_a_request(
    secure_kafka: SecureKafka, settings_for: SettingsFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small request is sent at once. One of 24 batches is written in two calls, and is sent after the second one."""
    calls: list[tuple[int, bool]] = []
    original = socket.socket.send

    def send(self: socket.socket, data: memoryview, flags: int = 0) -> int:
        calls.append((len(data), bool(flags & socket.MSG_MORE)))
        return original(self, data, flags)

    monkeypatch.setattr(socket.socket, "send", send)
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
        # The kernel may take less than it is given. The rest follows with the same flag.
        held = [size for size, is_held in calls if is_held]
        assert GATHERED_BYTES < held[0] < GATHERED_BYTES + 200
        assert not calls[-1][1]
    finally:
        rig.close()
