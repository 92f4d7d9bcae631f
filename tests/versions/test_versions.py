"""Tests that processes and senders of two versions run beside each other, and that what does not work says so."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support.process import run_script
from support.streams import Streams, streams
from support.supervised import Foreground
from versions.conftest import Version

from cyproducer.observe.status import status

pytestmark = pytest.mark.timeout(1800)  # the first test builds the former version

KINDS = ("send", "array")
#: What tells a user that two versions cannot share a sender.
DIFFERENT = re.compile(r"memory (has )?layout \d+")

ONE_RECORD = """
    import sys
    from cyproducer import KafkaProducer, errors
    socket, topic = sys.argv[1:]
    try:
        with KafkaProducer(sender=socket, max_block_ms=20_000) as producer:
            producer.send(topic, b"one").result(60)
    except errors.SenderUnavailableError as error:
        print(error)
        sys.exit(3)
"""


@pytest.fixture
def sender_of(kafka: KafkaCluster, short_tmp: Path, tmp_path: Path) -> Iterator[Callable[..., Foreground]]:
    """Return a function that starts a named sender of a version."""
    running = []

    def start(version: Version) -> Foreground:
        path = short_tmp / f"{version.name}-{os.urandom(4).hex()}"
        log = tmp_path / f"{version.name}.log"
        running.append(Foreground(path, kafka.bootstrap_servers, log, root=os.fspath(version.root)))
        return running[-1].ready()

    yield start
    for sender in running:
        sender.end()


@contextmanager
def streams_of(directory: Path, topic: str, versions: list[Version], **settings: object) -> Iterator[Streams]:
    """Run streams of each version."""
    kinds = KINDS * len(versions)
    environments = [version.environment for version in versions for _ in KINDS]
    with streams(directory, topic, kinds, environments, **settings) as running:
        running.more()
        yield running


def test_a_process_and_a_named_sender_of_another_version(
    pair: tuple[Version, Version],
    sender_of: Callable[..., Foreground],
    kafka: KafkaCluster,
    topic: str,
    tmp_path: Path,
) -> None:
    """They share the memory, or the process is refused and the sender serves the others as before."""
    process, other = pair
    sender = sender_of(other)
    with streams_of(tmp_path, topic, [other], sender=str(sender.socket)) as running:
        found = run_script(ONE_RECORD, sender.socket, topic, env=process.environment, check=False)
        if process.layout == other.layout:
            assert found.returncode == 0, found.stderr
        else:
            assert found.returncode == 3, found.stderr
            assert DIFFERENT.search(found.stdout)
            assert "\n" not in found.stdout.strip()
        running.more()
        running.finish()
    if process.layout != other.layout:  # the topic has the records of the streams only
        running.check(kafka.bootstrap_servers, topic)


def test_processes_of_both_versions_find_a_sender(
    both: dict[str, Version], kafka: KafkaCluster, topic: str, tmp_path: Path, runtime_dir: Path
) -> None:
    versions = list(both.values())
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "sender_idle_timeout_ms": 200}
    with streams_of(tmp_path, topic, versions, **settings) as running:
        first, second = versions
        is_shared = (first.layout, first.sender_settings) == (second.layout, second.sender_settings)
        assert len(status()) == (1 if is_shared else 2)
        running.more()
        running.finish()
    running.check(kafka.bootstrap_servers, topic)


def test_a_named_sender_is_replaced_by_another_version(
    pair: tuple[Version, Version],
    sender_of: Callable[..., Foreground],
    kafka: KafkaCluster,
    topic: str,
    tmp_path: Path,
) -> None:
    """The new sender takes over, or the command fails and the sender goes on. Nothing is lost in both cases."""
    running_version, replacing = pair
    sender = sender_of(running_version)
    command = [sys.executable, "-m", "cyproducer", "sender", "--replace", "--socket", str(sender.socket)]
    command += ["--bootstrap-servers", kafka.bootstrap_servers]
    with streams_of(tmp_path, topic, [running_version], sender=str(sender.socket)) as running:
        environment = {**os.environ, **replacing.environment}
        started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            if running_version.layout == replacing.layout:
                assert sender.process.wait(60) == 0
            else:
                assert started.wait(60) != 0
                said = started.stderr.read().strip()
                assert DIFFERENT.search(said)
                assert len(said.splitlines()) == 1
                assert sender.process.poll() is None
            running.more()
            running.finish()
        finally:
            if started.poll() is None:
                started.terminate()
            started.communicate(timeout=60)
    running.check(kafka.bootstrap_servers, topic)


MAKE = """
    import inspect, pickle, sys
    import numpy
    from cyproducer import ArrayMetadata, KafkaProducer, ProducerRecord, RecordMetadata, TopicPartition, errors
    from cyproducer.config.settings import Settings
    from cyproducer.group_offsets import *
    from cyproducer.spark import exactly_once
    from cyproducer.spark.atomic import Job, Written
    from cyproducer.spark.dataframe import WriteResult
    from cyproducer.spark.writer import Plan, TaskCommit
    given = {"bootstrap_servers": "h:1", "acks": "all", "linger_ms": 7, "compression_type": "zstd", "retries": 9}
    producer = KafkaProducer(**given)
    things = {
        "producer": producer,
        "settings": Settings.parse(**given),
        "metadata": RecordMetadata("t", 1, 2, 3, 4, 5),
        "record": ProducerRecord("t", b"v", b"k", [("h", b"1")], 1, 2),
        "partition": TopicPartition("t", 1),
        "rows": ArrayMetadata("t", numpy.arange(3, dtype="i4"), numpy.arange(3)),
        "plan": Plan({"linger_ms": 7}, "t", ("value", "key")),
        "commit": TaskCommit(3, 40, {0: 2, 1: 1}),
        "written": Written(3, 40, {("t", 0): 3}, {("t", 0): 17}),
        "result": WriteResult(3, 40, {0: 3}),
        "sink": exactly_once(id="i", topic="t", bootstrap_servers="h:1"),
    }
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, BaseException):
            try:
                things["error " + name] = kind("it failed")
            except TypeError:
                pass
    print(pickle.dumps(things).hex())
    print(sorted((name, describe(thing)) for name, thing in things.items()))
    producer.close()
"""
READ = """
    import pickle, sys
    things = pickle.loads(bytes.fromhex(sys.stdin.readline()))
    print(sorted((name, describe(thing)) for name, thing in things.items()))
"""
DESCRIBE = """
    def describe(thing):
        facts = [type(thing).__name__, repr(thing).split(" of ")[0]]
        if isinstance(thing, BaseException):
            facts += [str(thing), getattr(thing, "code", None), getattr(thing, "retriable", None)]
        settings = getattr(thing, "settings", thing)
        if hasattr(settings, "sender_settings"):
            facts += sorted(settings.explicit)
        return facts
"""


def test_pickles_of_another_version(pair: tuple[Version, Version], runtime_dir: Path) -> None:
    """Spark, multiprocessing and queues of jobs carry objects from one version to the other."""
    writing, reading = pair
    made = run_script(DESCRIBE + MAKE, env=writing.environment)
    pickled, described = made.stdout.splitlines()
    found = run_script(DESCRIBE + READ, env=reading.environment, input=pickled + "\n")
    assert found.stdout.strip() == described
    assert described.count("'error ") > 50
