"""Tests producers whose topics give their numbers back and get others, on a real Kafka."""

import asyncio
import itertools
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import psutil
import pytest
from devkafka.node import KafkaCluster
from support.build import is_debug
from support.consumer import read_topic
from support.crashpoints import Trigger
from support.process import kill9, script_command, script_environment, wait_until
from support.supervised import Foreground, the_sender

from cyproducer import KafkaProducer

LARGE = bytes(100_000)  # fits no shared batch
#: A sender whose topics give their numbers back after half a second without a batch.
IMPATIENT = """
from cyproducer.sender.cluster import metadata

class Impatient(metadata.Metadata):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._cluster.max_idle_ms = 300
        self._cluster.max_age_ms = 200
engine.Metadata = Impatient

class Telling(metadata.TopicNumbers):
    def reclaim(self):
        found = super().reclaim()
        if found and found[0]:
            print("given back:", *found[0], file=sys.stderr, flush=True)
        return found
metadata.TopicNumbers = Telling
"""
IDLE_S = 1.2
CHILD = """
import sys
from cyproducer import KafkaProducer
producer = KafkaProducer(sender=sys.argv[1], linger_ms=1)
for line in sys.stdin:
    topic, value = line.split()
    producer.send(topic, value.encode(), partition=0).result(60)
    print("sent", flush=True)
producer.close()
"""


@pytest.fixture
def sender(kafka: KafkaCluster, runtime_dir: Path) -> Iterator[Foreground]:
    started = Foreground(runtime_dir / "s.sock", kafka.bootstrap_servers, runtime_dir / "s.log", IMPATIENT).ready()
    yield started
    started.end()


def send(producer: KafkaProducer, topic: str, value: bytes) -> None:
    producer.send(topic, value, partition=0).result(60)


def send_large(producer: KafkaProducer, topic: str, value: bytes) -> None:
    producer.send(topic, value + LARGE, partition=0).result(60)


def send_array(producer: KafkaProducer, topic: str, value: bytes) -> None:
    producer.send_array(topic, numpy.array([value]), partition=0).result(60)


def send_async(producer: KafkaProducer, topic: str, value: bytes) -> None:
    async def main() -> None:
        await (await producer.send_async(topic, value, partition=0))

    asyncio.run(main())


WAYS = (send, send_large, send_array, send_async)


def check(kafka: KafkaCluster, sent: dict[str, list[bytes]]) -> None:
    for topic, values in sent.items():
        found = read_topic(kafka.bootstrap_servers, topic, len(values)).value
        assert [value.rstrip(b"\0") for value in found] == values, topic


@pytest.mark.parametrize("kills", [pytest.param(0, marks=pytest.mark.long), 4])
def test_topics_that_are_used_in_turn(
    sender: Foreground, kafka: KafkaCluster, new_topic: Callable[..., str], kills: int
) -> None:
    """Each record is in its own topic once, also if the sender is killed now and then."""
    topics = [new_topic(2) for _ in range(4)]
    sent: dict[str, list[bytes]] = defaultdict(list)
    values = itertools.count()
    address = str(sender.socket)
    with KafkaProducer(sender=address, linger_ms=1) as one, KafkaProducer(sender=address, linger_ms=1) as other:
        for turn in range(8):
            chosen = [topics[turn % 4], topics[(turn + 1) % 4]]
            if turn % 2:
                chosen.reverse()  # the other one gets the number that was freed last
            for topic in chosen:
                assert other.partitions_for(topic) == {0, 1}
                for producer, way in itertools.product((one, other), WAYS):
                    value = b"value %d" % next(values)
                    sent[topic].append(value)
                    way(producer, topic, value)
            if turn < kills:
                kill9(the_sender()["sender_pid"])
            time.sleep(IDLE_S)
        assert the_sender()["totals"]["errors"] == 0
    assert all(any(topic in line for line in sender.lines("given back:")) for topic in topics)
    check(kafka, sent)


@pytest.mark.skipif(not is_debug(), reason="a release build has no crash points")
@pytest.mark.parametrize("point", ["append.row-filled", "append.opened"])
def test_a_process_that_is_stopped_while_it_opens_a_batch(
    sender: Foreground, kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, point: str
) -> None:
    """Its topic gives the number back meanwhile, or keeps it: the record reaches the topic that was meant."""
    mine, *others = (new_topic(1) for _ in range(4))
    trigger = Trigger(tmp_path)
    child = subprocess.Popen(
        [*script_command(CHILD), str(sender.socket)], env=script_environment(trigger.environment), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(f"{mine} first\n")
        child.stdin.flush()
        assert child.stdout.readline() == "sent\n"
        trigger.arm(point, "front-end", signal.SIGSTOP)
        child.stdin.write(f"{mine} second\n")
        child.stdin.flush()
        trigger.wait()
        wait_until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, 10, "the stop")
        with KafkaProducer(sender=str(sender.socket), linger_ms=1) as producer:
            for _ in range(3):
                time.sleep(IDLE_S)
                for topic in others:
                    send(producer, topic, b"of another process")
        trigger.disarm()
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout.readline() == "sent\n"
        child.stdin.close()
        assert child.wait(30) == 0
    finally:
        trigger.close()
        if child.poll() is None:
            child.kill()
            child.wait()
        child.stdout.close()
    check(kafka, {mine: [b"first", b"second"], **{topic: [b"of another process"] * 3 for topic in others}})
