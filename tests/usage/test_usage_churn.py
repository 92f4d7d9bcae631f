"""Tests processes that come and go: killed during a send, again and again, blocked or not, with reused pids."""

import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from lines import expect
from numbered import numbers_by_key
from support.confined import namespaces, run_confined
from support.connections import SENDERS_MOST
from support.consumer import ReadRecords, read_topic
from support.process import kill9, run_script, start_script, wait_until
from support.supervised import the_sender
from test_usage_interrupts import sleeps_on

from cyproducer import KafkaProducer, errors

# As gunicorn ends a worker that is late: SIGABRT, a moment later SIGKILL; another worker replaces it.
RECYCLED = """
    import os, random, signal, sys, time
    from cyproducer import KafkaProducer
    topic = sys.argv[2]
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], buffer_memory=4 << 20, linger_ms=20,
                             sender_idle_timeout_ms=200)
    draw = random.Random(7)
    def work(worker, accepted):
        number = 0
        while True:
            value = b"%d" % number
            if number % 5 == 4:
                producer.send_array(topic, [value], [b"%d" % worker])
            else:
                producer.send(topic, value + bytes(), b"%d" % worker)
            number += 1
            os.pwrite(accepted, b"%09d" % number, 0)
    workers = {}
    def start(worker):
        accepted = os.open("%s/%d" % (sys.argv[3], worker), os.O_CREAT | os.O_RDWR)
        pid = os.fork()
        if pid == 0:
            work(worker, accepted)
        os.close(accepted)
        workers[pid] = accepted
    for worker in range(int(sys.argv[4])):
        start(worker)
        if len(workers) == 4:
            time.sleep(draw.random() * 0.1)
            victim = draw.choice(list(workers))
            if worker % 2:
                os.kill(victim, signal.SIGABRT)
                time.sleep(0.001)
            os.kill(victim, signal.SIGKILL)
            os.waitpid(victim, 0)
            del workers[victim]
    time.sleep(0.2)
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
"""
WORKERS = 40


def held_by(pid: int) -> Counter[str]:
    """Return how many descriptors of each kind, and mappings of memfds, a process has."""
    held = Counter({"mapped": Path(f"/proc/{pid}/maps").read_text().count("/memfd:cyproducer")})
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            held[os.readlink(f"/proc/{pid}/fd/{fd}").partition(":[")[0]] += 1
    return held


def held_at_most(pid: int) -> Counter[str]:
    """Return the most of each kind within half a second: while it handles a message, a sender releases its reserve."""
    held: Counter[str] = Counter()
    for _ in range(10):
        held |= held_by(pid)
        time.sleep(0.05)
    return held


def test_workers_that_are_killed_in_mid_send_leave_nothing(
    kafka: KafkaCluster, make_producer: Callable[..., KafkaProducer], topic: str, tmp_path: Path
) -> None:
    """Accepted records are there, once and in order; perhaps also one record whose send() was interrupted."""
    producer = make_producer(buffer_memory=4 << 20, linger_ms=20)
    producer.send(topic, b"0", b"first").result(30)
    pids = the_sender()["sender_pid"], the_sender()["supervisor_pid"]
    before = [held_at_most(pid) for pid in pids]
    before[0]["socket"] += SENDERS_MOST - 1  # on a busy machine requests may wait for each other
    environment = {"PYTHONFAULTHANDLER": None}
    run_script(RECYCLED, kafka.bootstrap_servers, topic, tmp_path, WORKERS, env=environment)
    wait_until(lambda: len(the_sender()["front_ends"]) == 1, 30, "the end of all workers")
    deadline = time.monotonic() + 30
    while any(more := [held_by(pid) - held for pid, held in zip(pids, before, strict=True)]):
        assert time.monotonic() < deadline, f"left behind: {more}"
        time.sleep(0.05)
    accepted = {b"%d" % n: int((tmp_path / str(n)).read_text() or 0) for n in range(WORKERS)}
    total = sum(accepted.values())
    assert total > 500
    found = numbers_by_key(read_topic(kafka.bootstrap_servers, topic, 1 + total))
    assert found.pop(b"first") == [0]
    for worker, number in accepted.items():
        arrived = found.pop(worker, [])
        assert arrived == list(range(len(arrived)))
        assert number <= len(arrived) <= number + 1
    assert found == {}
    assert the_sender()["restarts"] == 0
    producer.send(topic, b"1", b"first").result(30)


BLOCKED = """
    import sys
    from cyproducer import KafkaProducer
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], buffer_memory=1 << 20, sender_idle_timeout_ms=200)
    producer.send(sys.argv[2], b"0", partition=0).result(30)
    print("ready", flush=True)
    sys.stdin.readline()
    number = 1
    while True:
        producer.send(sys.argv[2], b"%09d" % number + bytes(10_000), partition=0)
        print(number, flush=True)
        number += 1
"""


def test_killed_while_it_waits_for_memory(
    kafka: KafkaCluster, make_producer: Callable[..., KafkaProducer], topic: str
) -> None:
    producer = make_producer()
    producer.send(topic, b"here", partition=1).result(30)
    with start_script(BLOCKED, kafka.bootstrap_servers, topic) as process:
        expect(process, "ready")
        kafka.pause()
        process.stdin.write("\n")
        process.stdin.flush()
        for _ in range(50):
            last = int(process.stdout.readline())
        wait_until(lambda: sleeps_on(process.pid), 20, "a send that waits")
        kill9(process.pid)
        last = max([last, *map(int, process.stdout.read().split())])
    wait_until(lambda: len(the_sender()["front_ends"]) == 1, 20, "its end")
    kafka.resume()
    producer.send(topic, b"here", partition=1).result(30)
    values = read_topic(kafka.bootstrap_servers, topic, 3 + last).values_of(0)
    assert [int(value[:9]) for value in values] == list(range(last + 1))


def test_a_stopped_sender_causes_back_pressure_and_sends_nothing_late(
    kafka: KafkaCluster,
    make_producer: Callable[..., KafkaProducer],
    topic: str,
    arrived: Callable[..., ReadRecords],
) -> None:
    """Sender and supervisor stand still, as in a frozen container; they go on after the records have expired."""
    make_producer(request_timeout_ms=1000).send(topic, b"first", partition=2).result(30)
    producer = make_producer(
        buffer_memory=1 << 20, max_block_ms=500, delivery_timeout_ms=1500, request_timeout_ms=1000, linger_ms=0
    )
    producer.send(topic, b"first", partition=0).result(30)
    found = the_sender()
    pids = found["supervisor_pid"], found["sender_pid"]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    futures: list[Any] = []
    with pytest.raises(errors.BufferExhaustedError):
        while True:
            futures.append(producer.send(topic, bytes(10_000), partition=1))
    assert not any(future.done() for future in futures)
    with pytest.raises(errors.KafkaTimeoutError):
        producer.flush(1.5)
    for pid in reversed(pids):
        os.kill(pid, signal.SIGCONT)
    kinds = Counter(type(future.exception(30)) for future in futures)
    assert kinds == {errors.DeliveryTimeoutError: len(futures)}, kinds
    producer.send(topic, b"last", partition=0).result(30)
    assert arrived(topic, 3).values_of(0) == [b"first", b"last"]
    assert (the_sender()["sender_pid"], the_sender()["restarts"]) == (pids[1], 0)


# PID 1 of a namespace in which it can set the next pid.
USED_AGAIN = """
    import os, signal, sys, time
    from cyproducer import KafkaProducer
    from cyproducer.observe.status import status
    topic = sys.argv[2]
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000, sender_idle_timeout_ms=0)
    def front_end(key):
        producer.send(topic, b"0", key=key)
        for number in range(1, 100):
            producer.send(topic, b"%d" % number, key=key)
        os.write(say, key)
        signal.pause()
    def fork(key):
        pid = os.fork()
        if pid == 0:
            front_end(key)
        return pid
    keeper = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=60_000, sender_idle_timeout_ms=0)
    keeper.partitions_for(topic)
    sender = status()[0]["sender_pid"]
    said, say = os.pipe()
    first = fork(b"first")
    assert os.read(said, 100) == b"first"
    os.kill(sender, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(first - 1))
    second = fork(b"second")
    assert second == first, (first, second)
    time.sleep(0.3)     # it waits for the answer to its attach
    os.kill(sender, signal.SIGCONT)
    assert os.read(said, 100) == b"second"
    while [each["pid"] for each in status()[0]["front_ends"]] != [1, second]:
        time.sleep(0.01)
    time.sleep(0.3)     # it has to stay
    assert [each["pid"] for each in status()[0]["front_ends"]] == [1, second]
    keeper.send(topic, b"0", key=b"keeper")
    os.kill(second, signal.SIGKILL)
    os.waitpid(second, 0)
    keeper.flush(30)
    while len(status()[0]["front_ends"]) > 1 or status()[0]["totals"]["records"] < 201:
        time.sleep(0.01)
"""


def test_a_pid_that_is_used_again_is_another_process(kafka: KafkaCluster, topic: str, runtime_dir: Path) -> None:
    """The end of the first process and the attach of the second reach the sender at once."""
    command = namespaces("--pid", "--fork", "--kill-child", "--mount-proc")
    found, out, err = run_confined(command, USED_AGAIN, kafka.bootstrap_servers, topic, timeout=30)
    assert found == 0, out + err
    records = read_topic(kafka.bootstrap_servers, topic, 201)
    assert numbers_by_key(records) == {
        b"first": list(range(100)),
        b"second": list(range(100)),
        b"keeper": [0],
    }
    for path in runtime_dir.iterdir():
        path.unlink()
