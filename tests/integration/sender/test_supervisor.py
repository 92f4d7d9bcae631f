"""Tests that sender and supervisor replace each other when killed, and that applications do not notice."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from support import layout
from support.consumer import read_topic
from support.process import is_running, kill9, sender_processes, start_script, wait_until
from support.streams import streams
from support.supervised import Foreground, another, asking, kill, pair, the_sender

from cyproducer.producer.core.attachment import Attachment

# ---------------------------------------------------------------- killed under load


@pytest.mark.parametrize(
    "victims",
    [["sender"] * 5, ["supervisor"] * 5, ["sender", "supervisor"] * 4],
    ids=["sender", "supervisor", "in turn"],
)
def test_killed_under_load(
    victims: list[str], kafka: KafkaCluster, topic: str, tmp_path: Path, runtime_dir: Path
) -> None:
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "sender_idle_timeout_ms": 200, "linger_ms": 2}
    with streams(tmp_path, topic, ["send", "send", "array"], **settings) as running:
        running.more()
        for victim in victims:
            before = wait_until(pair, what="a sender and its supervisor")
            kill(victim)
            after = another(before)
            kept = 1 if victim == "sender" else 0
            assert before[kept] == after[kept]
            running.more()
        assert the_sender()["restarts"] == victims.count("sender")
        assert len(sender_processes(runtime_dir)) == 2
        running.finish()
    running.check(kafka.bootstrap_servers, topic)


def test_killed_while_the_broker_is_away(kafka: KafkaCluster, make_producer: Callable[..., Any], topic: str) -> None:
    """Everything is outstanding, and nothing is acknowledged between the kills."""
    producer = make_producer(linger_ms=0)
    producer.send(topic, b"first").result(30)
    kafka.pause()
    futures = [producer.send(topic, b"%d" % n, partition=n % 3) for n in range(3_000)]
    for victim in ("sender", "supervisor", "sender", "sender", "supervisor"):
        before = wait_until(pair, what="a sender and its supervisor")
        kill(victim)
        another(before)
    assert not any(future.done() for future in futures)
    futures += [producer.send(topic, b"%d" % n, partition=n % 3) for n in range(3_000, 6_000)]
    kafka.resume()
    places = {(f.result(60).partition, f.result().offset): b"%d" % n for n, f in enumerate(futures)}
    records = read_topic(kafka.bootstrap_servers, topic, 6_001)
    assert len(records) == 6_001
    found = dict(zip(zip(records.partition, records.offset, strict=True), records.value, strict=True))
    assert {place: found[place] for place in places} == places
    for partition in range(3):
        numbers = [int(v) for v in records.values_of(partition) if v != b"first"]
        assert numbers == list(range(partition, 6_000, 3))


def test_an_ended_applications_records_are_delivered_by_a_successor(
    kafka: KafkaCluster, make_producer: Callable[..., Any], topic: str, tmp_path: Path
) -> None:
    make_producer().send(topic, b"first").result(30)
    with streams(
        tmp_path, topic, ["send"], bootstrap_servers=kafka.bootstrap_servers, sender_idle_timeout_ms=200
    ) as running:
        running.more()
        kafka.pause()
        running.more()
        (process,) = running.processes.values()
        kill9(process.pid)
        sent = running.sent("send-0")
    for victim in ("sender", "supervisor", "sender"):
        before = wait_until(pair, what="a sender and its supervisor")
        kill(victim)
        another(before)
    kafka.resume()
    # One more than was counted: the kill may come between send() and the count.
    records = read_topic(kafka.bootstrap_servers, topic, sent + 1)
    numbers = [int(v.split()[1]) for v in records.value if v != b"first"]
    assert numbers == list(range(len(numbers)))
    assert sent <= len(numbers) <= sent + 1


def test_front_end_that_ends_without_a_sender(connect: Callable[..., Attachment]) -> None:
    first, second = connect(), connect()
    supervisor = the_sender()["supervisor_pid"]
    os.kill(supervisor, signal.SIGSTOP)
    kill("sender")
    second.close()
    os.kill(supervisor, signal.SIGCONT)
    wait_until(lambda: [f["attach_id"] for f in the_sender()["front_ends"]] == [first.attach_id], what="its end")
    assert the_sender()["restarts"] == 1


def test_attaching_while_senders_are_killed(connect: Callable[..., Attachment], runtime_dir: Path) -> None:
    keeper = connect()
    ids = {keeper.attach_id}
    for _ in range(8):
        os.kill(the_sender()["sender_pid"], signal.SIGKILL)
        for _ in range(3):
            ids.add(connect().attach_id)
    assert len(ids) == 25
    assert len(the_sender()["front_ends"]) == 25
    assert len(sender_processes(runtime_dir)) == 2


@pytest.fixture
def patched(
    kafka: KafkaCluster, foreground: Callable[..., Foreground], make_producer: Callable[..., Any], topic: str
) -> Callable[[str], tuple[Foreground, Any]]:
    """Return ``patched(source)``: it starts a sender with that patch, and a producer that has sent record 0."""

    def start(patch: str) -> tuple[Foreground, Any]:
        sender = foreground(kafka.bootstrap_servers, patch).ready()
        producer = make_producer(sender=str(sender.socket))
        producer.send(topic, b"0").result(30)
        return sender, producer

    return start


# ---------------------------------------------------------------- hanging


SPIN = """
from pathlib import Path
supervisor.HANG_S, supervisor.LOOK_S = 1.0, 0.1
turn = server.ControlServer.turn
def spinning(self, ready):
    while Path({flag!r}).exists():
        pass
    turn(self, ready)
server.ControlServer.turn = spinning
"""


def test_sender_that_spins_is_killed_and_replaced(
    kafka: KafkaCluster, patched: Callable[[str], tuple[Foreground, Any]], topic: str, tmp_path: Path
) -> None:
    flag = tmp_path / "spin"
    sender, producer = patched(SPIN.format(flag=str(flag)))
    before = the_sender()
    kafka.pause()
    futures = [producer.send(topic, b"%d" % n) for n in range(1, 50)]
    flag.touch()
    with asking(sender.socket):
        wait_until(lambda: sender.lines("hangs and is killed"), 30, "the end of the sender that hangs")
        flag.unlink()
    kafka.resume()
    for future in futures:
        future.result(30)
    after = the_sender()
    assert after["supervisor_pid"] == before["supervisor_pid"] == sender.process.pid
    assert after["sender_pid"] != before["sender_pid"]
    assert after["restarts"] >= 1
    assert sorted(map(int, read_topic(kafka.bootstrap_servers, topic, 50).value)) == list(range(50))


def test_stopped_sender_does_not_hang(
    kafka: KafkaCluster, patched: Callable[[str], tuple[Foreground, Any]], topic: str
) -> None:
    sender, producer = patched("supervisor.HANG_S, supervisor.LOOK_S = 0.3, 0.05")
    pid = the_sender()["sender_pid"]
    kafka.pause()
    future = producer.send(topic, b"1")
    time.sleep(0.2)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    assert is_running(pid)
    os.kill(pid, signal.SIGCONT)
    kafka.resume()
    assert future.result(30).offset is not None
    found = the_sender()
    assert (found["sender_pid"], found["restarts"]) == (pid, 0)
    assert not sender.lines("hangs")


# ---------------------------------------------------------------- dying again and again


CRASH = """
from pathlib import Path
begin = sender_process.Serving._begin
def crashing(self, at_end):
    begun = begin(self, at_end)
    if Path({flag!r}).exists():
        os._exit(3)
    return begun
sender_process.Serving._begin = crashing
"""


def test_crash_loop_backs_off_and_applications_only_wait(
    kafka: KafkaCluster, patched: Callable[[str], tuple[Foreground, Any]], topic: str, tmp_path: Path
) -> None:
    flag = tmp_path / "crash"
    sender, producer = patched(CRASH.format(flag=str(flag)))
    flag.touch()
    kill("sender")
    futures = [producer.send(topic, b"%d" % n) for n in range(1, 50)]
    wait_until(lambda: len(sender.lines("has ended and is replaced")) >= 6, 30, "six deaths")
    delays = [float(re.search(r"delay=(\S+)", line)[1]) for line in sender.lines("has ended and is replaced")[:6]]
    assert delays == [0.0, 0.05, 0.1, 0.2, 0.4, 0.8]
    assert not any(future.done() for future in futures)
    flag.unlink()
    for future in futures:
        future.result(30)
    assert the_sender()["restarts"] >= 6
    assert sender.lines("again and again")
    assert sorted(map(int, read_topic(kafka.bootstrap_servers, topic, 50).value)) == list(range(50))


RAISE = """
from pathlib import Path
turn = server.ControlServer.turn
def raising(self, ready):
    if Path({flag!r}).exists():
        os.unlink({flag!r})
        raise RuntimeError("a defect")
    turn(self, ready)
server.ControlServer.turn = raising
"""


def test_sender_that_fails_is_replaced_as_if_it_were_killed(
    kafka: KafkaCluster, patched: Callable[[str], tuple[Foreground, Any]], topic: str, tmp_path: Path
) -> None:
    flag = tmp_path / "raise"
    sender, producer = patched(RAISE.format(flag=str(flag)))
    kafka.pause()
    futures = [producer.send(topic, b"%d" % n) for n in range(1, 50)]
    flag.touch()
    with asking(sender.socket):
        wait_until(lambda: sender.lines("has ended and is replaced"), 30, "its end")
    kafka.resume()
    for future in futures:
        future.result(30)
    assert sender.lines("RuntimeError: a defect")
    assert sender.lines("status 1")
    assert the_sender()["restarts"] == 1
    assert sorted(map(int, read_topic(kafka.bootstrap_servers, topic, 50).value)) == list(range(50))


POISON = """
from pathlib import Path
run = engine.Engine.run
def poisoned(self, timeout_ms):
    flag = Path({flag!r})
    if flag.exists() and int(flag.read_text()) in self._front_ends.held():
        os.pwrite(self.regions()[0], int(flag.read_text()).to_bytes(8, "little"), {attach})
        os.pwrite(self.regions()[0], bytes(4), {slot})
        os._exit(3)
    return run(self, timeout_ms)
engine.Engine.run = poisoned
"""

TEN = """
    import sys
    from cyproducer import KafkaProducer
    producer = KafkaProducer(sender=sys.argv[1], linger_ms=60000)
    producer.partitions_for(sys.argv[2])
    futures = [producer.send(sys.argv[2], b"poison") for _ in range(10)]
    print("sent", flush=True)
    sys.stdin.readline()
"""


def test_front_end_at_which_three_senders_crash_is_left_alone(
    kafka: KafkaCluster, patched: Callable[[str], tuple[Foreground, Any]], topic: str, tmp_path: Path
) -> None:
    flag = tmp_path / "poison"
    places = {name: layout.offset("cyp_state_header", f"breadcrumb_{name}") for name in ("attach", "slot")}
    sender, producer = patched(POISON.format(flag=str(flag), **places))
    with start_script(TEN, sender.socket, topic) as process:
        assert process.stdout.readline() == "sent\n", process.stderr.read()
        (bad,) = [f["attach_id"] for f in the_sender()["front_ends"] if f["pid"] == process.pid]
        partial = flag.with_suffix(".new")
        partial.write_text(str(bad))
        partial.rename(flag)
        with asking(sender.socket):
            wait_until(lambda: sender.lines("quarantined"), 120, "the quarantine")
        assert producer.send(topic, b"1").result(60)
        found = the_sender()
        assert bad not in [f["attach_id"] for f in found["front_ends"]]
        assert found["restarts"] == 3
        (row,) = found["ledger"]
        assert (row["cause"], row["count"]) == ("QUARANTINED", 10)
    assert f"peer={process.pid}" in sender.lines("quarantined")[0]
