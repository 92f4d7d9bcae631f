"""Defines the rows: each injects one fault into the cluster while the load runs, and says when it is well again."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from devkafka.jars import KAFKA_VERSION

from cyproducer.observe.status import status
from faults.check import Log, read_log
from faults.cluster import NODES, FaultyCluster

PARTITIONS = 24
ADDED = 12
FAULT_S = 8.0
STOPPED_S = 10.0
AFTER_S = 3.0
#: The oldest version that runs three nodes with KRaft here.
OLD_VERSION = "3.3.2"
#: The versions of Kafka 2.1 of these API keys: Produce, Metadata, InitProducerId.
_CAPS = {0: 7, 3: 7, 22: 1}
_VICTIM = 1


@dataclass
class Stage:
    """What a fault acts on. `wells` collects the times (monotonic ns) at which the cluster was well again."""

    cluster: FaultyCluster
    topic: str
    replication: int
    partitions: int = PARTITIONS
    began: int = 0
    wells: list[int] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)

    def begin(self) -> None:
        """Note that the fault begins."""
        self.began = self.began or time.monotonic_ns()

    def well(self) -> None:
        """Note when the cluster is well: each partition has a leader, and a foreign producer can write to it."""
        self.cluster.await_leaders(self.topic, self.partitions)
        self.wells.append(self.cluster.await_writable(self.topic, self.partitions))

    def rest(self, seconds: float = AFTER_S) -> None:
        """Let the load run."""
        time.sleep(seconds)

    @contextlib.contextmanager
    def fault_of(self, seconds: float) -> Iterator[None]:
        """Run the block, which injects the fault, and let the fault last for this time."""
        self.begin()
        yield
        self.rest(seconds)


@dataclass(frozen=True)
class Row:
    """A fault.

    text         what it does, for --list
    play         injects it
    may_fail     the error names with which records may fail in it; all others must be acknowledged
    must_fail    whether some must
    gap_ms       a shorter gap of acknowledgements shows that the fault did not happen
    stamps       the kinds of timestamps in the log
    settings     of the producers
    sizes        of the values, as load.Order
    replication  of the topic
    version      of the brokers; a row with another version than 4.3.1 has a cluster of its own
    """

    text: str
    play: Callable[[Stage], None]
    may_fail: frozenset[str] = frozenset()
    must_fail: bool = False
    gap_ms: float = 0
    stamps: frozenset[str] = frozenset({"CreateTime"})
    settings: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    replication: int = NODES
    version: str = KAFKA_VERSION


def _undisturbed(stage: Stage) -> None:
    with stage.fault_of(FAULT_S):
        pass
    stage.well()


def _leader_killed(stage: Stage) -> None:
    stage.begin()
    stage.cluster.kafka.kill(_VICTIM)
    stage.well()
    stage.rest()
    stage.cluster.kafka.restart(_VICTIM, wait=False)
    stage.cluster.await_in_sync(stage.topic)
    stage.cluster.elect_preferred(stage.topic, stage.partitions)
    stage.well()


def _leader_stopped(stage: Stage) -> None:
    stage.begin()
    end = time.monotonic() + STOPPED_S
    stage.cluster.kafka.pause(_VICTIM)
    stage.well()
    stage.rest(max(0.0, end - time.monotonic()))
    stage.cluster.kafka.resume(_VICTIM)
    stage.well()
    stage.cluster.await_in_sync(stage.topic)


def _rolling_restart(stage: Stage) -> None:
    stage.begin()
    for node in stage.cluster.kafka.nodes:
        stage.cluster.kafka.restart(node.number, grace=60, wait=False)
        stage.cluster.await_in_sync(stage.topic)
        stage.well()
        stage.rest()  # so that throughput can be back before the next restart


def _port_refused(stage: Stage) -> None:
    with stage.fault_of(FAULT_S):
        stage.cluster.proxy.refuse()
    stage.cluster.proxy.restore()
    stage.well()


def _black_hole(stage: Stage) -> None:
    with stage.fault_of(FAULT_S):
        stage.cluster.proxy.hold()
    stage.cluster.proxy.restore()
    stage.well()


def _two_down(stage: Stage) -> None:
    kafka = stage.cluster.kafka
    with stage.fault_of(FAULT_S / 2):
        for number in (1, 2):
            kafka.kill(number)
    for number in (1, 2):
        kafka.restart(number, wait=False)
    stage.well()
    stage.cluster.await_in_sync(stage.topic)


def _preferred_election(stage: Stage) -> None:
    stage.begin()
    for _ in range(NODES):
        turned = {part: nodes[1:] + nodes[:1] for part, nodes in stage.cluster.replicas(stage.topic).items()}
        stage.cluster.assign(stage.topic, turned)
        stage.cluster.elect_preferred(stage.topic, stage.partitions)
        stage.cluster.await_these_leaders(stage.topic, {part: nodes[0] for part, nodes in turned.items()})
        stage.well()
        stage.rest()


def _reassigned(stage: Stage) -> None:
    """Move every partition to other brokers, so that its leader loses it."""
    stage.begin()
    everyone = set(range(1, NODES + 1))
    wanted = {part: [nodes[1], *(everyone - set(nodes))] for part, nodes in stage.cluster.replicas(stage.topic).items()}
    stage.cluster.assign(stage.topic, wanted)
    stage.cluster.await_metadata(
        stage.topic,
        lambda known: all(
            sorted(nodes) == sorted(wanted[part]) and known.leaders[part] in nodes
            for part, nodes in known.in_sync.items()
        ),
        "the reassignment",
    )
    stage.well()


def _topic_recreated(stage: Stage) -> None:
    stage.begin()
    began = time.monotonic_ns()
    log = read_log(stage.cluster.direct, stage.topic, began)
    stage.cluster.delete_topic(stage.topic)
    log.until = time.monotonic_ns()
    stage.logs.append(log)
    stage.rest(2.0)
    stage.cluster.create_topic(stage.topic, stage.partitions, stage.replication)
    stage.well()


def _partitions_added(stage: Stage) -> None:
    stage.begin()
    stage.cluster.add_partitions(stage.topic, stage.partitions + ADDED)
    stage.partitions += ADDED
    stage.well()
    stage.rest()


def _quota(stage: Stage) -> None:
    stage.begin()
    stage.cluster.limit_bytes(20_000)
    stage.rest(FAULT_S)
    (sender,) = status()
    if not sender["metrics"]["producer-metrics"]["produce-throttle-time-max"]:
        raise AssertionError("no broker has throttled the sender")
    stage.cluster.limit_bytes(None)
    stage.well()


def _max_bytes(stage: Stage) -> None:
    with stage.fault_of(FAULT_S / 2):
        stage.cluster.configure(stage.topic, "max.message.bytes", "4000")
    stage.cluster.configure(stage.topic, "max.message.bytes", None)
    stage.well()


def _log_append_time(stage: Stage) -> None:
    with stage.fault_of(FAULT_S / 2):
        stage.cluster.configure(stage.topic, "message.timestamp.type", "LogAppendTime")
    stage.cluster.configure(stage.topic, "message.timestamp.type", None)
    stage.well()


def _right_withdrawn(stage: Stage) -> None:
    stage.cluster.allow(stage.topic)
    with stage.fault_of(FAULT_S / 2):
        stage.cluster.allow_write(stage.topic, False)
    stage.cluster.allow_write(stage.topic, True)
    stage.well()


def _versions_capped(stage: Stage) -> None:
    with stage.fault_of(FAULT_S / 2):
        stage.cluster.proxy.cap(_CAPS)
    if not stage.cluster.proxy.lowered:
        raise AssertionError("the sender has not asked the broker for its versions again")
    stage.cluster.proxy.restore()
    stage.well()


TOO_LARGE = frozenset({"MESSAGE_TOO_LARGE"})
REFUSED = frozenset({"TOPIC_AUTHORIZATION_FAILED"})
GONE = frozenset({"UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID", "DELIVERY_TIMEOUT", "OUTCOME_UNKNOWN"})
BOTH = frozenset({"CreateTime", "LogAppendTime"})
GAP_MS = 1e3

ROWS: dict[str, Row] = {
    "undisturbed": Row("no fault: what to compare the other rows with", _undisturbed),
    "leader-killed": Row("kill -9 of the leader of a third of the partitions", _leader_killed, gap_ms=GAP_MS),
    "leader-stopped": Row(f"SIGSTOP of such a leader for {STOPPED_S:g} s", _leader_stopped, gap_ms=GAP_MS),
    "rolling-restart": Row("SIGTERM and restart of one broker after the other", _rolling_restart),
    "port-refused": Row(f"one broker's port is closed for {FAULT_S:g} s", _port_refused, gap_ms=FAULT_S * 1e3),
    "black-hole": Row(f"no byte passes to or from one broker for {FAULT_S:g} s", _black_hole, gap_ms=FAULT_S * 1e3),
    "two-down": Row("kill -9 of two brokers, which leaves one without a quorum", _two_down, gap_ms=GAP_MS),
    "preferred-election": Row("every leader moves to the next replica, three times", _preferred_election),
    "reassigned": Row("every partition moves away from its leader's broker", _reassigned, replication=2),
    "topic-recreated": Row("the topic is deleted, and created again after 2 s", _topic_recreated, GONE, gap_ms=GAP_MS),
    "partitions-added": Row(
        f"the topic gets {ADDED} more partitions", _partitions_added, settings={"metadata_max_age_ms": 2000}
    ),
    "quota": Row(f"a quota of 20 kB/s for each broker for {FAULT_S:g} s", _quota),
    "max-bytes": Row(
        "max.message.bytes falls below the size of every 20th record", _max_bytes, TOO_LARGE, True, sizes={"6000": 20}
    ),
    "log-append-time": Row("the topic changes to LogAppendTime and back", _log_append_time, stamps=BOTH),
    "right-withdrawn": Row("WRITE on the topic is withdrawn, and given back", _right_withdrawn, REFUSED, True),
    "versions-capped": Row("one broker seems to be Kafka 2.1, and then itself again", _versions_capped),
    "old-brokers": Row(
        f"leader-killed on three brokers of Kafka {OLD_VERSION}", _leader_killed, gap_ms=GAP_MS, version=OLD_VERSION
    ),
}
