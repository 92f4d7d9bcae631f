"""Plays one round: batches that are in the log and unanswered, a fault of the broker, a check of each record."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from support.process import kill9, senders

from cyproducer import KafkaProducer, errors, wait
from unanswered.cluster import EXPIRES_MS, NEVER_EXPIRES_MS, ProxiedCluster

PARTITIONS = 8
PRODUCERS = 3
BATCHES = (2, 5)  # unanswered batches of a partition
APPENDED_S = 3.0
SETTINGS = {
    "linger_ms": 100,  # one request for all partitions: a connection takes five without an answer
    "request_timeout_ms": 60_000,
    "delivery_timeout_ms": 180_000,
    "max_block_ms": 60_000,
    "retry_backoff_ms": 50,
    "reconnect_backoff_max_ms": 500,
    "sender_idle_timeout_ms": 200,
}
OUTCOME_S = 150.0


@dataclass
class Sent:
    """A record: its value, where it went, and its outcome."""

    value: bytes
    producer: int
    partition: int
    future: Any
    offset: int | None = None  # acknowledged; -1: at an unknown offset
    error: str = ""


@dataclass
class Round:
    """The result of a round; `defects` are violations of what is required."""

    scenario: str
    counts: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)


def _sigterm(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    cluster.kafka.restart(1, grace=60)


def _sigkill(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    cluster.kafka.kill(1)
    cluster.kafka.restart(1)


def _sigkill_twice(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    _sigkill(cluster, topic, ends)
    _sigkill(cluster, topic, ends)


def _with_sender(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    cluster.kafka.node(1).signal(signal.SIGKILL)
    _sender_alone(cluster, topic, ends)
    cluster.kafka.kill(1)
    cluster.kafka.restart(1)


def _sender_alone(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    for sender in senders(os.environ["CYPRODUCER_RUNTIME_DIR"]):
        kill9(sender.pid)


def _expired(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    cluster.expire_producers(EXPIRES_MS)
    time.sleep(EXPIRES_MS / 1000 + 1)
    cluster.expire_producers(NEVER_EXPIRES_MS)


def _deleted(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    cluster.delete_records(topic, ends)
    cluster.kafka.restart(1, grace=60)


def _deleted_alone(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    cluster.delete_records(topic, ends)


def _rolling(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    cluster.refuse(False)
    cluster.swallow(False)
    for number in range(1, len(cluster.kafka.nodes) + 1):
        cluster.kafka.restart(number, grace=60)


def _rolling_kills(cluster: ProxiedCluster, topic: str, ends: dict[int, int]) -> None:
    cluster.refuse(False)
    cluster.swallow(False)
    for number in range(1, len(cluster.kafka.nodes) + 1):
        cluster.kafka.kill(number)
        cluster.kafka.restart(number)
        cluster.kafka.restore()


#: name: (nodes, the fault)
SCENARIOS: dict[str, tuple[int, Callable[[ProxiedCluster, str, dict[int, int]], None]]] = {
    "sigterm": (1, _sigterm),
    "sigkill": (1, _sigkill),
    "sigkill-twice": (1, _sigkill_twice),
    "with-sender": (1, _with_sender),
    "sender-alone": (1, _sender_alone),
    "expired": (1, _expired),
    "deleted": (1, _deleted),
    "deleted-alone": (1, _deleted_alone),
    "rolling": (3, _rolling),
    "rolling-kills": (3, _rolling_kills),
}
#: The broker has lost its state of the producer: unanswered batches can be unknown.
LOSES_STATE = ("expired", "deleted")


def play(cluster: ProxiedCluster, scenario: str, topic: str, chance: random.Random) -> Round:
    """Run a round on a fresh topic; the producers are closed at the end, and their sender ends with them."""
    result = Round(scenario)
    merged = chance.random() < 0.5
    producers = [KafkaProducer(bootstrap_servers=cluster.bootstrap_servers, **SETTINGS) for _ in range(PRODUCERS)]
    sent: list[Sent] = []

    def send(producer: int, partition: int) -> None:
        value = b"%d/%d/%d" % (producer, partition, len(sent))
        sent.append(Sent(value, producer, partition, producers[producer].send(topic, value, partition=partition)))

    try:
        for producer in range(PRODUCERS):
            for partition in range(PARTITIONS):
                send(producer, partition)
        wait([record.future for record in sent], OUTCOME_S)
        cluster.swallow(True)
        wanted = {partition: chance.randint(*BATCHES) for partition in range(PARTITIONS)}
        ends = dict.fromkeys(range(PARTITIONS), PRODUCERS)
        for number in range(BATCHES[1]):
            for partition, batches in wanted.items():
                if number >= batches:
                    continue
                for producer in range(PRODUCERS) if merged else [chance.randrange(PRODUCERS)]:
                    send(producer, partition)
                    ends[partition] += 1
            appended = cluster.await_ends(topic, ends, APPENDED_S)
        result.counts["unanswered"] += sum(not record.future.done() for record in sent)
        result.counts["of them in the log"] += sum(appended.values()) - PRODUCERS * PARTITIONS
        cluster.refuse(True)
        cluster.cut()
        SCENARIOS[scenario][1](cluster, topic, appended)
        cluster.swallow(False)
        cluster.refuse(False)
        for producer in range(PRODUCERS):
            for partition in range(PARTITIONS):
                send(producer, partition)
        wait([record.future for record in sent], OUTCOME_S)
        _hear(sent, result)
        for partition in range(PARTITIONS):
            log = cluster.log_of(topic, partition)
            _compare(partition, [record for record in sent if record.partition == partition], log, scenario, result)
    finally:
        cluster.swallow(False)
        cluster.refuse(False)
        for made in producers:
            made.close(30)
    return result


def _hear(sent: list[Sent], result: Round) -> None:
    for record in sent:
        result.counts["records"] += 1
        if not record.future.done():
            result.defects.append(f"{record.value!r} has no outcome")
        elif record.future.exception() is None:
            record.offset = record.future.result().offset
            result.counts["acknowledged" if record.offset >= 0 else "acknowledged, offset unknown"] += 1
        elif isinstance(record.future.exception(), errors.OutcomeUnknownError):
            record.error = "unknown"
            result.counts["unknown"] += 1
        else:
            result.defects.append(f"{record.value!r} failed: {record.future.exception()!r}")


def _compare(partition: int, sent: list[Sent], log: dict[int, bytes], scenario: str, result: Round) -> None:
    """Compare the log of a partition with the outcomes of its records. Deleted records are in no log."""
    where = f"{scenario}, partition {partition}"
    low = min(log, default=0)
    for value, times in Counter(log.values()).items():
        if times > 1:
            result.defects.append(f"{where}: {value!r} is in the log {times} times: duplicated")
    for record in sent:
        if record.offset is None or 0 <= record.offset < low:
            continue
        if record.offset >= 0 and log.get(record.offset) != record.value:
            result.defects.append(f"{where}: {record.value!r} is not at offset {record.offset}")
        if record.offset < 0 and record.value not in log.values() and low == 0:
            result.defects.append(f"{where}: {record.value!r} was acknowledged and is not in the log")
    for producer in range(PRODUCERS):
        order = [record.value for record in sent if record.producer == producer]
        found = [log[offset] for offset in sorted(log) if log[offset].startswith(b"%d/" % producer)]
        if [value for value in order if value in set(found)] != list(dict.fromkeys(found)):
            result.defects.append(f"{where}: the records of producer {producer} are not in order: reordered")
    if scenario not in LOSES_STATE:
        unknown = sum(record.error == "unknown" for record in sent)
        result.counts["unknown though the state was kept"] += unknown
    if "deleted" in scenario and low == 0:
        result.defects.append(f"{where}: nothing was deleted")
