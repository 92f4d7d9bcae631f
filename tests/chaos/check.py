"""Compares the results that the front-ends got (their journals) with the contents of the topic."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from chaos.falls import Fall
from chaos.journal import CLOSED, EXIT, Life, read_all
from chaos.records import parse
from cyproducer import errors

READ_S = 120.0
#: (pid, monotonic ns) of each SIGKILL.
Kills = Iterable[tuple[int, int]]
#: {error code: records that the sender's ledger says have failed with it} for the errors that records may have.
Excused = Mapping[int, int]
EXAMPLES = 5


@dataclass
class Log:
    """Every record of a topic: incarnation, number, partition, offset; `strange`: bytes that no front-end has sent."""

    incarnation: "np.ndarray"
    number: "np.ndarray"
    partition: "np.ndarray"
    offset: "np.ndarray"
    strange: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, rows: list[tuple[int, int, int, int]], strange: list[str] | None = None) -> "Log":
        table = np.array(rows, "i8").reshape(-1, 4)
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3], strange or [])


def read_log(servers: str, topic: str, settings: Mapping[str, Any] | None = None) -> Log:
    """Read the whole topic with a foreign client. Raise AssertionError if that does not end in time.

    settings   more settings of confluent-kafka, for example those of a secure listener
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "chaos",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "check.crcs": True,
            "log_level": 0,
            **(settings or {}),
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
        "lost",
        "duplicated",
        "reordered",
        "wrong offset",
        "foreign",
        "failed",
        "failed yet delivered",
        "refused yet delivered",
        "two outcomes",
        "no outcome",
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
        """Return the report as text."""
        found = [f"{name:24} {count:>10,}" for name, count in sorted(self.counts.items())]
        for kind in (*self.KINDS, *sorted(set(self.defects) - set(self.KINDS))):
            found.append(f"{kind:24} {self.defects[kind]:>10,}")
            found += [f"    {example}" for example in self.examples.get(kind, [])]
        return found


class _Falls:
    """What the falls of supervisor and sender excuse for one front-end; `killed`: when it was killed, or None."""

    def __init__(self, life: Life, falls: Sequence[Fall], killed: int | None) -> None:
        self.life = life
        self.all = falls
        self.mine = [fall for fall in falls if life.began <= fall.end]
        # an orderly exit hands unsent batches to a successor if it can
        self.exits = life.ended == EXIT and killed is None
        self.died = 0 if self.exits else life.end or life.last if killed is None else killed

    def may_be_missing(self) -> "np.ndarray":
        """Return the records that only the dead processes held: their front-end died or did not reattach."""
        found = np.zeros(self.life.count, bool)
        if self.life.ended == CLOSED:
            return found
        for fall in self.mine:
            held = self._mask(fall.held)
            # A living front-end gets the outcome of batches in flight, but perhaps has not journaled it yet.
            told = self._mask(fall.at_begin) | held
            found |= held | told & (self.life.bulk | (self.exits and fall.begin > self.life.end))
            if self.died >= fall.begin and not self._safe_between(fall, self.died):
                found[:] = True
        return found

    def _mask(self, records: dict[int, set[int]]) -> "np.ndarray":
        found = np.zeros(self.life.count, bool)
        found[[number for number in records.get(self.life.incarnation, ()) if number < self.life.count]] = True
        return found

    def _safe_between(self, fall: Fall, until: int) -> bool:
        """Return whether a sender that lived after `fall` had taken everything over."""
        return any(
            fall.begin < when <= until
            and founder != fall.founder
            and not any(other.founder == founder and other.begin < when for other in self.all)
            for when, founder in self.life.safe
        )

    def may_be_unknown(self) -> "np.ndarray":
        """Return the records in flight when both processes died."""
        found = np.zeros(self.life.count, bool)
        for fall in self.mine:
            found |= (self.life.intended <= fall.end) & (self.life.resolved >= fall.begin)
        return found


class Hidden(NamedTuple):
    """What the ledger of failures cannot tell: the errors since its file was written, when its processes were killed.

    kills      when that was (monotonic ns)
    per_kill   how many errors of one front-end each kill may hide
    """

    kills: Sequence[int]
    per_kill: float

    def most_after(self, sent: float) -> float:
        """Return how many errors of records that were sent then or later may be hidden."""
        return self.per_kill * sum(when >= sent for when in self.kills)


def compare(
    lives: list[Life],
    log: Log,
    falls: Sequence[Fall] = (),
    killed: Kills = (),
    excused: Excused | None = None,
    hidden: Hidden | None = None,
) -> Report:
    """Compare journals and log. `falls`: deaths of supervisor and sender together; `killed`: front-ends.

    An excused error of a killed front-end is in no journal, but in the ledger. So its missing records are not lost if
    the ledger has as many such errors beyond those in the journals, or if later kills may have `hidden` them.
    """
    report = Report()
    codes = dict(excused or {})
    untold = sum(codes.values()) - sum(int(np.isin(life.error, list(codes)).sum()) for life in lives)
    of_killed = Report()
    first_missing = math.inf
    deaths: dict[int, list[int]] = {}
    for pid, when in killed:
        deaths.setdefault(pid, []).append(when)
    report.add("foreign", len(log.strange), "; ".join(log.strange[:EXAMPLES]))
    order = np.argsort(log.incarnation, kind="stable")
    names = log.incarnation[order]
    known = {life.incarnation for life in lives}
    for name in np.setdiff1d(np.unique(names), np.fromiter(known, "i8", len(known))):
        report.add("foreign", int((names == name).sum()), f"records of incarnation {name}, which has no journal")
    for life in lives:
        first, last = np.searchsorted(names, [life.incarnation, life.incarnation + 1])
        rows = order[first:last]
        of_mine = [when for when in deaths.get(life.pid, ()) if when > life.began]
        life_falls = _Falls(life, falls, min(of_mine, default=None))
        missing = _compare_one(report, life, log.number[rows], log.partition[rows], log.offset[rows], life_falls, codes)
        (of_killed if of_mine else report).add_records("lost", life, missing, "accepted")
        if of_mine and len(missing):
            first_missing = min(first_missing, life.intended[missing].min())
    report.counts["errors in no journal"] = max(0, untold)
    report.counts["missing of killed processes"] = of_killed.defects["lost"]
    uncounted = hidden.most_after(first_missing) if hidden is not None else 0
    if of_killed.defects["lost"] > max(0, untold) + uncounted:
        report.defects += of_killed.defects
        report.examples.setdefault("lost", []).extend(of_killed.examples["lost"])
    return report


def _compare_one(
    report: Report,
    life: Life,
    number: "np.ndarray",
    partition: "np.ndarray",
    offset: "np.ndarray",
    falls: _Falls,
    codes: Excused,
) -> "np.ndarray":
    """Add all defects and counts of one front-end, and return its accepted records that are missing without excuse."""
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
    missing = pending & (there == 0)
    excused = missing & falls.may_be_missing()
    report.counts["gone with its holders"] += int(excused.sum())
    report.add_records("refused yet delivered", life, np.flatnonzero(life.refused & (there > 0)))
    unknown = failed & (life.error == errors.OUTCOME_UNKNOWN) | failed & (life.error == errors.SENDER_LOST)
    for code in np.unique(life.error[failed]):
        report.counts[f"error {errors.name_for_code(int(code))}"] += int((failed & (life.error == code)).sum())
    allowed = failed & (life.error == errors.SENDER_LOST) & falls.may_be_unknown()
    report.counts["unknown, both died"] += int(allowed.sum())
    allowed |= failed & np.isin(life.error, list(codes))
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
    return np.flatnonzero(missing & ~excused)


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
    report: Report,
    life: Life,
    acked: "np.ndarray",
    number: "np.ndarray",
    partition: "np.ndarray",
    offset: "np.ndarray",
) -> None:
    """Check that the acknowledged partition and offset are one of the record's places in the log."""
    said = acked & (life.offset >= 0)
    report.counts["offset unknown"] += int((acked & (life.offset < 0)).sum())
    right = np.zeros(life.count, bool)
    right[number[(life.partition[number] == partition) & (life.offset[number] == offset)]] = True
    there = np.zeros(life.count, bool)
    there[number] = True
    report.add_records("wrong offset", life, np.flatnonzero(said & there & ~right))


def check(
    directory: Path,
    servers: str,
    topic: str,
    falls: Sequence[Fall] = (),
    killed: Kills = (),
    excused: Excused | None = None,
    hidden: Hidden | None = None,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Report, list[Life]]:
    """Read the journals and the topic (with settings as `read_log`), and compare them."""
    lives = read_all(directory)
    return compare(lives, read_log(servers, topic, settings), falls, killed, excused, hidden), lives


def percentile(values: Any, share: float) -> float:
    """Return the percentile of a list of numbers; nan if it is empty."""
    return float(np.percentile(values, share * 100)) if len(values) else float("nan")
