"""Tests the end of a sender and its supervisor, and of a build that takes over from another (`--replace`)."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from devkafka.node import KafkaCluster
from kfake.scripted_broker import Fault, ScriptedBroker
from support.process import is_running, sender_processes, start_script, wait_until
from support.streams import streams
from support.supervised import NOWHERE, ROOT, Foreground, another, asking, kill, pair, the_sender

from cyproducer import errors
from cyproducer.config.settings import Settings
from cyproducer.host import control_messages
from cyproducer.observe.status import ended_with_failures, stop
from cyproducer.producer.channel import address, attach
from cyproducer.producer.core.attachment import Attachment

#: Sends what is acknowledged, in batches of several chunks, and after a line of input what is not.
LEAVES_THREE = """
    import os, sys
    from cyproducer import KafkaProducer
    producer = KafkaProducer(sender=sys.argv[1], linger_ms=100, batch_size=1_000_000)
    futures = [producer.send("t", bytes(3000), partition=0) for number in range(100)]
    assert [future.result(60).offset for future in futures] == list(range(100))
    print("acknowledged", flush=True)
    sys.stdin.readline()
    for number in range(3):
        producer.send("t", b"%d" % number, partition=0)
    os._exit(0)
"""

# ---------------------------------------------------------------- ending


def test_signal_to_both_processes_is_one_signal(
    foreground: Callable[..., Foreground], busy: Callable[..., Any], broker: ScriptedBroker, runtime_dir: Path
) -> None:
    """A service manager signals every process of a service."""
    sender = foreground(broker.bootstrap_servers).ready()
    answer = busy(sender=str(sender.socket))
    found = the_sender()
    assert os.getpgid(found["sender_pid"]) != os.getpgid(found["supervisor_pid"])
    for pid in (found["sender_pid"], found["supervisor_pid"]):
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: sender.lines("draining"), what="the drain")
    time.sleep(0.3)
    assert is_running(found["sender_pid"])
    answer()
    sender.end()
    assert not is_running(found["sender_pid"])
    assert list(runtime_dir.iterdir()) == []


def test_second_signal_to_the_supervisor_ends_at_once(
    foreground: Callable[..., Foreground], busy: Callable[..., Any], broker: ScriptedBroker
) -> None:
    """The log says so at the first signal."""
    sender = foreground(broker.bootstrap_servers).ready()
    busy(sender=str(sender.socket))
    for _ in range(2):
        sender.process.terminate()
        wait_until(lambda: sender.lines("a second signal ends the sender at once"), what="the drain")
    assert sender.process.wait(10) == 0
    assert sender.lines("a second signal: ending at once")


def test_records_that_are_left_at_the_end_are_counted(
    foreground: Callable[..., Foreground], broker: ScriptedBroker
) -> None:
    """Their process has ended, and the broker does not answer: the ledger, the log and stop() tell it."""
    sender = foreground(broker.bootstrap_servers).ready()
    with start_script(LEAVES_THREE, sender.socket) as left:
        assert left.stdout is not None
        assert left.stdout.readline() == "acknowledged\n"
        with broker.lock:
            broker.faults.append(Fault(hang="lost"))
        left.communicate("go on\n", timeout=60)
    assert left.returncode == 0
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(stop, str(sender.socket))
        wait_until(lambda: sender.lines("draining"), what="the drain")
        sender.process.terminate()
        wait_until(lambda: sender.lines("a second signal ends the sender at once"), what="the first signal")
        sender.process.terminate()
        assert stopped.result(30) == 3
    assert sender.process.wait(30) == 0
    [row] = [row for each in ended_with_failures() for row in each["ledger"]]
    assert (row["cause"], row["count"], row["topic"]) == ("SENDER_STOPPED", 3, "t")
    assert sender.lines("are not delivered")


def test_successor_of_a_sender_that_drains_drains(
    foreground: Callable[..., Foreground], busy: Callable[..., Any], broker: ScriptedBroker, runtime_dir: Path
) -> None:
    sender = foreground(broker.bootstrap_servers).ready()
    answer = busy(sender=str(sender.socket))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as waiting:
        waiting.settimeout(20)
        waiting.connect(str(sender.socket))
        control_messages.send(waiting, {"op": "stop"})
        assert control_messages.receive(waiting)[0] == {"ok": True}
        before = pair()
        kill("sender")
        another(before)
        with pytest.raises(errors.SenderUnavailableError, match="it is ending"):
            attach.connect(Settings.parse(sender=str(sender.socket)), time.monotonic() + 0.3)
        answer()
        assert control_messages.receive(waiting) == (None, [])
    assert sender.process.wait(20) == 0
    assert list(runtime_dir.iterdir()) == []


def test_idle_exit_and_stop_after_successions(connect: Callable[..., Attachment], runtime_dir: Path) -> None:
    for ending in ("idle", "stop"):
        attached = connect(sender_idle_timeout_ms=200)
        for victim in ("sender", "supervisor", "sender"):
            before = wait_until(pair, what="a sender and its supervisor")
            kill(victim)
            another(before)
        found = the_sender()
        attached.close()
        if ending == "stop":
            stop(found["socket"], 20)
        wait_until(lambda: not sender_processes(runtime_dir), 10, f"the end ({ending})")
        assert {path.suffix for path in runtime_dir.iterdir()} == {".log"}


def test_largest_idle_timeout_outlives_the_sender(connect: Callable[..., Attachment], runtime_dir: Path) -> None:
    attached = connect(sender_idle_timeout_ms=60_000)
    kill("sender")
    attached.close()
    wait_until(lambda: the_sender()["front_ends"] == [], what="the front-end's end")
    time.sleep(0.5)
    stop(the_sender()["socket"], 20)


def test_stopped_supervisor_delays_no_front_end(connect: Callable[..., Attachment]) -> None:
    first = connect()
    supervisor = the_sender()["supervisor_pid"]
    os.kill(supervisor, signal.SIGSTOP)
    ids = [connect().attach_id for _ in range(5)]
    os.kill(supervisor, signal.SIGCONT)
    kill("sender")
    found = the_sender()
    assert [f["attach_id"] for f in found["front_ends"]] == [first.attach_id, *ids]
    assert found["supervisor_pid"] == supervisor


# ---------------------------------------------------------------- another build


def sender_command(*options: object) -> list[str]:
    return [sys.executable, "-m", "cyproducer", "sender", *map(str, options)]


def test_replaced_twice_under_load(kafka: KafkaCluster, topic: str, tmp_path: Path, runtime_dir: Path) -> None:
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "sender_idle_timeout_ms": 200}
    command = sender_command("--replace", "--bootstrap-servers", kafka.bootstrap_servers)
    started = []
    try:
        with streams(tmp_path, topic, ["send", "array"], **settings) as running:
            running.more()
            for _ in range(2):
                before = wait_until(pair, what="a sender and its supervisor")
                started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
                wait_until(lambda: (pair() or (0, 0))[1] == started[-1].pid, 20, "the take-over")
                wait_until(lambda before=before: not any(map(is_running, before)), 10, "the end of the former")
                running.more()
            assert started[0].wait(10) == 0
            assert "msg=replaced" in started[0].stderr.read()
            running.finish()
        running.check(kafka.bootstrap_servers, topic)
        assert [f["attach_id"] for f in the_sender()["front_ends"]] == []
    finally:
        for process in started:
            process.terminate()
            process.communicate(timeout=30)
    assert {path.suffix for path in runtime_dir.iterdir()} == {".log"}


def test_replace_without_a_sender(foreground: Callable[..., Foreground], connect: Callable[..., Attachment]) -> None:
    sender = foreground(replace=True).ready()
    assert connect(sender=str(sender.socket)).attach_id == 1


@pytest.mark.parametrize(
    ("patch", "settings", "text"),
    [
        (
            "",
            {"request_timeout_ms": 1234},
            "is not replaced: request_timeout_ms is 30000 in the running sender and 1234 in this process",
        ),
        (
            "from cyproducer.sender.handover import upgrade; upgrade.LAYOUT_VERSION = 99",
            {},
            r"is not replaced: it is cyproducer .+ with memory layout \d+, and this build has layout 99",
        ),
    ],
    ids=["settings", "layout"],
)
def test_sender_with_other_settings_or_layout_is_not_replaced(
    foreground: Callable[..., Foreground],
    connect: Callable[..., Attachment],
    tmp_path: Path,
    patch: str,
    settings: dict[str, Any],
    text: str,
) -> None:
    sender = foreground().ready()
    attached = connect(sender=str(sender.socket))
    other = Foreground(sender.socket, NOWHERE, tmp_path / "other", patch, settings=settings, replace=True)
    assert other.process.wait(30) == 1
    assert re.search(text, other.log.read_text())
    found = the_sender()
    assert (found["sender_pid"], found["restarts"]) == (attached.sender_pid, 0)


def test_successor_that_gives_up_changes_nothing(
    foreground: Callable[..., Foreground], connect: Callable[..., Attachment]
) -> None:
    sender = foreground().ready()
    attached = connect(sender=str(sender.socket))
    before = pair()
    with asking(sender.socket) as successor:
        for fd in control_messages.receive(successor)[1]:
            os.close(fd)
        control_messages.send(successor, {"op": "replace", "layout": address.LAYOUT_VERSION, "settings": {}})
        message, fds = control_messages.receive(successor)
        assert message["op"] == "post"
        for fd in fds:
            os.close(fd)
    another(before)
    found = the_sender()
    assert found["supervisor_pid"] == sender.process.pid
    assert [f["attach_id"] for f in found["front_ends"]] == [attached.attach_id]
    assert sender.lines("the new process gave up the takeover")


def test_producer_of_another_layout_is_refused_by_a_named_sender(
    foreground: Callable[..., Foreground], connect: Callable[..., Attachment], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = foreground().ready()
    monkeypatch.setattr(address, "LAYOUT_VERSION", 99)
    with pytest.raises(
        errors.SenderUnavailableError,
        match=r"with memory layout \d+, this process has .+ layout 99; use the same version",
    ):
        connect(sender=str(sender.socket))


def test_successor_needs_no_files(
    kafka: KafkaCluster,
    foreground: Callable[..., Foreground],
    make_producer: Callable[..., Any],
    topic: str,
    tmp_path: Path,
) -> None:
    """The package is upgraded or removed under a running sender."""
    root = tmp_path / "site"
    shutil.copytree(ROOT / "cyproducer", root / "cyproducer", ignore=shutil.ignore_patterns("__pycache__", "*.pyx"))
    servers = kafka.bootstrap_servers.replace("127.0.0.1", "localhost")
    sender = foreground(servers, root=str(root)).ready()
    producer = make_producer(sender=str(sender.socket))
    producer.send(topic, b"0").result(30)
    assert str(root) in Path(f"/proc/{the_sender()['sender_pid']}/maps").read_text()
    shutil.rmtree(root)
    for number, victim in enumerate(("sender", "supervisor", "sender")):
        before = wait_until(pair, what="a sender and its supervisor")
        kill(victim)
        another(before)
        assert producer.send(topic, b"%d" % number).result(30).topic == topic
    assert psutil.Process(the_sender()["sender_pid"]).is_running()
