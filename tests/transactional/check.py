"""Compares the journals of transactional front-ends with what a reader of committed records finds."""

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

READ_S = 120.0
EXAMPLES = 5


@dataclass
class Outcome:
    """What a journal says of one transaction."""

    count: int
    commit_called: bool = False
    result: str = ""


@dataclass
class Report:
    """What was done, for example transactions by their result, and what is wrong."""

    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    defects: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"{name:40} {count:>8,}" for name, count in sorted(self.counts.items())]
        return "\n".join(
            [*lines, *(f"DEFECT {text}" for text in self.defects[:EXAMPLES]), f"{len(self.defects)} defects"]
        )


def read_journal(path: Path) -> dict[int, Outcome]:
    """Return {transaction: outcome}. A last line that is being written is left out."""
    found: dict[int, Outcome] = {}
    for line in path.read_text().rpartition("\n")[0].splitlines():
        kind, number, *rest = line.split()
        if kind == "begin":
            found[int(number)] = Outcome(int(rest[0]))
        elif kind == "commit":
            found[int(number)].commit_called = True
        else:
            found[int(number)].result = kind
    return found


def read_committed(servers: str, topic: str) -> list[tuple[int, int, bytes]]:
    """Return (partition, offset, value) of all committed records.

    Raise AssertionError if the end is not reached in time: then a transaction is still open.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "transactional",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    rows: list[tuple[int, int, bytes]] = []
    try:
        partitions = consumer.list_topics(topic, timeout=READ_S).topics[topic].partitions
        ends = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=READ_S)[1] for p in partitions}
        consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in partitions])
        left, silent = {p for p, end in ends.items() if end}, 0.0
        while left:
            messages = consumer.consume(10_000, 0.5)
            silent = 0.0 if messages else silent + 0.5
            if silent > READ_S:
                raise AssertionError(f"readers of committed records are held up in the partitions {sorted(left)}")
            for message in messages:
                if message.error() is None:
                    rows.append((message.partition(), message.offset(), message.value()))
                else:  # the end of the partition
                    (position,) = consumer.position([TopicPartition(topic, message.partition())])
                    if position.offset >= ends[message.partition()]:
                        left.discard(message.partition())
    finally:
        consumer.close()
    return rows


def check(journals: Path, servers: str, topic: str) -> Report:
    """Check that each transaction is visible once and whole, or not at all, as its journal says, and in order."""
    report = Report()
    seen: dict[tuple[int, int], list[int]] = defaultdict(list)
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for partition, offset, value in read_committed(servers, topic):
        slot, number, index, _ = map(int, value.split(b"/"))
        seen[slot, number].append(index)
        if (number, index) <= last.get((slot, partition), (-1, -1)):
            report.defects.append(f"{value!r} at {partition}/{offset} is out of order or twice")
        last[slot, partition] = (number, index)
    for path in sorted(journals.glob("*.journal")):
        slot = int(path.stem)
        for number, outcome in read_journal(path).items():
            found = sorted(seen.pop((slot, number), []))
            _judge(report, f"transaction {slot}/{number}", outcome, found)
    report.defects += [f"transaction {slot}/{number} is in no journal" for slot, number in seen]
    return report


def _judge(report: Report, name: str, outcome: Outcome, found: list[int]) -> None:
    whole = found == list(range(outcome.count))
    if found and not whole:
        report.defects.append(f"{name}: {len(found)} of {outcome.count} records are visible ({outcome})")
    if outcome.result == "committed":
        report.counts["committed"] += 1
        if not whole:
            report.defects.append(f"{name} was committed, and {len(found)} of {outcome.count} records are visible")
    elif outcome.result == "aborted" or not outcome.commit_called:
        report.counts[outcome.result or "ended before its commit"] += 1
        if found:
            report.defects.append(f"{name} was not committed, and {len(found)} records are visible ({outcome})")
    else:
        how = "fenced" if outcome.result == "unknown" else "killed"
        report.counts[f"{how} in its commit, {'visible' if whole else 'not visible'}"] += 1
