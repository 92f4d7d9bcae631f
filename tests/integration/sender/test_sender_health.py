"""Tests what a sender process answers to a probe of its health."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from support.process import kill9, wait_until
from support.supervised import Foreground, another, pair

from cyproducer.errors import KafkaTimeoutError
from cyproducer.host import control_messages
from cyproducer.observe.requests import request
from cyproducer.version import VERSION


def health(path: Path) -> dict[str, Any]:
    sock, answer, fds = request(str(path), {"op": "health"}, 10)
    sock.close()
    control_messages.discard(fds)
    assert answer is not None and not fds
    return answer


def until(path: Path, state: str) -> dict[str, Any]:
    return wait_until(lambda: (found := health(path))["state"] == state and found, 30, f"the state {state}")


def test_a_sender_without_a_cluster(foreground: Callable[..., Foreground], make_producer: Callable[..., Any]) -> None:
    """Nothing fails before a process needs the cluster."""
    sender = foreground("127.0.0.1:9").ready()
    found = health(sender.socket)
    assert (found["ok"], found["state"], found["brokers_connected"], found["front_ends"]) == (True, "starting", 0, 0)
    producer = make_producer(sender=str(sender.socket), max_block_ms=500)
    with pytest.raises(KafkaTimeoutError):
        producer.partitions_for("t")
    found = until(sender.socket, "disconnected")
    assert (found["ok"], found["brokers_connected"], found["front_ends"]) == (False, 0, 1)
    assert "127.0.0.1:9" in found["last_error"]


def test_a_sender_that_works_is_killed_and_drains(
    kafka: KafkaCluster, foreground: Callable[..., Foreground], make_producer: Callable[..., Any], topic: str
) -> None:
    sender = foreground(kafka.bootstrap_servers).ready()
    producer = make_producer(sender=str(sender.socket))
    producer.send(topic, b"0").result(30)
    found = until(sender.socket, "running")
    assert found["ok"] and found["brokers_connected"] > 0
    assert (found["version"], found["front_ends"], found["restarts"]) == (VERSION, 1, 0)
    assert (found["sender_pid"], found["supervisor_pid"]) == pair()
    assert "error" not in found and not found["last_error"]
    kill9(found["sender_pid"])
    another((found["sender_pid"], found["supervisor_pid"]))
    producer.send(topic, b"1").result(30)
    found = until(sender.socket, "running")
    assert (found["restarts"], found["front_ends"]) == (1, 1)
    kafka.pause()
    try:
        future = producer.send(topic, b"2")
        wait_until(lambda: health(sender.socket)["undelivered"], 30, "the record")
        sender.process.send_signal(signal.SIGTERM)
        found = until(sender.socket, "draining")
        assert (found["ok"], found["undelivered"]) == (False, 1)
    finally:
        kafka.resume()
    future.result(60)
