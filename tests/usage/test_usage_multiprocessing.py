"""Tests one producer in a program and its processes, with every start method and every kind of end."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from devkafka.node import KafkaCluster
from lines import expect
from numbered import numbers_by_key
from support.connections import SENDERS_MOST, broker_connections, ports_of
from support.consumer import ReadRecords
from support.process import run_script, senders, start_script

ENDINGS = {
    "returns": "pass",
    "exits": "sys.exit(0)",
    "raises": "raise RuntimeError('the application failed')",
    "os._exit": "os._exit(0)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
}

SENDS_AND_ENDS = """
    import os, signal, sys
    from cyproducer import KafkaProducer
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=500, sender_idle_timeout_ms=200)
    for number in range(2000):
        producer.send(sys.argv[2], key=b"%d" % (number % 7), value=b"%d" % number)
    {ending}
"""

CHILD_ENDS = """
    import os, signal, sys
    from cyproducer import KafkaProducer, errors
    producer = KafkaProducer(bootstrap_servers=sys.argv[1], linger_ms=200, sender_idle_timeout_ms=200)
    inherited = producer.send(sys.argv[2], key=b"parent", value=b"0")
    children = []
    for child in range(3):
        pid = os.fork()
        if pid == 0:
            try:
                inherited.result(1)
            except errors.ForkedFutureError:
                for number in range(500):
                    producer.send(sys.argv[2], key=b"child %d" % child, value=b"%d" % number)
                {ending}
            os._exit(42)
        children.append(pid)
    for number in range(1, 500):
        producer.send(sys.argv[2], key=b"parent", value=b"%d" % number)
    print(sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children))
    assert inherited.result(30).topic == sys.argv[2]
    producer.flush(30)
"""

FORKS_BEFORE_USE = """
    import os, sys
    from cyproducer import KafkaProducer
    producer = KafkaProducer(bootstrap_servers=sys.argv[1])
    children = []
    for child in range(4):
        pid = os.fork()
        if pid == 0:
            for number in range(100):
                producer.send(sys.argv[2], key=b"%d" % child, value=b"%d" % number)
            producer.flush(30)
            os.write(1, b"flushed\\n")  # in one piece: there are four of them
            sys.stdin.readline()
            os._exit(0)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_each_start_method(
    method: str, run_example: Callable[..., str], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    printed = run_example("multiprocessing_workers.py", topic, method)
    assert printed == "5000 records sent, workers ended with [0, 0, 0, 0]\n"
    found = numbers_by_key(arrived(topic, 5000))
    assert found == {key: list(range(1000)) for key in [b"parent", *(b"worker %d" % i for i in range(4))]}


def test_process_pool_executor(
    run_example: Callable[..., str], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    assert run_example("process_pool.py", topic) == "201 records written\n"
    records = arrived(topic, 201)
    expected = {b"%d" % i: b"%d" % (i * i) for i in range(200)} | {b"first": b"from the parent"}
    assert dict(zip(records.key, records.value, strict=True)) == expected


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_end_of_a_process_loses_nothing(
    ending: str, kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    run = run_script(SENDS_AND_ENDS.format(ending=ENDINGS[ending]), kafka.bootstrap_servers, topic, check=False)
    assert run.returncode == {"raises": 1, "SIGKILL": -9}.get(ending, 0), run.stderr
    found = numbers_by_key(arrived(topic, 2000))
    assert found == {b"%d" % i: list(range(i, 2000, 7)) for i in range(7)}


@pytest.mark.parametrize("ending", ["os._exit", "SIGKILL"])
def test_the_end_of_a_forked_child_loses_nothing(
    ending: str, kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    run = run_script(CHILD_ENDS.format(ending=ENDINGS[ending]), kafka.bootstrap_servers, topic)
    assert run.stdout == ("[-9, -9, -9]\n" if ending == "SIGKILL" else "[0, 0, 0]\n")
    found = numbers_by_key(arrived(topic, 2000))
    assert found == {key: list(range(500)) for key in [b"parent", *(b"child %d" % i for i in range(3))]}


def test_children_of_an_unused_producer_share_one_sender_and_one_connection(
    kafka: KafkaCluster,
    topic: str,
    arrived: Callable[..., ReadRecords],
    runtime_dir: Path,
    retired_senders: None,
) -> None:
    with start_script(FORKS_BEFORE_USE, kafka.bootstrap_servers, topic) as process:
        for _ in range(4):
            expect(process, "flushed")
        (sender,) = senders(runtime_dir)
        held = broker_connections(*ports_of(kafka.bootstrap_servers))
        assert 1 <= held.get(sender.pid, 0) <= SENDERS_MOST
        family = {process.pid} | {child.pid for child in psutil.Process(process.pid).children(recursive=True)}
        assert len(family) == 5
        assert not family & held.keys()
        process.communicate("\n\n\n\n", timeout=30)
        assert process.returncode == 0
    assert Counter(arrived(topic, 400).key) == {b"%d" % i: 100 for i in range(4)}
