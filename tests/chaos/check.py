"""Compares what the front-ends were promised (their journals) with what the topic holds."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from chaos.journal import CLOSED, Life, read_all
from chaos.records import parse
from cyproducer import errors

READ_S = 120.0
EXAMPLES = 5
#: A supervisor and its sender that die this close to one another (s) died in the same instant: the one had not
#: been replaced when the other one fell.
INSTANT_S = 1.0
#: For how long after both fell a front-end may die, or leave without close(), before it has given its arena to a
#: successor; and for how long before it what a dead one left may have been undelivered, while a broker was down.
ORPHANED_S = 15.0


@dataclass
class Log:
    """Every record of a topic: incarnation, number, partition, offset; `strange`: bytes that nobody has sent."""

    incarnation: "np.ndarray"
    number: "np.ndarray"
    partition: "np.ndarray"
    offset: "np.ndarray"
    strange: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, int]], strange: list[str] | None = None) -> "Log":
        table = np.array(rows, "i8").reshape(-1, 4)
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3], strange or [])


def read_log(servers: str, topic: str) -> Log:
    """Reads the whole topic with a client that is not ours. Raises AssertionError if it does not end in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers, "group.id": "chaos", "enable.auto.commit": False,
            "isolation.level": "read_committed", "auto.offset.reset": "error", "fetch.wait.max.ms": 50,
            "check.crcs": True, "log_level": 0,
        }
    )
    rows: list[tuple[int, int, int, int]] = []
    strange: list[str] = []
    try:
        left = {}
        for partition in consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_S)
            if high > low:
                left[partition] = high
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        silent = 0
        while left:
            messages = consumer.consume(10_000, 1.0)
            silent = 0 if messages else silent + 1
            if silent > READ_S:
                raise AssertionError(f"the topic's end was not reached: {left}")
            for message in messages:
                if message.error() is not None:
                    continue
                partition, offset = message.partition(), message.offset()
                named = parse(message.value())
                if named is None:
                    strange.append(f"partition {partition}, offset {offset}: {message.value()!r:.80}")
                else:
                    rows.append((*named, partition, offset))
                if offset + 1 >= left.get(partition, 0):
                    left.pop(partition, None)
    finally:
        consumer.close()
    return Log.of(rows, strange)


@dataclass
class Report:
    """Counts by kind of defect (all must be 0), and a few examples of each."""

    defects: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)

    KINDS = (
        "lost", "duplicated", "reordered", "wrong offset", "foreign", "failed", "failed yet delivered",
        "refused yet delivered", "two outcomes", "no outcome",
    )

    def add(self, kind: str, count: int, example: str) -> None:
        if count:
            self.defects[kind] += count
            self.examples.setdefault(kind, [])
            if len(self.examples[kind]) < EXAMPLES:
                self.examples[kind].append(example)

    def add_records(self, kind: str, life: Life, numbers: "np.ndarray", note: str = "") -> None:
        if len(numbers):
            number = int(numbers[0])
            text = f"incarnation {life.incarnation} (pid {life.pid}, ended {life.ended}): {len(numbers)} records, "
            text += f"first {number}, sent at {life.intended[number] / 1e9:.3f}" + (f" ({note})" if note else "")
            self.add(kind, len(numbers), text)

    @property
    def clean(self) -> bool:
        return not self.defects

    def lines(self) -> list[str]:
        """The report as text."""
        found = [f"{name:24} {count:>10,}" for name, count in sorted(self.counts.items())]
        for kind in (*self.KINDS, *sorted(set(self.defects) - set(self.KINDS))):
            found.append(f"{kind:24} {self.defects[kind]:>10,}")
            found += [f"    {example}" for example in self.examples.get(kind, [])]
        return found


def compare(lives: list[Life], log: Log, falls: list[int] | None = None) -> Report:
    """`falls`: when (monotonic ns) the supervisor and the sender were killed in the same instant."""
    report = Report()
    report.add("foreign", len(log.strange), "; ".join(log.strange[:EXAMPLES]))
    order = np.argsort(log.incarnation, kind="stable")
    names = log.incarnation[order]
    known = {life.incarnation for life in lives}
    for name in np.setdiff1d(np.unique(names), np.fromiter(known, "i8", len(known))):
        report.add("foreign", int((names == name).sum()), f"records of incarnation {name}, which has no journal")
    for life in lives:
        first, last = np.searchsorted(names, [life.incarnation, life.incarnation + 1])
        rows = order[first:last]
        _compare_one(report, life, log.number[rows], log.partition[rows], log.offset[rows], falls or [])
    return report


def _compare_one(
    report: Report, life: Life, number: "np.ndarray", partition: "np.ndarray", offset: "np.ndarray", falls: list[int]
) -> None:
    inside = number < life.count
    report.add("foreign", int((~inside).sum()), f"incarnation {life.incarnation}: numbers it never sent")
    number, partition, offset = number[inside], partition[inside], offset[inside]
    there = np.bincount(number, minlength=life.count) if life.count else np.zeros(0, "i8")
    acked = (life.outcomes > 0) & (life.error == 0)
    failed = (life.outcomes > 0) & (life.error != 0)
    pending = life.accepted & (life.outcomes == 0)
    report.add_records("duplicated", life, np.flatnonzero(there > 1))
    report.add_records("two outcomes", life, np.flatnonzero(life.outcomes > 1))
    report.add_records("lost", life, np.flatnonzero(acked & (there == 0)), "acknowledged")
    orphaned = life.ended != CLOSED and any(
        life.last - ORPHANED_S * 1e9 < fall < life.last + ORPHANED_S * 1e9 for fall in falls
    )
    missing = np.flatnonzero(pending & (there == 0))
    if orphaned:  # its arena was held by the supervisor and the sender alone, and both fell
        report.counts["orphaned, gone"] += len(missing)
    else:
        report.add_records("lost", life, missing, "accepted")
    report.add_records("refused yet delivered", life, np.flatnonzero(life.refused & (there > 0)))
    unknown = failed & (life.error == errors.OUTCOME_UNKNOWN) | failed & (life.error == errors.SENDER_LOST)
    allowed = unknown & _near(life, falls)
    report.counts["unknown, allowed"] += int(allowed.sum())
    report.add_records("failed", life, np.flatnonzero(failed & ~allowed), _codes(life, failed & ~allowed))
    report.add_records("failed yet delivered", life, np.flatnonzero(failed & ~unknown & ~life.some & (there > 0)))
    if life.ended == CLOSED:
        report.add_records("no outcome", life, np.flatnonzero(pending))
    _check_order(report, life, number, partition, offset)
    _check_offsets(report, life, acked, number, partition, offset)
    report.counts["processes"] += 1
    report.counts["accepted"] += int(life.accepted.sum())
    report.counts["acknowledged"] += int(acked.sum())
    report.counts["in the log"] += len(number)
    report.counts["refused"] += int(life.refused.sum())
    report.counts["in doubt, in the log"] += int((~life.accepted & ~life.refused & (there > 0)).sum())


def _near(life: Life, falls: list[int]) -> "np.ndarray":
    """Records that were on the way when the supervisor and the sender fell together."""
    found = np.zeros(life.count, bool)
    for fall in falls:
        found |= (life.intended < fall + INSTANT_S * 1e9) & (life.resolved >= fall)
    return found


def _codes(life: Life, chosen: "np.ndarray") -> str:
    return ", ".join(f"{errors.name_for_code(int(code))}" for code in np.unique(life.error[chosen]))


def _check_order(
    report: Report, life: Life, number: "np.ndarray", partition: "np.ndarray", offset: "np.ndarray"
) -> None:
    by_place = np.lexsort((offset, partition))
    number, partition = number[by_place], partition[by_place]
    same = partition[1:] == partition[:-1]
    behind = np.flatnonzero(same & (number[1:] < number[:-1]))
    if len(behind):
        place = int(partition[behind[0]])
        report.add_records("reordered", life, number[behind + 1], f"partition {place}, behind {number[behind[0]]}")


def _check_offsets(
    report: Report, life: Life, acked: "np.ndarray", number: "np.ndarray", partition: "np.ndarray",
    offset: "np.ndarray",
) -> None:
    """The acknowledged partition and offset are those of one of the record's places in the log."""
    said = acked & (life.offset >= 0)
    report.counts["offset unknown"] += int((acked & (life.offset < 0)).sum())
    right = np.zeros(life.count, bool)
    right[number[(life.partition[number] == partition) & (life.offset[number] == offset)]] = True
    there = np.zeros(life.count, bool)
    there[number] = True
    report.add_records("wrong offset", life, np.flatnonzero(said & there & ~right))


def check(directory: Path, servers: str, topic: str, falls: list[int] | None = None) -> tuple[Report, list[Life]]:
    """Reads the journals and the topic and compares them."""
    lives = read_all(directory)
    return compare(lives, read_log(servers, topic), falls), lives


def percentile(values: Any, share: float) -> float:
    """Of a list of numbers; nan if it is empty."""
    return float(np.percentile(values, share * 100)) if len(values) else float("nan")
