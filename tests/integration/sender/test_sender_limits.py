"""Tests front-ends whose named sender has a smaller max_request_size than they: the smaller value counts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from kfake.scripted_broker import ScriptedBroker
from support.process import below_of, wait_until
from support.supervised import Foreground

from cyproducer import KafkaProducer
from cyproducer.errors import RecordTooLargeError

LIMIT = 100_000


@pytest.fixture
def broker() -> Iterator[ScriptedBroker]:
    with ScriptedBroker(partitions=2, nodes=1) as broker:
        yield broker


@pytest.fixture
def start(runtime_dir: Path, broker: ScriptedBroker) -> Iterator[Callable[[int], Foreground]]:
    """Return ``start(max_request_size)``: it starts a sender at the path of the one before, which has ended."""
    started = []

    def start(limit: int) -> Foreground:
        settings = {"max_request_size": limit, "retry_backoff_ms": 10}
        started.append(
            Foreground(
                runtime_dir / "s.sock", broker.bootstrap_servers, runtime_dir / "s.log", settings=settings
            ).ready()
        )
        return started[-1]

    yield start
    started[-1].end()


def test_record_above_the_senders_limit_is_refused_by_send(
    start: Callable[[int], Foreground], broker: ScriptedBroker
) -> None:
    sender = start(LIMIT)
    with KafkaProducer(sender=str(sender.socket), linger_ms=100) as producer:
        small = [producer.send("t", b"small %d" % n, partition=0) for n in range(5)]
        wanted = rf"max_request_size of the sender at {sender.socket} is {LIMIT}"
        with pytest.raises(RecordTooLargeError, match=wanted):
            producer.send("t", b"x" * 300_000, partition=1)
        with pytest.raises(RecordTooLargeError, match=f"the max_request_size of the sender at {sender.socket}"):
            producer.send_array("t", [b"x", b"x" * 300_000], partition=1)
        producer.send_array("t", np.zeros((200, LIMIT // 2), np.uint8), partition=1).result(30)
        fits = producer.send("t", b"y" * (LIMIT - 200), partition=1)
        assert [future.result(30).offset for future in small] == list(range(5))
        assert fits.result(30).offset == 200
    assert not broker.complaints


def test_batch_size_above_the_senders_limit(start: Callable[[int], Foreground], broker: ScriptedBroker) -> None:
    sender = start(2_000)
    with KafkaProducer(sender=str(sender.socket), batch_size=1 << 20, linger_ms=1000) as producer:
        futures = [producer.send("t", b"%05d" % n * 20, partition=0) for n in range(20_000)]
        producer.flush(60)
        assert [future.result(30).offset for future in futures] == list(range(20_000))
    assert max(batch.count for batch in broker.partitions[0].batches) < 20


def test_next_sender_at_the_path_has_a_smaller_limit(
    start: Callable[[int], Foreground], broker: ScriptedBroker
) -> None:
    """Records that were queued for the first sender and are too large for the second fail; the rest arrives."""
    first = start(1 << 20)
    with KafkaProducer(sender=str(first.socket), linger_ms=60_000, batch_size=300_000) as producer:
        producer.partitions_for("t")
        family = [psutil.Process(first.process.pid), *below_of(first.process.pid)]
        for process in family:  # first the supervisor, which would start another sender
            process.suspend()
        large = producer.send("t", b"x" * 280_000, partition=1)
        small = producer.send("t", b"small", partition=0)
        for process in family:
            process.kill()
        first.process.wait(30)
        wait_until(lambda: not first.socket.exists() or first.socket.unlink() is None, 30)
        start(LIMIT)
        producer.flush(60)
        with pytest.raises(RecordTooLargeError):
            large.result(30)
        assert small.result(30).offset == 0
