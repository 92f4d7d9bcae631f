"""Keeps the log of one partition and the state of its producers, by the rules of Kafka's brokers.

The rules are those of ProducerAppendInfo, ProducerStateEntry and ProducerStateManager. test_partition_log.py compares
them with a real Kafka.
"""

import gzip
import struct
from collections import deque
from dataclasses import dataclass, field

from probe.native import crc32c
from support.record_twin import Record, decode_records

from cyproducer.codes import INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER

REMEMBERED = 5  # batches of a producer: ProducerStateEntry.NUM_BATCHES_TO_RETAIN
SEQUENCES = 2**31
GZIP = 1
TRANSACTIONAL = 0x10
HEADER = struct.Struct(">qiibIhiqqqhii")
ATTRIBUTES_AT = 21  # from here on, the checksum covers a batch


class ChecksumError(ValueError):
    """A batch has a wrong CRC."""


@dataclass(slots=True)
class LogBatch:
    """One batch of a log. `encoded`: its records as they came; `compressed`: with gzip.

    `marker`: it ends the transaction of its producer, and "commit" or "abort" says how.
    """

    producer_id: int
    epoch: int
    first: int
    count: int
    offset: int = -1
    encoded: bytes = b""
    compressed: bool = False
    transactional: bool = False
    marker: str = ""
    _records: list[Record] | None = None

    @property
    def last(self) -> int:
        return (self.first + self.count - 1) % SEQUENCES

    @property
    def end(self) -> int:
        return self.offset + self.count

    @property
    def records(self) -> list[Record]:
        if self._records is None:
            body = gzip.decompress(self.encoded) if self.compressed else self.encoded
            self._records = [] if self.marker else decode_records(body, self.count)[1]
        return self._records

    @property
    def values(self) -> list[bytes]:
        return [record.value for record in self.records]


def parse(batch: bytes) -> LogBatch:
    """Return the batch of a request. Raise ChecksumError, or ValueError for another reason to call it corrupt."""
    header = HEADER.unpack_from(batch)
    (_, length, _, magic, crc, attributes, last_delta, _, _, producer_id, epoch, first, count) = header
    if (
        magic != 2
        or attributes & ~TRANSACTIONAL not in (0, GZIP)
        or length != len(batch) - 12
        or last_delta != count - 1
    ):
        raise ValueError(f"batch header {header} of {len(batch)} bytes")
    if crc32c(batch[ATTRIBUTES_AT:]) != crc:
        raise ChecksumError("wrong CRC")
    return LogBatch(
        producer_id,
        epoch,
        first,
        count,
        encoded=batch[HEADER.size :],
        compressed=bool(attributes & GZIP),
        transactional=bool(attributes & TRANSACTIONAL),
    )


def wrong_timestamp(encoded: bytes, batch: LogBatch) -> list[str]:
    """Return a complaint if the largest timestamp in the header is not that of the records. (Kafka checks few.)"""
    base, highest = HEADER.unpack_from(encoded)[7:9]
    latest = base + max(record.timestamp_ms for record in batch.records)
    return [] if highest == latest else [f"the header has the largest timestamp {highest}, the records have {latest}"]


@dataclass(slots=True)
class ProducerState:
    """What a broker remembers of a producer. `last`: -1 if the log has no batch of this epoch."""

    epoch: int
    last: int
    in_transaction: bool = False
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # first, last, offset


class PartitionLog:
    """The log of one partition. `high_watermark`: the offset below which every replica has the records.

    `complaints` gets what a correct producer never sends. `forgot`: the state of some producers was lost, so an unknown
    one may begin with any sequence.
    """

    def __init__(self, complaints: list[str], forgot: bool = False) -> None:
        self.batches: list[LogBatch] = []
        self.producers: dict[int, ProducerState] = {}
        self.high_watermark = 0
        self.forgot = forgot
        self._complaints = complaints

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def duplicate_of(self, batch: LogBatch) -> int:
        """Return the offset of the same batch if the producer's state has it; else -1."""
        known = self.producers.get(batch.producer_id)
        if known is None or known.epoch != batch.epoch:
            return -1
        for first, last, offset in known.recent:
            if (first, last) == (batch.first, batch.last):
                return offset
        return -1

    def append(self, batch: LogBatch) -> tuple[int, int]:
        """Append the batch unless it is a duplicate or its sequence is refused. Return (error code, offset)."""
        if batch.producer_id >= 0:
            offset = self.duplicate_of(batch)
            if offset >= 0:
                return 0, offset
            code = self._check(batch)
            if code:
                return code, -1
        batch.offset = self.end
        self.batches.append(batch)
        self._remember(batch)
        return 0, batch.offset

    def _check(self, batch: LogBatch) -> int:
        """Return the error code for an epoch and a sequence that are not the next ones."""
        known = self.producers.get(batch.producer_id)
        if known is None:
            if batch.first and not self.forgot:
                self._complaints.append(f"producer {batch.producer_id} begins with sequence {batch.first}")
            return 0
        if batch.epoch < known.epoch:
            return INVALID_PRODUCER_EPOCH
        expected = (known.last + 1) % SEQUENCES if batch.epoch == known.epoch else 0
        return OUT_OF_ORDER_SEQUENCE_NUMBER if batch.first != expected else 0

    def _remember(self, batch: LogBatch) -> None:
        if batch.producer_id < 0:
            return
        known = self.producers.get(batch.producer_id)
        if known is None or known.epoch != batch.epoch:
            known = self.producers[batch.producer_id] = ProducerState(batch.epoch, -1)
        known.in_transaction = batch.transactional and not batch.marker
        if batch.marker:
            return
        known.last = batch.last
        known.recent.append((batch.first, batch.last, batch.offset))

    def is_in_transaction(self, batch: LogBatch) -> bool:
        """Return whether the log has a part of the batch's transaction, so that the coordinator is not asked."""
        known = self.producers.get(batch.producer_id)
        return known is not None and known.epoch == batch.epoch and known.in_transaction

    def end_transaction(self, producer_id: int, epoch: int, how: str) -> None:
        """Append a marker: "commit" or "abort". All replicas have it, so that the transaction can be complete."""
        known = self.producers.get(producer_id)
        if known is not None and epoch < known.epoch:
            self._complaints.append(f"a marker of producer {producer_id} with epoch {epoch} after {known.epoch}")
            return
        marker = LogBatch(producer_id, epoch, -1, 1, self.end, transactional=True, marker=how)
        self.batches.append(marker)
        self._remember(marker)
        self.commit()

    def commit(self) -> None:
        """Let all replicas have everything."""
        self.high_watermark = self.end

    def forget(self) -> None:
        """Drop the state of all producers, as when it expires."""
        self.producers = {}
        self.forgot = True

    def restart(self, remembered: int = 1) -> None:
        """Keep only some batches of each producer: a snapshot has the last one, and what came after it is replayed."""
        for known in self.producers.values():
            while len(known.recent) > remembered:
                known.recent.popleft()

    def truncate(self, remembered: int) -> None:
        """Drop what only the old leader had, as on a new leader, which remembers so many batches of a producer."""
        kept = [batch for batch in self.batches if batch.end <= self.high_watermark]
        if len(kept) != len(self.batches):
            self.batches = kept
            self.forget()
            for batch in kept:
                self._remember(batch)
        self.restart(remembered)

    @property
    def values(self) -> list[bytes]:
        return [value for _, value in self.entries()]

    def entries(self) -> list[tuple[int, bytes]]:
        """Return (offset, value) of every record."""
        return [(batch.offset + index, value) for batch in self.batches for index, value in enumerate(batch.values)]

    def committed(self) -> list[bytes]:
        """Return what a reader of committed records gets, once every transaction of the log has its end."""
        open_ones: dict[int, list[bytes]] = {}
        found = []
        for batch in self.batches:
            if batch.marker:
                values = open_ones.pop(batch.producer_id, [])
                found += values if batch.marker == "commit" else []
            elif batch.transactional:
                open_ones.setdefault(batch.producer_id, []).extend(batch.values)
            else:
                found += batch.values
        return found


class Partition(PartitionLog):
    """One partition: its log, its leader, and whether it has too few replicas for acks=all."""

    def __init__(self, index: int, leader: int, leader_epoch: int, complaints: list[str], forgot: bool) -> None:
        super().__init__(complaints, forgot)
        self.index = index
        self.leader = leader
        self.leader_epoch = leader_epoch
        self.short_of_replicas = False
