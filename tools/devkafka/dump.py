"""Parses the output of Kafka's DumpLogSegments: the content of a partition's log on the broker's disk."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of a batch on disk. ``key`` and ``value`` are the text that the tool prints (None for null).

    The tool decodes the bytes as UTF-8 and prints them without quotes. To compare bytes, use a consumer.
    """

    offset: int
    timestamp: int
    key_size: int
    value_size: int
    sequence: int
    header_keys: tuple[str, ...]
    key: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class LogBatch:
    """One RecordBatch on disk. ``records`` is empty unless the caller requested records, and for a marker (`control`).

    A marker is the end of a transaction.
    """

    base_offset: int
    last_offset: int
    count: int
    base_sequence: int
    last_sequence: int
    producer_id: int
    epoch: int
    leader_epoch: int
    transactional: bool
    control: bool
    timestamp_type: str
    max_timestamp: int
    size: int
    magic: int
    compression: str
    crc: int
    crc_valid: bool
    records: list[LogRecord] = field(default_factory=list)


BATCH = re.compile(
    r"^baseOffset: (-?\d+) lastOffset: (-?\d+) count: (-?\d+) baseSequence: (-?\d+) lastSequence: (-?\d+) "
    r"producerId: (-?\d+) producerEpoch: (-?\d+) partitionLeaderEpoch: (-?\d+) isTransactional: (\w+) "
    r"isControl: (\w+) .*?(CreateTime|LogAppendTime): (-?\d+) size: (\d+) magic: (\d+) "
    r"compresscodec: (\w+) crc: (\d+) isvalid: (\w+)"
)
RECORD = re.compile(
    r"^\| offset: (-?\d+) (?:CreateTime|LogAppendTime): (-?\d+) keySize: (-?\d+) valueSize: (-?\d+)"
    r" sequence: (-?\d+) headerKeys: \[(.*?)\](?: key: (.*?))?(?: payload: (.*))?$",
    re.DOTALL,
)


def parse_dump(text: str) -> list[LogBatch]:
    """Return the batches in the output of ``DumpLogSegments --deep-iteration [--print-data-log]``, in order.

    Raise ValueError if a batch or a record cannot be parsed, or if the tool reports a damaged segment.
    """
    batches: list[LogBatch] = []
    for entry in _entries(text.split("\n")):
        if entry.startswith("baseOffset:"):
            batches.append(_batch(entry))
        elif entry.startswith("| offset:"):
            if not batches[-1].control:
                batches[-1].records.append(_record(entry))
        elif "Found" in entry or "Could not" in entry:
            raise ValueError(f"DumpLogSegments reports a damaged segment: {entry}")
    return batches


def _entries(lines: Iterable[str]) -> Iterator[str]:
    """Join the lines of one entry: a payload may contain line ends."""
    entry: list[str] = []
    for line in lines:
        if entry and not line.startswith(("baseOffset:", "| offset:", "Dumping ", "Log starting offset", "Found ")):
            entry.append(line)
            continue
        if entry:
            yield "\n".join(entry).removesuffix("\n")
        entry = [line]
    if entry:
        yield "\n".join(entry).removesuffix("\n")


def _batch(entry: str) -> LogBatch:
    found = BATCH.match(entry)
    if not found:
        raise ValueError(f"DumpLogSegments printed a batch in an unknown format: {entry}")
    return LogBatch(
        base_offset=int(found[1]),
        last_offset=int(found[2]),
        count=int(found[3]),
        base_sequence=int(found[4]),
        last_sequence=int(found[5]),
        producer_id=int(found[6]),
        epoch=int(found[7]),
        leader_epoch=int(found[8]),
        transactional=found[9] == "true",
        control=found[10] == "true",
        timestamp_type=found[11],
        max_timestamp=int(found[12]),
        size=int(found[13]),
        magic=int(found[14]),
        compression=found[15].lower(),
        crc=int(found[16]),
        crc_valid=found[17] == "true",
    )


def _record(entry: str) -> LogRecord:
    found = RECORD.match(entry)
    if not found:
        raise ValueError(f"DumpLogSegments printed a record in an unknown format: {entry}")
    return LogRecord(
        offset=int(found[1]),
        timestamp=int(found[2]),
        key_size=int(found[3]),
        value_size=int(found[4]),
        sequence=int(found[5]),
        header_keys=tuple(found[6].split(",")) if found[6] else (),
        key=found[7],
        value=found[8],
    )
