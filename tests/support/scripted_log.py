"""Keeps the log of a scripted broker's partition, with the state of idempotent producers by Kafka's rules.

The rules are those of ProducerStateManager: per partition and producer id the epoch, the next sequence and the last
five batches. A duplicate of those is answered with its offset, a gap with OUT_OF_ORDER_SEQUENCE_NUMBER, an old epoch
with INVALID_PRODUCER_EPOCH.
"""

import gzip
import struct
from collections import deque
from dataclasses import dataclass, field

from cyproducer.record.crc32c import crc32c
from cyproducer.record.twin import Record, decode_records

CORRUPT_MESSAGE, OUT_OF_ORDER, INVALID_EPOCH = 2, 45, 47
HEADER = struct.Struct(">qiibIhiqqqhii")
GZIP = 1  # in a batch's attributes
TRANSACTIONAL = 0x10
REMEMBERED = 5  # batches of a producer and partition
SEQUENCES = 2**31
WRONG_CRC = "CRC"


@dataclass(slots=True)
class Producer:
    """The state of a producer id in a partition."""

    epoch: int
    next_sequence: int = 0
    recent: deque = field(default_factory=lambda: deque(maxlen=REMEMBERED))  # (first sequence, count, offset)


@dataclass(slots=True)
class Partition:
    """The log of one partition, its leader and its producers."""

    leader: int = 1
    leader_epoch: int = 1
    values: list[bytes] = field(default_factory=list)
    batches: list[tuple[int, int, int, int, int]] = field(default_factory=list)  # pid, epoch, sequence, count, offset
    producers: dict[int, Producer] = field(default_factory=dict)
    end: int = 0
    forgot: bool = False

    def has(self, records: bytes) -> bool:
        """Return whether the batch is one that the log has and remembers."""
        *_, pid, epoch, sequence, count = HEADER.unpack_from(records)
        known = self.producers.get(pid)
        if known is None or known.epoch != epoch:
            return False
        return any((first, length) == (sequence, count) for first, length, _ in known.recent)

    def append(self, records: bytes, keep_values: bool, complaints: list[str]) -> tuple[int, int]:
        """Append a batch. Return (error, offset). Add what a correct producer never sends to `complaints`."""
        header = HEADER.unpack_from(records)
        (_, length, _, magic, crc, attributes, last_delta, _, _, pid, epoch, sequence, count) = header
        if (
            magic != 2
            or attributes & ~TRANSACTIONAL not in (0, GZIP)
            or length != len(records) - 12
            or last_delta != count - 1
        ):
            complaints.append(f"batch header {header} of {len(records)} bytes")
            return CORRUPT_MESSAGE, -1
        if crc32c(records[21:]) != crc:
            complaints.append(WRONG_CRC)
            return CORRUPT_MESSAGE, -1
        if pid >= 0:
            code, offset = self._check_sequence(pid, epoch, sequence, count, complaints)
            if code or offset >= 0:
                return code, offset
        offset = self.end
        self.end += count
        if keep_values:
            self.values.extend(record.value for record in decoded(records))
        self.batches.append((pid, epoch, sequence, count, offset))
        return 0, offset

    def _check_sequence(
        self, pid: int, epoch: int, sequence: int, count: int, complaints: list[str]
    ) -> tuple[int, int]:
        """Return (error, offset of a duplicate). (0, -1): append it; the producer's state is updated already."""
        known = self.producers.get(pid)
        if known is None:
            known = self.producers[pid] = Producer(epoch, sequence)
            if sequence and not self.forgot:
                complaints.append(f"producer {pid} begins with sequence {sequence}")
        elif epoch < known.epoch:
            return INVALID_EPOCH, -1
        elif epoch > known.epoch:
            if sequence != 0:
                return OUT_OF_ORDER, -1
            known = self.producers[pid] = Producer(epoch)
        for first, length, offset in known.recent:
            if (first, length) == (sequence, count):
                return 0, offset
        if sequence != known.next_sequence:
            return OUT_OF_ORDER, -1
        known.next_sequence = (sequence + count) % SEQUENCES
        known.recent.append((sequence, count, self.end))
        return 0, -1


def decoded(batch: bytes) -> list[Record]:
    """Return the records of a batch."""
    header = HEADER.unpack_from(batch)
    records = gzip.decompress(batch[61:]) if header[5] == GZIP else batch[61:]
    return decode_records(records, header[-1])[1]
