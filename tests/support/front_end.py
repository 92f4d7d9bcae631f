"""Implements the front-end's side of shm/layout.h a second time, in plain Python, for tests of the sender.

It shares no code with the `producer` package. Every byte that it writes is laid out by hand, so that a test can also
break the protocol.
"""

import os
import socket
import struct
import time

from cyproducer.shm.arena_region import create_arena, map_outcomes
from cyproducer.shm.snapshot import SnapshotReader

from cyproducer.record.builder import RecordBatchBuilder

FREE, OPEN, READY, TAKEN, DONE, REVOKED = range(6)
HEAD, CONT = 1 << 59, 1 << 58
SUBMIT_OPEN, SUBMIT_FULL = 1, 2
RESULT = 1
OUTCOME_HEAD_AT, TEXTS_AT, TEXT_BYTES = 216, 192, 480
RESULT, RELEASE = 1, 2
UNIT = 4096
MASK = (1 << 64) - 1
PAGE = 4096
SETTINGS = {
    "acks": -1,
    "enable_idempotence": True,
    "linger_ms": 0,
    "delivery_timeout_ms": 30_000,
    "batch_size": 65_536,
    "metrics_num_samples": 2,
    "metrics_sample_window_ms": 30_000,
    "retries": 2**31 - 1,
}


def word(state: int, generation: int, count: int, size: int, flags: int = 0) -> int:
    return state << 60 | flags | generation << 34 | count << 18 | size


class PlainFrontEnd:
    """One attached front-end of an Engine in the same process.

    `outcomes()` drains the ring: [(slot, generation, count, base_offset, append_time, error, flags)].
    """

    def __init__(self, engine, slots: int = 256, **settings) -> None:
        self.arena, self.slot_count = create_arena(slots * UNIT)
        ours, senders = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        ours.setblocking(False)
        self.wake_fd = ours.detach()
        try:
            self.attach_id, outcomes, self.sender_wake_fd = engine.attach(
                os.dup(self.arena.fd), self.slot_count, {**SETTINGS, **settings}, senders.detach()
            )
        except BaseException:
            os.close(self.wake_fd)
            self.arena.close()
            raise
        self.snapshot = SnapshotReader(engine.snapshot_fd())
        self.outcomes_region = map_outcomes(outcomes, self.slot_count)
        self.memory = self.arena.memory()
        self.outcome_entries = 1
        while self.outcome_entries < 2 * self.slot_count:
            self.outcome_entries *= 2
        self.ring_entries = 2 * self.outcome_entries
        self.rows_at = PAGE
        self.ring_at = self.rows_at + self.slot_count * 64 + -(self.slot_count * 64) % PAGE
        self.chunks_at = self.ring_at + self.ring_entries * 8 + -(self.ring_entries * 8) % PAGE
        self.outcome_ring_at = PAGE + self.slot_count * 4 + -(self.slot_count * 4) % PAGE
        self.tail = 0
        self.outcome_head = 0
        self.extents_at = self.outcome_ring_at + self.outcome_entries * 64 + -(self.outcome_entries * 64) % PAGE
        self.explained: dict[int, tuple[int, str]] = {}  # by slot: code of the last error, its reason
        self.parts: dict[int, dict[int, tuple[int, int, str]]] = {}  # by slot and record: offset, error, its reason
        self.takes_texts = True
        self.open_seq = 0

    def put(self, form: str, at: int, *values: int) -> None:
        data = struct.pack("=" + form, *values)
        self.memory[at : at + len(data)] = data  # in one step: pack_into stores zeros first, which a sender could see

    def get(self, form: str, at: int) -> int:
        return struct.unpack_from("=" + form, self.memory, at)[0]

    def row(self, slot: int) -> int:
        return self.rows_at + slot * 64

    def write_chunk(
        self,
        slot: int,
        records: bytes,
        count: int,
        *,
        topic: int,
        partition: int,
        base: int,
        highest: int,
        generation: int = 0,
        state: int = READY,
        flags: int = HEAD,
        next_slot: int = 0xFFFFFFFF,
        opened_ns: int | None = None,
    ) -> None:
        """Fill a chunk and its row. The word is stored last, as the commit. `opened_ns` is the present by default."""
        self.open_seq += 1
        at = self.chunks_at + slot * UNIT
        self.memory[at : at + len(records)] = records
        self.put(
            "QIiqqIIQ",
            self.row(slot) + 8,
            self.open_seq,
            topic,
            partition,
            base,
            highest,
            count,
            next_slot,
            time.monotonic_ns() if opened_ns is None else opened_ns,
        )
        self.put("Q", self.row(slot), word(state, generation, count, len(records), flags))

    def submit(self, kind: int, slot: int, generation: int = 0) -> None:
        self.put("Q", self.ring_at + self.tail % self.ring_entries * 8, kind << 60 | generation << 32 | slot)
        self.tail = self.tail + 1 & MASK
        self.put("Q", 64, self.tail)
        self.wake_sender()

    def wake_sender(self) -> None:
        """Wake the sender. A real front-end checks first whether the sender sleeps or treats it as idle."""
        os.eventfd_write(self.sender_wake_fd, 1)

    def send(
        self,
        slot: int,
        records: list[tuple],
        *,
        topic: int,
        partition: int,
        generation: int = 0,
        seal: bool = True,
        opened_ns: int | None = None,
    ) -> None:
        """Submit one chunk with records (timestamp, key, value[, headers]). It stays open unless `seal`."""
        builder = RecordBatchBuilder(65_536)
        for record in records:
            builder.append(*record)
        self.write_chunk(
            slot,
            builder.records(),
            len(records),
            topic=topic,
            partition=partition,
            base=builder.base_timestamp,
            highest=builder.max_timestamp,
            generation=generation,
            state=READY if seal else OPEN,
            opened_ns=opened_ns,
        )
        self.submit(SUBMIT_OPEN, slot, generation)
        if seal:
            self.submit(SUBMIT_FULL, slot, generation)

    def outcomes(self) -> list[tuple]:
        memory = self.outcomes_region.memory()
        (tail,) = struct.unpack_from("=Q", memory, 64)
        found = []
        while self.outcome_head != tail:
            at = self.outcome_ring_at + self.outcome_head % self.outcome_entries * 64
            slot, generation, _, count, base, append_time, error, flags, cause, text, extents = struct.unpack_from(
                "=IIIIqqiIiII", memory, at
            )
            found.append((slot, generation, count, base, append_time, error, flags))
            if flags & RESULT:
                self.explained[slot] = cause, self._text(text)
                self.parts[slot] = self._extents(slot, generation, extents)
            self.outcome_head = self.outcome_head + 1 & MASK
        if self.takes_texts:
            self.put("Q", OUTCOME_HEAD_AT, self.outcome_head)
        return found

    def _extents(self, slot: int, generation: int, number: int) -> dict[int, tuple[int, int, str]]:
        """Return the offset, the error and the broker's text of each record that has a result of its own."""
        memory = self.outcomes_region.memory()
        found: dict[int, tuple[int, int, str]] = {}
        while number:
            at = self.extents_at + (number - 1) * 64
            state, its_slot, its_generation, first, count, error, _, text, base, _, number = struct.unpack_from(
                "=IIIIIiiIqqI", memory, at
            )
            assert (state, its_slot, its_generation) == (1, slot, generation)
            for index in range(count):
                assert first + index not in found, f"two results of record {first + index} in {slot}/{generation}"
                found[first + index] = base + index if base >= 0 else -1, error, self._text(text)
        return found

    def _text(self, number: int) -> str:
        """Return the text of the broker for a failed batch; "" if there is none."""
        if number == 0:
            return ""
        at = TEXTS_AT + (number - 1) * TEXT_BYTES
        memory = self.outcomes_region.memory()
        (size,) = struct.unpack_from("=I", memory, at)
        return bytes(memory[at + 4 : at + 4 + size]).decode()

    def sent_word(self, slot: int) -> int:
        return struct.unpack_from("=I", self.outcomes_region.memory(), PAGE + slot * 4)[0]

    def close(self) -> None:
        self.memory.release()
        self.arena.close()
        self.outcomes_region.close()
        self.snapshot.region.close()
        os.close(self.wake_fd)
        os.close(self.sender_wake_fd)


def topic_number(engine, front_end: PlainFrontEnd, name: str, timeout: float = 10) -> int:
    """Request the topic's metadata and wait for it. Return the topic's number in the snapshot."""
    deadline = time.monotonic() + timeout
    engine.want_topic(front_end.attach_id, name)
    while time.monotonic() < deadline:
        engine.run(20)
        topics = front_end.snapshot.read()[3]
        if name in topics and topics[name][1] == 0 and topics[name][2]:
            return topics[name][0]
    raise TimeoutError(f"no metadata of {name}: {front_end.snapshot.read()}")


def run_until(engine, condition, timeout: float = 10) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the condition did not come true")
        engine.run(10)
