"""Runs one row from its topic to its figures: the load, the fault, the end of the load, the check of every record."""

import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from chaos.journal import read_all
from support.process import wait_until

from cyproducer.observe.status import status
from faults.check import Times, Verdict, check_dump, check_stamps, compare, read_log
from faults.cluster import FaultyCluster
from faults.load import FRONT_ENDS, Load, Order
from faults.rows import PARTITIONS, ROWS, Row, Stage

BEFORE_S = 4.0
SAMPLE = (0, 11, 23)
BACK_WITHIN_S = 1.0
# What a sender without defects does not write into its log.
_ALARMS = ("broken invariant", "Traceback", "broke the protocol", "could not be handled", "Fatal Python error")


@dataclass
class Outcome:
    """The figures of a row.

    backs   seconds until throughput was back, for each time at which the cluster was well again
    load    the machine's load average of the last minute, with which the times grow
    """

    name: str
    verdict: Verdict
    seconds: float
    gap_ms: float
    backs: list[float]
    p99_ms: float
    p99_before_ms: float
    load: float

    @property
    def back_s(self) -> float:
        """The longest of `backs`."""
        return max(self.backs, default=float("nan"))

    @property
    def clean(self) -> bool:
        """Whether every record has one true outcome, and nothing failed that the row does not expect."""
        return not self.verdict.defects

    def text(self) -> str:
        """Return one line for readers, and one for each defect."""

        def by_name(what: str, names: Counter[str]) -> str:
            listed = ", ".join(f"{name} {count:,}" for name, count in names.most_common())
            return f", {what} {listed}" if names else ""

        counts = self.verdict.counts
        line = (
            f"{self.name:18} acked {counts['acknowledged']:,}{by_name('failed', self.verdict.failed)}"
            f"{by_name('refused', self.verdict.refused)}, unknown {counts['unknown']:,}"
            f" ({counts['unknown, in the log']:,} in the log); gap {self.gap_ms:,.0f} ms; "
            f"back {', '.join(f'{each:.2f}' for each in self.backs)} s; "
            f"p99 {self.p99_ms:,.0f} ms (before {self.p99_before_ms:,.0f}); load {self.load:.0f}; "
            + ("ok" if self.clean else "DEFECTS")
        )
        extra = [f"{name} {counts[name]:,}" for name in ("offset unknown", "gone with the topic") if counts[name]]
        if extra:
            line += f" [{', '.join(extra)}]"
        return "\n".join([line, *(f"    DEFECT {defect}" for defect in self.verdict.defects)])


def play(
    name: str,
    cluster: FaultyCluster,
    directory: Path,
    rate: float,
    progress: Callable[[str], None] = lambda text: None,
    sample: tuple[int, ...] = SAMPLE,
    undisturbed_s: float = BEFORE_S,
) -> Outcome:
    """Run a row on a new topic.

    rate           records a second of each front-end
    directory      keeps the journals
    sample         partitions whose log is read by DumpLogSegments as well
    undisturbed_s  how long the load runs before the fault, and at least after it
    """
    row = ROWS[name]
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    progress(f"{name}: a new topic")
    stage = _stage(name, cluster)
    began = time.monotonic()
    orders = [
        Order(
            cluster.bootstrap_servers,
            stage.topic,
            PARTITIONS,
            str(directory),
            slot,
            rate,
            sizes=row.sizes,
            settings=row.settings,
        )
        for slot in range(FRONT_ENDS)
    ]
    with Load(directory, orders) as load:
        load.await_ready()
        first = time.monotonic_ns()
        stage.rest(undisturbed_s)
        progress(f"{name}: {row.text}")
        try:
            row.play(stage)
            stage.rest(undisturbed_s)
            progress(f"{name}: waiting for every outcome")
            last = time.monotonic_ns()
            load.stop()
        finally:
            cluster.proxy.restore()
    wait_until(lambda: not status(timeout=30), 30, "the end of the sender")
    progress(f"{name}: reading the topic")
    verdict = _check(stage, row, directory, sample)
    times = Times.of(read_all(directory))
    verdict.defects += load.defects + _unexpected(row, verdict)
    if times.gap_ms(first, last) < row.gap_ms or (row.must_fail and not verdict.failed):
        verdict.defects.append("the fault has had no effect")
    cluster.delete_topic(stage.topic)
    return Outcome(
        name,
        verdict,
        time.monotonic() - began,
        times.gap_ms(first, last),
        [times.back_s(well, PARTITIONS) for well in stage.wells],
        times.p99_ms(first, time.monotonic_ns()),
        times.p99_ms(first, stage.began),
        os.getloadavg()[0],
    )


def _stage(name: str, cluster: FaultyCluster) -> Stage:
    """Make the topic of a row."""
    replication = ROWS[name].replication
    topic = f"{name}-{time.time_ns() % 10**9}"
    cluster.create_topic(topic, PARTITIONS, replication)
    cluster.await_in_sync(topic, replication)
    return Stage(cluster, topic, replication)


def _unexpected(row: Row, verdict: Verdict) -> list[str]:
    """Return what failed although the row does not expect it."""
    failed = Counter({**verdict.failed, "OUTCOME_UNKNOWN": verdict.counts["unknown"]})
    found = [
        f"{count} records ended with {error}, which this row does not expect"
        for error, count in failed.items()
        if count and error not in row.may_fail
    ]
    return found + [f"send() refused {count} records with {error}" for error, count in verdict.refused.items()]


def _check(stage: Stage, row: Row, directory: Path, sample: tuple[int, ...]) -> Verdict:
    """Check every record, and the log of some partitions on disk."""
    lives = read_all(directory)
    stage.cluster.await_in_sync(stage.topic, stage.replication)
    log = read_log(stage.cluster.direct, stage.topic)
    stage.logs.append(log)
    verdict = compare(lives, stage.logs)
    used = len(np.unique(log.partition))
    if used != stage.partitions:
        verdict.defects.append(f"only {used} of {stage.partitions} partitions have records")
    leaders = stage.cluster.metadata(stage.cluster.running()[0], stage.topic).leaders
    stamps: set[str] = set()
    for partition in sample:
        batches = stage.cluster.kafka.dump_log(stage.topic, partition, records=True, node=leaders[partition])
        verdict.defects += check_dump(log, partition, batches, recreated=len(stage.logs) > 1)
        stamps |= {batch.timestamp_type for batch in batches}
    if stamps != row.stamps:
        verdict.defects.append(f"the timestamps in the log are of the kinds {sorted(stamps)}")
    verdict.defects += check_stamps(directory, lives, log)
    return verdict


def alarms(runtime: Path) -> list[str]:
    """Return the lines of the senders' logs that a sender without defects does not write."""
    lines = [line for path in sorted(runtime.glob("*.log*")) for line in path.read_text(errors="replace").splitlines()]
    return [line[:300] for line in lines if any(alarm in line for alarm in _ALARMS)]
