"""Compares what the front-ends of a row journaled with the topic, which a foreign consumer and Kafka's tool read."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from chaos import journal
from chaos.journal import Life
from chaos.records import parse
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from devkafka.node import LogBatch
from support.consumer import ReadRecords

from cyproducer import errors
from faults.cluster import PROBE
from faults.load import STAMP

READ_S = 120.0
EXAMPLES = 5
_UNCERTAIN = (errors.OUTCOME_UNKNOWN, errors.SENDER_LOST, errors.REQUEST_TOO_LARGE)
_BROKER_CANNOT_TELL = -1
_WINDOW_NS = 500_000_000
_FULL = 0.9


@dataclass
class Log:
    """One topic as it was read, as columns. `until`: the topic was deleted at this time (ns), after it was read."""

    incarnation: "np.ndarray"
    number: "np.ndarray"
    partition: "np.ndarray"
    offset: "np.ndarray"
    timestamp: "np.ndarray"
    strange: list[str]
    read: ReadRecords
    began: int = 0
    until: int = 0


def read_log(servers: str, topic: str, began: int = 0) -> Log:
    """Read what the topic holds when the call begins, with a foreign client, with whatever is uncommitted."""
    read = _read(servers, topic)
    rows, strange = [], []
    columns = zip(read.value, read.partition, read.offset, read.timestamp, strict=True)
    for value, partition, offset, timestamp in columns:
        named = parse(value)
        if value == PROBE:
            continue
        if named is None:
            strange.append(f"partition {partition}, offset {offset}: {value!r:.80}")
        else:
            rows.append((*named, partition, offset, timestamp))
    table = np.array(rows, "i8").reshape(-1, 5)
    return Log(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4], strange, read, began)


def _read(servers: str, topic: str) -> ReadRecords:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "faults",
            "enable.auto.commit": False,
            "isolation.level": "read_uncommitted",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "check.crcs": True,
            "log_level": 0,
        }
    )
    read = ReadRecords()
    deadline = time.monotonic() + READ_S
    try:
        left = {}
        for partition in consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions:
            low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=READ_S)
            if high > low:
                left[partition] = high
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in left])
        while left:
            if time.monotonic() > deadline:
                raise AssertionError(f"topic {topic}: {len(read)} records, and not yet the ends {left}")
            for message in consumer.consume(10_000, 0.2):
                if message.error() is None:
                    read.partition.append(message.partition())
                    read.offset.append(message.offset())
                    read.value.append(message.value())
                    read.timestamp.append(message.timestamp()[1])
                    if message.offset() + 1 >= left.get(message.partition(), 0):
                        left.pop(message.partition(), None)
    finally:
        consumer.close()
    return read


@dataclass
class Verdict:
    """Counts of records, and the defects that were found."""

    counts: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)

    def add(self, what: str, life: Life, numbers: "np.ndarray") -> None:
        """Report records of a front-end, if there are any."""
        if len(numbers):
            some = ", ".join(str(int(number)) for number in numbers[:EXAMPLES])
            self.defects.append(f"{what}: {len(numbers)} records of front-end {life.incarnation}: {some}")


def compare(lives: list[Life], logs: Sequence[Log]) -> Verdict:
    """Compare the journals with the topic, and with the topics of its name that were deleted before."""
    verdict = Verdict()
    for log in logs:
        verdict.defects += [f"bytes that no front-end has sent: {text}" for text in log.strange[:EXAMPLES]]
        verdict.counts["in the log"] += len(log.number)
    for life in lives:
        _compare_one(verdict, life, logs)
    return verdict


def _compare_one(verdict: Verdict, life: Life, logs: Sequence[Log]) -> None:
    there = np.zeros(life.count, "i8")
    right = np.zeros(life.count, bool)
    gone = np.zeros(life.count, bool)
    for log in logs:
        mine = log.incarnation == life.incarnation
        number, partition, offset = log.number[mine], log.partition[mine], log.offset[mine]
        if len(number) and number.max() >= life.count:
            verdict.defects.append(f"front-end {life.incarnation}: numbers that it never sent")
            continue
        there += np.bincount(number, minlength=life.count)
        right[number[(life.partition[number] == partition) & (life.offset[number] == offset)]] = True
        gone |= (life.resolved > log.began) & (life.resolved <= log.until)
        _check_order(verdict, life, number, partition, offset)
    acked = (life.outcomes > 0) & (life.error == 0)
    failed = (life.outcomes > 0) & (life.error != 0)
    unknown = failed & np.isin(life.error, _UNCERTAIN)
    certain = failed & ~unknown & (life.error != _BROKER_CANNOT_TELL)
    verdict.add("without outcome", life, np.flatnonzero(life.accepted & (life.outcomes == 0)))
    verdict.add("with two outcomes", life, np.flatnonzero(life.outcomes > 1))
    verdict.add("twice in the log", life, np.flatnonzero(there > 1))
    verdict.add("acknowledged and not in the log", life, np.flatnonzero(acked & (there == 0) & ~gone))
    verdict.add(
        "not at the acknowledged offset", life, np.flatnonzero(acked & (life.offset >= 0) & (there > 0) & ~right)
    )
    verdict.add("failed and in the log", life, np.flatnonzero(certain & (there > 0)))
    verdict.add("refused by send() and in the log", life, np.flatnonzero(life.refused & (there > 0)))
    verdict.counts["sent"] += int(life.accepted.sum())
    verdict.counts["acknowledged"] += int(acked.sum())
    verdict.counts["offset unknown"] += int((acked & (life.offset < 0)).sum())
    verdict.counts["gone with the topic"] += int((acked & (there == 0) & gone).sum())
    verdict.counts["unknown"] += int(unknown.sum())
    verdict.counts["unknown, in the log"] += int((unknown & (there > 0)).sum())
    for code in life.error[failed & ~unknown]:
        verdict.failed[_name(int(code))] += 1
    for code in life.refusals:
        verdict.refused[_name(code)] += 1


def _name(code: int) -> str:
    return errors.name_for_code(code)


def _check_order(
    verdict: Verdict, life: Life, number: "np.ndarray", partition: "np.ndarray", offset: "np.ndarray"
) -> None:
    order = np.lexsort((offset, partition))
    number, partition = number[order], partition[order]
    behind = (partition[1:] == partition[:-1]) & (number[1:] <= number[:-1])
    verdict.add("out of order", life, number[1:][behind])


def check_dump(log: Log, partition: int, batches: Sequence[LogBatch], recreated: bool = False) -> list[str]:
    """Compare a partition on the disk of its leader, read by DumpLogSegments, with what the consumer read.

    The sequences of a producer begin at 0, but for a topic that was created again: there they go on.
    """
    where = f"DumpLogSegments, partition {partition}"
    found = [f"{where}: the CRC of the batch at {b.base_offset} is wrong" for b in batches if not b.crc_valid]
    last: dict[int, LogBatch] = {}
    for batch in batches:
        before = last.get(batch.producer_id)
        last[batch.producer_id] = batch
        if batch.producer_id < 0 or (before is None and recreated):
            continue
        expected = before.last_sequence + 1 if before is not None and before.epoch == batch.epoch else 0
        if batch.base_sequence != expected:
            found.append(f"{where}: sequence {batch.base_sequence} instead of {expected} at {batch.base_offset}")
    on_disk = [(record.offset, (record.value or "").encode()) for batch in batches for record in batch.records]
    columns = zip(log.read.partition, log.read.offset, log.read.value, strict=True)
    read = [(offset, value or b"") for at, offset, value in columns if at == partition]
    if on_disk != read:
        found.append(f"{where}: {len(on_disk)} records, not the {len(read)} that the consumer read")
    return found


def check_stamps(directory: Path, lives: list[Life], log: Log) -> list[str]:
    """Compare the timestamps of acknowledgements with those in the log.

    A broker that recognizes a duplicate answers with the newest timestamp of the batch, as if it were the time of the
    append. As in Java's producer, all records of the batch have it then.
    """
    found = []
    in_log = np.unique(log.partition << 44 | log.timestamp)
    for life, path in zip(lives, sorted(directory.glob(f"*{journal.SUFFIX}")), strict=True):
        lines = np.fromfile(path, journal.DTYPE)
        lines = lines[lines["kind"] == STAMP]
        said = np.full(life.count, -1, "i8")
        said[lines["number"]] = lines["value"]
        mine = log.incarnation == life.incarnation
        number, stamp, partition = log.number[mine], log.timestamp[mine], log.partition[mine]
        differs = (said[number] >= 0) & (said[number] != stamp)
        differs &= (said[number] < stamp) | ~np.isin(partition << 44 | said[number], in_log)
        if differs.any():
            found.append(f"front-end {life.incarnation}: {differs.sum()} timestamps differ, {number[differs][0]} first")
    return found


# ------------------------------------------------------------------ figures


@dataclass
class Times:
    """All acknowledgements: when the record was sent and acknowledged (monotonic ns), its partition. And all sends."""

    sent: "np.ndarray"
    acked: "np.ndarray"
    partition: "np.ndarray"
    all_sent: "np.ndarray"

    @classmethod
    def of(cls, lives: list[Life]) -> "Times":
        chosen = [(life, (life.outcomes > 0) & (life.error == 0)) for life in lives]

        def joined(column: Callable[[Life], "np.ndarray"]) -> "np.ndarray":
            return np.concatenate([column(life)[mask] for life, mask in chosen])

        return cls(
            joined(lambda life: life.intended),
            joined(lambda life: life.resolved),
            joined(lambda life: life.partition),
            np.sort(np.concatenate([life.intended for life in lives])),
        )

    def p99_ms(self, first: int, last: int) -> float:
        """Return the 99th percentile of the latency of records sent in this span; nan if there are none.

        Records that had no acknowledgement at the end of the span are left out.
        """
        chosen = (self.sent >= first) & (self.acked < last)
        taken = self.acked[chosen] - self.sent[chosen]
        return float(np.percentile(taken, 99)) / 1e6 if len(taken) else float("nan")

    def gap_ms(self, first: int, last: int) -> float:
        """Return the longest time in this span in which one of the partitions had no acknowledgement."""
        longest = 0
        for partition in np.unique(self.partition):
            when = np.sort(self.acked[(self.partition == partition) & (self.acked >= first) & (self.acked <= last)])
            longest = max(longest, int(np.diff(when).max(initial=0)))
        return longest / 1e6

    def back_s(self, well: int, partitions: int) -> float:
        """Return the time from `well` until throughput is back; inf if it does not come back.

        It is back when each of the first `partitions` partitions has had an acknowledgement, and a window of 0.5 s has
        begun in which at least 90% as many records are acknowledged as are sent.
        """
        later = self.acked >= well
        if len(np.intersect1d(self.partition[later], np.arange(partitions))) < partitions:
            return float("inf")
        each = max(int(self.acked[later & (self.partition == p)].min()) for p in range(partitions))
        when = np.sort(self.acked)
        last = int(when[-1]) - _WINDOW_NS
        for start in range(well, max(last, well) + 1, 10_000_000):
            inside = np.searchsorted(when, [start, start + _WINDOW_NS])
            asked = np.searchsorted(self.all_sent, [start, start + _WINDOW_NS])
            if inside[1] - inside[0] >= _FULL * (asked[1] - asked[0]):
                return (max(each, start) - well) / 1e9
        return float("inf")
