"""Tests that settings of a producer change what it does, against a stand-in sender."""

import time

import pytest
from standin_sender import StandIn

from cyproducer import KafkaProducer, errors


def batches(sender: StandIn, **settings) -> int:
    with KafkaProducer(sender=sender.path, **settings) as producer:
        producer.partitions_for("one")
        for _ in range(4):
            producer.send("one", bytes(1000))
        producer.flush(10)
        return int(producer.metrics()["producer-metrics"]["batch-total"])


def test_bootstrap_servers():
    one, other = ({"bootstrap_servers": servers} for servers in ("one:1,two:2", "one:1"))
    settings = [KafkaProducer(**given).settings.sender_settings() for given in (one, other)]
    assert [found["bootstrap_servers"] for found in settings] == [["one:1", "two:2"], ["one:1"]]


def test_batch_size(sender):
    """0 means one record per batch, as in Java."""
    sender.linger_s = 3600
    assert batches(sender, batch_size=0, linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1) == 4
    assert batches(sender, batch_size=2100, linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1) == 2
    assert batches(sender, linger_ms=3_600_000, delivery_timeout_ms=2**31 - 1) == 1


def test_buffer_memory(sender):
    sent = []
    for size in (1 << 20, 4 << 20):
        sender.hold = True
        with KafkaProducer(sender=sender.path, buffer_memory=size, max_block_ms=200) as producer:
            producer.partitions_for("t")
            with pytest.raises(errors.BufferExhaustedError):
                while len(sent) < 10_000:
                    sent.append((size, producer.send("t", bytes(10_000))))
            sender.release()
    counts = [len([each for each in sent if each[0] == size]) for size in (1 << 20, 4 << 20)]
    assert 3 * counts[0] < counts[1] < 5 * counts[0]


def test_max_block_ms(sender):
    for max_block_ms in (0, 400):
        with KafkaProducer(sender=sender.path, max_block_ms=10_000) as producer:
            producer.partitions_for("t")
        with KafkaProducer(sender=sender.path, max_block_ms=max_block_ms) as producer:
            producer._channel().attached(time.monotonic() + 10)
            began = time.monotonic()
            with pytest.raises(errors.KafkaTimeoutError):
                producer.send("nowhere", b"v")
            assert time.monotonic() - began >= max_block_ms / 1000
