"""Tests failures that stay visible after the sender's end, and of the status after a crash."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from support.process import kill_senders, sender_processes, wait_until

from cyproducer import __version__, errors
from cyproducer.config.settings import Settings
from cyproducer.observe.status import ended_with_failures, status
from cyproducer.producer.channel import attach


def shown(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-m", "cyproducer", "status", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fail(producer: Any, topic: str) -> None:
    with pytest.raises(errors.RecordTooLargeError):
        producer.send(topic, os.urandom(5000)).result(60)


def test_failures_outlive_their_sender(
    make_producer: Callable[..., Any],
    new_topic: Callable[..., str],
    runtime_dir: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = new_topic(configs={"max.message.bytes": "1000"})
    producer = make_producer(sender_idle_timeout_ms=0)
    fail(producer, topic)
    wait_until(lambda: list(runtime_dir.glob("*.failures")), what="the file")
    (file,) = runtime_dir.glob("*.failures")
    (living,) = status()
    assert ended_with_failures() == [], "a living sender shows them itself"
    producer.close()
    assert f"see cyproducer status, file {file}" in caplog.text
    wait_until(lambda: not sender_processes(runtime_dir), 30, "the end of the sender")
    (log,) = runtime_dir.glob("*.log")
    assert str(file) in log.read_text()
    (row,) = living["ledger"]
    assert (row["topic"], row["cause"], row["count"]) == (topic, "MESSAGE_TOO_LARGE", 1)

    text = shown()
    assert text.startswith(f"no sender of this user is running\nended: sender {living['supervisor_pid']}, cyproducer ")
    assert f"  log        {log}\n" in text
    assert topic in text and "MESSAGE_TOO_LARGE" in text
    (ended,) = json.loads(shown("--json"))
    assert (ended["running"], ended["ledger"]) == (False, [row])

    # The next sender takes the failures over, even if both processes are killed at once.
    producer = make_producer(sender_idle_timeout_ms=0)
    fail(producer, topic)
    (living,) = status()
    assert [(row["topic"], row["count"]) for row in living["ledger"]] == [(topic, 2)]
    wait_until(lambda: '"count": 2' in file.read_text(), what="the file")
    producer.close()
    kill_senders(runtime_dir)
    (ended,) = ended_with_failures()
    assert [row["count"] for row in ended["ledger"]] == [2]
    for path in runtime_dir.iterdir():
        path.unlink()


def test_status_during_an_outage_and_after_a_crash(
    kafka: KafkaCluster, topic: str, make_producer: Callable[..., Any], runtime_dir: Path
) -> None:
    servers = [kafka.bootstrap_servers, *(f"127.0.0.1:{port}" for port in range(2, 9))]
    producer = make_producer(bootstrap_servers=servers)
    producer.send(topic, b"1").result(60)
    (before,) = status()
    assert before["cluster_id"]
    assert before["totals_since"] - before["started_at"] < 60
    assert " since " not in shown().partition("delivered")[2]
    kafka.pause()
    os.kill(before["sender_pid"], signal.SIGKILL)
    wait_until(lambda: [each["restarts"] for each in status()] == [1], what="the next sender")
    (after,) = status()
    assert after["cluster_id"] == before["cluster_id"]
    assert (after["version"], after["log"]) == (__version__, before["log"])
    assert after["started_at"] == before["started_at"]
    assert after["totals_since"] > before["totals_since"]
    assert after["totals"]["records"] == 0
    text = shown(COLUMNS="80")
    assert max(map(len, text.splitlines())) <= 80, text
    assert f"  cluster    {before['cluster_id']}, 127.0.0.1:" in text
    assert "delivered  0 records since 20" in text
    kafka.resume()
    producer.send(topic, b"2").result(60)


def test_a_sender_that_starts_removes_what_old_ones_left(runtime_dir: Path) -> None:
    old, new = runtime_dir / f"{1:016x}.log", runtime_dir / f"{2:016x}.log"
    for path in (old, new):
        path.write_text("")
    then = time.time() - 100_000
    os.utime(old, (then, then))
    settings = Settings.parse(bootstrap_servers="127.0.0.1:9", sender_idle_timeout_ms=200)
    attach.connect(settings, time.monotonic() + 30).close()
    wait_until(lambda: not old.exists(), 30, "the old log's end")
    assert new.exists()
