"""Tests refused memory and descriptors: a clear error, nothing left behind, and it works when they are back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devkafka.node import KafkaCluster
from numbered import numbers_by_key
from support.confined import REFUSE
from support.consumer import ReadRecords
from support.process import run_script, wait_until
from support.supervised import Foreground, the_sender

from cyproducer import errors

BEGINNING = """
    import os, resource, sys
    from cyproducer import KafkaProducer, errors
    servers, topic = sys.argv[1:3]
    def holds():
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), maps.read().count("/memfd:cyproducer")
    def make(**settings):
        return KafkaProducer(bootstrap_servers=servers, sender_idle_timeout_ms=200, **settings)
    def refused(producer):
        try:
            producer.send(topic, b"never")
        except errors.KafkaError as error:
            return error
        raise AssertionError("it was sent")
"""


def run(script: str, kafka: KafkaCluster, *arguments: object) -> list[str]:
    done = run_script(BEGINNING + script, kafka.bootstrap_servers, *arguments)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
@pytest.mark.parametrize("call", ["memfd_create", "pidfd_open"])
def test_system_calls_that_are_refused(call: str, error: str, kafka: KafkaCluster, topic: str) -> None:
    """Seccomp refuses them, as in containers: reported when a producer is made, or at its first use if later."""
    lines = run(
        REFUSE
        + f"""
    early = make()
    before = holds()
    refuse({call!r}, errno.{error})
    try:
        make()
    except errors.UnsupportedPlatformError as refusal:
        print(refusal)
    print(refused(early))
    assert holds() == before, (before, holds())
    """,
        kafka,
        topic,
    )
    assert len(lines) == 2
    for line in lines:
        assert {"EPERM": "not permitted", "ENOSYS": "not implemented"}[error] in line
    assert call in lines[0]
    assert call in lines[1] or call != "memfd_create"


@pytest.mark.parametrize(
    ("limit", "bytes_", "settings", "text"),
    [
        ("RLIMIT_AS", 64 << 20, "buffer_memory=256 << 20", "ulimit -n, -v, -f"),
        ("RLIMIT_FSIZE", 8 << 20, "buffer_memory=16 << 20", "ulimit -n, -v, -f"),
    ],
)
def test_memory_over_a_limit(
    limit: str,
    bytes_: int,
    settings: str,
    text: str,
    kafka: KafkaCluster,
    topic: str,
    arrived: Callable[..., ReadRecords],
) -> None:
    """The same producer works when the limit is raised, another one with less memory below the limit."""
    (line,) = run(
        f"""
    with make() as first:
        first.send(topic, b"0", key=b"k").result(30)    # all modules are imported from here on
    first = None
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * 4096 if {limit!r} == "RLIMIT_AS" else 0
    before = holds()
    producer, small = make({settings}), make(buffer_memory=1 << 20)
    resource.setrlimit(resource.{limit}, (used + {bytes_}, resource.RLIM_INFINITY))
    print(refused(producer))
    assert holds() == before, (before, holds())
    small.send(topic, b"1", key=b"k").result(30)
    resource.setrlimit(resource.{limit}, (resource.RLIM_INFINITY,) * 2)
    producer.send(topic, b"2", key=b"k").result(30)
    """,
        kafka,
        topic,
    )
    assert text in line
    assert numbers_by_key(arrived(topic, 3)) == {b"k": [0, 1, 2]}


def test_no_limit_of_the_application_is_the_senders(
    kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    """The sender is started under soft limits that are too low for it; it could not raise hard ones."""
    (line,) = run(
        """
    for name, most in (("FSIZE", 4 << 20), ("CPU", 3000), ("NOFILE", 60)):
        number = getattr(resource, "RLIMIT_" + name)
        resource.setrlimit(number, (most, resource.getrlimit(number)[1]))
    producer = make(buffer_memory=1 << 20)
    producer.send(topic, b"0", key=b"k").result(30)
    pid = producer._channel().session.attachment.sender_pid
    names = ("FSIZE", "CPU", "NOFILE", "AS", "DATA")
    limits = [resource.prlimit(pid, getattr(resource, "RLIMIT_" + name)) for name in names]
    print([soft == hard for soft, hard in limits])
    """,
        kafka,
        topic,
    )
    assert line == str([True] * 5)
    assert arrived(topic, 1)


@pytest.mark.parametrize("sender", ["running", "to be started"])
def test_descriptors_run_out_in_the_application(
    sender: str, kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    """An attach may lack any descriptor, also the last one of its answer, and also if it has to start the sender."""
    lines = run(
        """
    started = sys.argv[3] == "running" and make()
    if started:
        started.send(topic, b"x").result(30)
    make(sender_group="other").partitions_for(topic)    # all modules are imported from here on
    highest = max(map(int, os.listdir("/proc/self/fd"))) + 40
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    sent = 0
    before = holds()
    for left in range(16):
        filler = []
        try:
            while True:
                filler.append(os.dup(0))
        except OSError:
            pass
        for _ in range(left):
            os.close(filler.pop())
        producer = make(max_block_ms=20_000)  # with less, a thread would go on attaching
        try:
            producer.send(topic, b"%d" % left)
            sent += 1
        except errors.KafkaError as error:
            print(type(error).__name__, error)
        for fd in filler:
            os.close(fd)
        if sent:
            break
        assert holds() == before, (left, before, holds())
    producer.flush(30)
    """,
        kafka,
        topic,
        sender,
    )
    assert len(lines) > 3
    for line in lines:
        assert line.startswith(("SenderUnavailableError", "UnsupportedPlatformError")), line
        assert "Too many open files" in line or "no file descriptors left" in line or "ulimit -n" in line, line


def test_descriptors_run_out_in_the_sender(
    kafka: KafkaCluster,
    make_producer: Callable[..., Any],
    topic: str,
    runtime_dir: Path,
    arrived: Callable[..., ReadRecords],
) -> None:
    """A front-end beyond the limit is refused with a reason; attached ones go on, and free descriptors at their end."""
    patch = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    sender = Foreground(runtime_dir / "s.sock", kafka.bootstrap_servers, runtime_dir / "s.log", patch).ready()
    attached: list[Any] = []
    try:
        while len(attached) < 32:
            producer = make_producer(sender=str(sender.socket), max_block_ms=2000, buffer_memory=1 << 20)
            try:
                producer.send(topic, b"%d" % len(attached), partition=0).result(30)
            except errors.SenderUnavailableError as error:
                refusal = str(error)
                break
            attached.append(producer)
        assert 3 < len(attached) < 32
        # Perhaps not even its connection could be accepted: then it waits for as long as a send may.
        assert "too few resources for another front-end" in refusal or "no answer in time from the sender" in refusal
        for producer in attached:
            producer.send(topic, b"again", partition=1).result(30)
        assert len(the_sender()["front_ends"]) == len(attached)
        attached[0].close()
        producer = make_producer(sender=str(sender.socket), max_block_ms=20_000, buffer_memory=1 << 20)
        producer.send(topic, b"%d" % len(attached), partition=0).result(30)
        producer.close()
        descriptors = Path(f"/proc/{the_sender()['sender_pid']}/fd")
        held = len(list(descriptors.iterdir()))
        for _ in range(50):
            with make_producer(sender=str(sender.socket), buffer_memory=1 << 20) as producer:
                producer.partitions_for(topic)
        wait_until(lambda: len(list(descriptors.iterdir())) <= held + 2, what="the release of the last descriptors")
        values = arrived(topic, 2 * len(attached) + 1).values_of(0)
        assert values == [b"%d" % number for number in range(len(attached) + 1)]
    finally:
        for producer in attached:
            producer.close(10)
        sender.end()
    sender.log.unlink()
