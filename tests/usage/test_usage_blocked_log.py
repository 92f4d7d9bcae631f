"""Tests a foreground sender whose standard error is not read, as by a hanging collector or after Ctrl-S."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

from kfake.scripted_broker import ScriptedBroker
from support.process import kill9, senders, supervisors, wait_until
from support.supervised import another, kill, pair

from cyproducer import KafkaProducer


def test_unread_log_stops_neither_sender_nor_supervisor(runtime_dir: Path) -> None:
    path = str(runtime_dir / "blocked.sock")
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    with ScriptedBroker(partitions=1, nodes=1) as broker:
        command = [sys.executable, "-m", "cyproducer", "sender", "--socket", path]
        command += ["--bootstrap-servers", broker.bootstrap_servers]
        process = subprocess.Popen(command, stderr=writer)
        os.close(writer)
        wait_until(lambda: os.path.exists(path), 30, "the sender's socket")
        fcntl.fcntl(reader, fcntl.F_SETFL, os.O_NONBLOCK)
        try:
            producer = KafkaProducer(sender=path, linger_ms=0)
            producer.send("t", b"first").result(30)
            for _ in range(300):  # more lines than both pipes hold
                attach_once(path)
            producer.send("t", b"blocked").result(30)
            for victim in ("sender", "supervisor", "sender"):
                before = wait_until(pair, what="a sender and its supervisor")
                kill(victim)
                another(before)
                producer.send("t", b"replaced").result(30)
            producer.close(10)
            for _ in range(100):  # the count of a sender that was killed is lost
                attach_once(path)
            text = bytearray()
            wait_until(lambda: dropped(path, reader, text), 30, "the count of dropped lines")
        finally:
            subprocess.run([sys.executable, "-m", "cyproducer", "stop", "--socket", path], check=True, timeout=60)
            assert process.wait(30) == -signal.SIGKILL
            os.close(reader)
        assert broker.values(0) == [b"first", b"blocked"] + [b"replaced"] * 3


def attach_once(path: str) -> None:
    """Make the sender log a line when a front-end attaches, and one when it leaves."""
    producer = KafkaProducer(sender=path, buffer_memory=1 << 20)
    producer.partitions_for("t")
    producer.close(0)


def dropped(path: str, reader: int, text: bytearray) -> bool:
    """Return whether the log reports dropped lines; the report comes before the next line that is logged."""
    attach_once(path)
    try:
        text += os.read(reader, 1 << 20)
    except BlockingIOError:
        pass
    return b"were dropped" in text


def test_supervisor_that_cannot_write_its_description_supervises(runtime_dir: Path) -> None:
    """For example, the disk is full: the next supervisor starts all the same."""
    with (
        ScriptedBroker(partitions=1, nodes=1) as broker,
        KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=0, sender_idle_timeout_ms=200) as producer,
    ):
        producer.send("t", b"first").result(30)
        (description,) = runtime_dir.glob("*.json")
        description.unlink()
        description.mkdir()
        (supervisor,) = supervisors(runtime_dir)
        (sender,) = senders(runtime_dir)
        kill9(supervisor.pid)
        wait_until(lambda: supervisors(runtime_dir), 30, "the next supervisor")
        kill9(sender.pid)
        wait_until(lambda: [p for p in senders(runtime_dir) if p != sender], 30, "the next sender")
        assert producer.send("t", b"second").result(30).offset == 1
        assert len(supervisors(runtime_dir)) == 1
        description.rmdir()
    (log,) = runtime_dir.glob("*.log")
    wait_until(lambda: "Is a directory" in log.read_text(), 30, "the warning")
