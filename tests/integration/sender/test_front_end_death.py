"""Tests front-ends that end, stop or hang in every way: committed records are delivered, other front-ends go on."""

import contextlib
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from support.consumer import ReadRecords, read_topic
from support.process import is_running, kill9, start_script, wait_until

from cyproducer import KafkaProducer
from cyproducer.observe.status import status

COUNT = 200

# The front-end holds an open batch that only its end, or the linger time of a minute, closes; then it does "act".
FRONT_END = """
    import ctypes, os, resource, signal, sys, time
    from cyproducer import KafkaProducer
    servers, topic, linger_ms = sys.argv[1:4]
    producer = KafkaProducer(bootstrap_servers=servers, linger_ms=int(linger_ms), sender_idle_timeout_ms=200)
    futures = [producer.send(topic, b"%d" % number, partition=number % 3) for number in range(200)]
    print("sent", flush=True)
    def wait():
        sys.stdin.readline()
"""


@pytest.fixture
def works(make_producer: Callable[..., KafkaProducer], new_topic: Callable[..., str]) -> Iterator[Callable[[], None]]:
    """Return `works()`, which checks that another front-end of the same sender goes on. Also runs before and after."""
    producer = make_producer()
    topic = new_topic(1)

    def works() -> None:
        assert producer.send(topic, b"still here").result(30).offset >= 0

    works()
    yield works
    works()


def front_ends() -> list[dict[str, Any]]:
    (found,) = status()
    return found["front_ends"]


@contextlib.contextmanager
def front_end(kafka: KafkaCluster, topic: str, act: str, linger_ms: int = 60_000) -> Iterator["subprocess.Popen[str]"]:
    with start_script(FRONT_END + act, kafka.bootstrap_servers, topic, linger_ms) as process:
        line = process.stdout.readline()
        assert line == "sent\n", process.stderr.read()
        yield process


def delivered(kafka: KafkaCluster, topic: str, count: int = COUNT) -> ReadRecords:
    records = read_topic(kafka.bootstrap_servers, topic, count)
    assert len(records) == count
    for partition in range(3):
        values = [int(value) for value in records.values_of(partition)]
        assert values == sorted(values)
    return records


def nobody_else() -> None:
    wait_until(lambda: len(front_ends()) == 1, what="the front-end's end")


# ---------------------------------------------------------------- ends


def test_sigkill(works: Callable[[], None], kafka: KafkaCluster, topic: str) -> None:
    with front_end(kafka, topic, "    wait()\n") as process:
        kill9(process.pid)
        delivered(kafka, topic)
    nobody_else()


def test_sigkill_while_a_child_of_a_fork_in_c_holds_everything(
    works: Callable[[], None], kafka: KafkaCluster, topic: str
) -> None:
    """No Python fork hook runs in the child: no hang-up comes while it lives; the pidfd reports the end."""
    act = """
    child = ctypes.CDLL(None).fork()
    if child == 0:
        while True:
            ctypes.CDLL(None).pause()
    print(child, flush=True)
    wait()
    """
    with front_end(kafka, topic, act) as process:
        child = int(process.stdout.readline())
        kill9(process.pid)
        delivered(kafka, topic)
        nobody_else()
        works()
        assert is_running(child)
        kill9(child)


def test_exec(works: Callable[[], None], kafka: KafkaCluster, topic: str) -> None:
    """The pidfd reports nothing and the mapping is gone without a destructor: the hang-up reports the end."""
    with front_end(kafka, topic, "    os.execv('/bin/sleep', ['sleep', '60'])\n") as process:
        delivered(kafka, topic)
        nobody_else()
        assert is_running(process.pid)


def test_exec_while_a_child_holds_the_socket(works: Callable[[], None], kafka: KafkaCluster, topic: str) -> None:
    """Nothing reports the end: the linger time closes the batch, and the child's end frees the rest."""
    act = """
    child = ctypes.CDLL(None).fork()
    if child == 0:
        while True:
            ctypes.CDLL(None).pause()
    print(child, flush=True)
    os.execv('/bin/sleep', ['sleep', '60'])
    """
    with front_end(kafka, topic, act, linger_ms=500) as process:
        child = int(process.stdout.readline())
        delivered(kafka, topic)
        works()
        assert len(front_ends()) == 2
        kill9(child)
        nobody_else()


def test_all_descriptors_closed_by_the_program(works: Callable[[], None], kafka: KafkaCluster, topic: str) -> None:
    with front_end(kafka, topic, "    os.closerange(3, 1000)\n    wait()\n") as process:
        delivered(kafka, topic)
        nobody_else()
        assert is_running(process.pid)


def test_os_exit(works: Callable[[], None], kafka: KafkaCluster, topic: str) -> None:
    with front_end(kafka, topic, "    os._exit(3)\n") as process:
        assert process.wait(20) == 3
        delivered(kafka, topic)
    nobody_else()


def test_core_dump(works: Callable[[], None], kafka: KafkaCluster, topic: str, tmp_path: Path) -> None:
    """The process is ending for as long as its core is written, and its descriptors stay open meanwhile."""
    act = f"""
    os.chdir({str(tmp_path)!r})
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY,) * 2)
    ballast = bytearray(os.urandom(1 << 20)) * 256
    os.abort()
    """
    with front_end(kafka, topic, act) as process:
        while process.poll() is None:
            works()
        assert process.returncode == -signal.SIGABRT
        delivered(kafka, topic)
    nobody_else()
    for core in tmp_path.glob("core*"):
        core.unlink()


def test_uncommitted_bytes_are_never_sent(works: Callable[[], None], kafka: KafkaCluster, topic: str) -> None:
    """A record is written in full and never committed; the records before it in the batch arrive."""
    (found,) = status()
    script = """
    import random, struct, sys
    from hostile.stranger import Stranger
    from probe.native import RecordBatchBuilder
    from support.front_end import HEAD, OPEN
    front_end = Stranger(sys.argv[1], sys.argv[2], 3, random.Random(0), linger_ms=60_000)
    first, both = RecordBatchBuilder(4096), RecordBatchBuilder(4096)
    now = 1_700_000_000_000
    first.append(now, None, b"1")
    both.append(now, None, b"1")
    both.append(now, None, b"2")
    front_end.write_chunk(
        0, first.records(), 1, topic=front_end.topic, partition=0, base=now, highest=now, state=OPEN, flags=HEAD
    )
    at = front_end.chunks_at
    front_end.memory[at:at + len(both.records())] = both.records()
    print("written", flush=True)
    sys.stdin.readline()
    """
    with start_script(script, found["socket"], topic) as process:
        assert process.stdout.readline().startswith("attached")
        assert process.stdout.readline() == "written\n", process.stderr.read()
        kill9(process.pid)
        assert delivered(kafka, topic, 1).value == [b"1"]
    nobody_else()


# ---------------------------------------------------------------- alive, but not running


def test_stopped_is_not_dead(works: Callable[[], None], kafka: KafkaCluster, topic: str) -> None:
    """Its open batch goes out in time, the sender keeps the front-end, and nothing is missing when it goes on."""
    act = """
    wait()
    assert sorted(future.result(30).partition for future in futures) == sorted(n % 3 for n in range(200))
    more = [producer.send(topic, b"%d" % (200 + n), partition=n % 3) for n in range(100)]
    print(len({(f.result(30).partition, f.result(30).offset) for f in futures + more}), flush=True)
    """
    with front_end(kafka, topic, act, linger_ms=1000) as process:
        process.send_signal(signal.SIGSTOP)
        delivered(kafka, topic)
        for _ in range(20):
            works()
        assert len(front_ends()) == 2
        process.send_signal(signal.SIGCONT)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "300\n", process.stderr.read()
    delivered(kafka, topic, COUNT + 100)
    nobody_else()


def test_ptrace_stop_is_not_death(works: Callable[[], None], kafka: KafkaCluster, topic: str) -> None:
    act = """
    wait()
    print(futures[-1].result(30).partition, flush=True)
    """
    with front_end(kafka, topic, act, 1000) as process:
        tracer = """
    import ctypes, os, sys
    libc, pid = ctypes.CDLL(None, use_errno=True), int(sys.argv[1])
    SEIZE, INTERRUPT = 0x4206, 0x4207
    assert libc.ptrace(SEIZE, pid, None, None) == 0, os.strerror(ctypes.get_errno())
    assert libc.ptrace(INTERRUPT, pid, None, None) == 0
    os.waitpid(pid, 0x40000000)  # __WALL
    print("stopped", flush=True)
    sys.stdin.readline()
    """
        with start_script(tracer, process.pid) as tracing:
            line = tracing.stdout.readline()
            assert line == "stopped\n", tracing.stderr.read()
            delivered(kafka, topic)
            works()
            assert len(front_ends()) == 2
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{199 % 3}\n"
    nobody_else()


def test_outcomes_that_are_never_read(
    works: Callable[[], None], kafka: KafkaCluster, new_topic: Callable[..., str]
) -> None:
    """The front-end fills its memory once and reads no outcome; all is delivered, only its own memory is used up."""
    topic = new_topic(1)
    (found,) = status()
    script = """
    import random, sys, time
    from hostile.stranger import Stranger
    front_end = Stranger(sys.argv[1], sys.argv[2], 1, random.Random(0), linger_ms=0)
    for _ in range(front_end.slot_count // 16):
        front_end.good_batch(records=2)
        front_end.nudge()
    print("sent", front_end.slot_count // 8, flush=True)
    sys.stdin.readline()
    """
    with start_script(script, found["socket"], topic) as process:
        assert process.stdout.readline().startswith("attached")
        line = process.stdout.readline()
        assert line.startswith("sent "), process.stderr.read()
        read_topic(kafka.bootstrap_servers, topic, int(line.split()[1]))
        works()
        assert len(front_ends()) == 2
    nobody_else()
