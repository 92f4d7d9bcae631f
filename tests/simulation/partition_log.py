"""Models the log of one partition and the state of its idempotent producers, by the rules of Kafka's brokers.

The rules are those of ProducerAppendInfo, ProducerStateEntry and ProducerStateManager. test_partition_log.py compares
them with a real Kafka.
"""

import gzip
import struct
from collections import deque
from dataclasses import dataclass, field

from cyproducer.record.crc32c import crc32c
from cyproducer.record.twin import decode_records

CORRUPT_MESSAGE, OUT_OF_ORDER, INVALID_PRODUCER_EPOCH = 2, 45, 47
REMEMBERED = 5  # batches of a producer: ProducerStateEntry.NUM_BATCHES_TO_RETAIN
SEQUENCES = 2**31
GZIP = 1
TRANSACTIONAL = 0x10
HEADER = struct.Struct(">qiibIhiqqqhii")


@dataclass(slots=True)
class LogBatch:
    """One batch of a log. `marker`: it ends the transaction of its producer, and "commit" or "abort" says how."""

    producer_id: int
    epoch: int
    first: int
    count: int
    offset: int
    values: list[bytes]
    transactional: bool = False
    marker: str = ""

    @property
    def last(self) -> int:
        return (self.first + self.count - 1) % SEQUENCES

    @property
    def end(self) -> int:
        return self.offset + self.count


@dataclass(slots=True)
class ProducerState:
    """What a broker remembers of a producer. `last`: -1 if the log has no batch of this epoch."""

    epoch: int
    last: int
    in_transaction: bool = False
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class PartitionLog:
    """The log of one partition. `high_watermark`: the offset below which every replica has the records.

    `complaints` gets what a correct producer never sends.
    """

    def __init__(self, complaints: list[str]) -> None:
        self.batches: list[LogBatch] = []
        self.producers: dict[int, ProducerState] = {}
        self.high_watermark = 0
        self._complaints = complaints

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else 0

    def parse(self, records: bytes) -> LogBatch | None:
        """Return the batch of a request; None if it is corrupt."""
        header = HEADER.unpack_from(records)
        (_, length, _, magic, crc, attributes, last_delta, _, _, producer_id, epoch, first, count) = header
        if (
            magic != 2
            or attributes & ~TRANSACTIONAL not in (0, GZIP)
            or length != len(records) - 12
            or last_delta != count - 1
        ):
            self._complaints.append(f"batch header {header} of {len(records)} bytes")
            return None
        if crc32c(records[21:]) != crc:
            self._complaints.append("wrong CRC")
            return None
        body = gzip.decompress(records[61:]) if attributes & GZIP else records[61:]
        values = [record.value or b"" for record in decode_records(body, count)[1]]
        return LogBatch(producer_id, epoch, first, count, -1, values, bool(attributes & TRANSACTIONAL))

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
            known = self.producers.get(batch.producer_id)
            if known is not None:
                if batch.epoch < known.epoch:
                    return INVALID_PRODUCER_EPOCH, -1
                expected = (known.last + 1) % SEQUENCES if batch.epoch == known.epoch else 0
                if batch.first != expected:
                    return OUT_OF_ORDER, -1
        batch.offset = self.end
        self.batches.append(batch)
        self._remember(batch)
        return 0, batch.offset

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
        marker = LogBatch(producer_id, epoch, -1, 1, self.end, [], True, how)
        self.batches.append(marker)
        self._remember(marker)
        self.commit()

    def commit(self) -> None:
        """Let all replicas have everything."""
        self.high_watermark = self.end

    def restart(self, remembered: int) -> None:
        """Keep only some batches of each producer: a snapshot has the last one, and what came after it is replayed."""
        for known in self.producers.values():
            while len(known.recent) > remembered:
                known.recent.popleft()

    def truncate(self, remembered: int) -> None:
        """Drop what only the old leader had, as on a new leader, which remembers so many batches of a producer."""
        kept = [batch for batch in self.batches if batch.end <= self.high_watermark]
        if len(kept) != len(self.batches):
            self.batches = kept
            self.producers = {}
            for batch in kept:
                self._remember(batch)
        self.restart(remembered)

    def values(self) -> list[tuple[int, bytes]]:
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
