"""Implements the front-end's side of shm/layout.h a second time, in plain Python, for tests of the sender.

It shares no code with the `producer` package. It writes field by field, so that a test can also break the protocol.
"""

import os
import socket
import sys
import time
from typing import Any

from probe.native import RecordBatchBuilder

from cyproducer.shm.native import SnapshotReader, create_arena, map_outcomes
from support import layout

FREE, OPEN, READY, TAKEN, DONE, REVOKED = range(6)
HEAD, CONT = 1 << 59, 1 << 58
SUBMIT_OPEN, SUBMIT_FULL = 1, 2
RESULT, RELEASE = 1, 2
UNIT = 4096
MASK = (1 << 64) - 1
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
        self.ring_entries = self.header("ring_entries")
        self.rows_at = self.header("slots_offset")
        self.ring_at = self.header("ring_offset")
        self.chunks_at = self.header("chunks_offset")
        self.tail = 0
        self.outcome_head = 0
        self.explained: dict[int, tuple[int, str]] = {}  # by slot: code of the last error, its reason
        self.parts: dict[int, dict[int, tuple[int, int, str]]] = {}  # by slot and record: offset, error, its reason
        self.takes_texts = True
        self.open_seq = 0

    def header(self, field: str) -> int:
        """Return a field of the arena's header."""
        return layout.read(self.memory, "cyp_arena_header", 0, field)

    def set_header(self, **values: int) -> None:
        layout.write(self.memory, "cyp_arena_header", 0, **values)

    def row(self, slot: int) -> int:
        """Return where the row of a slot begins."""
        return self.rows_at + slot * layout.size("cyp_slot_row")

    def row_field(self, slot: int, field: str) -> int:
        return layout.read(self.memory, "cyp_slot_row", self.row(slot), field)

    def set_row(self, slot: int, **values: int) -> None:
        layout.write(self.memory, "cyp_slot_row", self.row(slot), **values)

    def column(self, field: str) -> Any:
        """Return a field of all rows, as a NumPy array over the memory."""
        return layout.column(self.memory, "cyp_slot_row", self.rows_at, self.slot_count, field)

    def outcomes_header(self, field: str) -> int:
        """Return a field of the header of the outcomes region."""
        return layout.read(self.outcomes_region.memory(), "cyp_outcomes_header", 0, field)

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
        self.set_row(
            slot,
            open_seq=self.open_seq,
            topic=topic,
            partition=partition,
            base_timestamp=base,
            max_timestamp=highest,
            max_count=count,
            next=next_slot,
            opened_ns=time.monotonic_ns() if opened_ns is None else opened_ns,
        )
        self.set_row(slot, word=word(state, generation, count, len(records), flags))

    def submit(self, kind: int, slot: int, generation: int = 0) -> None:
        self.push(kind << 60 | generation << 32 | slot)
        self.wake_sender()

    def push(self, entry: int) -> None:
        """Add an entry to the submission ring, and publish it."""
        at = self.ring_at + self.tail % self.ring_entries * 8
        self.memory[at : at + 8] = entry.to_bytes(8, sys.byteorder)
        self.tail = self.tail + 1 & MASK
        self.set_header(submit_tail=self.tail)

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
        tail = self.outcomes_header("outcome_tail")
        ring, entries = self.outcomes_header("ring_offset"), self.outcomes_header("ring_entries")
        found = []
        while self.outcome_head != tail:
            at = ring + self.outcome_head % entries * layout.size("cyp_outcome")
            outcome = layout.read_all(memory, "cyp_outcome", at)
            slot, generation, flags = outcome["slot"], outcome["generation"], outcome["flags"]
            result = outcome["count"], outcome["base_offset"], outcome["append_time"], outcome["error"]
            found.append((slot, generation, *result, flags))
            if flags & RESULT:
                self.explained[slot] = outcome["cause"], self._text(outcome["text"])
                self.parts[slot] = self._extents(slot, generation, outcome["extents"])
            self.outcome_head = self.outcome_head + 1 & MASK
        if self.takes_texts:
            self.set_header(outcome_head=self.outcome_head)
        return found

    def _extents(self, slot: int, generation: int, number: int) -> dict[int, tuple[int, int, str]]:
        """Return the offset, the error and the broker's text of each record that has a result of its own."""
        memory = self.outcomes_region.memory()
        found: dict[int, tuple[int, int, str]] = {}
        while number:
            at = self.outcomes_header("extents_offset") + (number - 1) * layout.size("cyp_extent")
            extent = layout.read_all(memory, "cyp_extent", at)
            assert (extent["state"], extent["slot"], extent["generation"]) == (1, slot, generation)
            base, number = extent["base_offset"], extent["next"]
            for index in range(extent["count"]):
                record = extent["first"] + index
                assert record not in found, f"two results of record {record} in {slot}/{generation}"
                found[record] = base + index if base >= 0 else -1, extent["error"], self._text(extent["text"])
        return found

    def _text(self, number: int) -> str:
        """Return the text of the broker for a failed batch; "" if there is none."""
        if number == 0:
            return ""
        at = layout.offset("cyp_outcomes_header", "texts") + (number - 1) * layout.size("cyp_text")
        memory = self.outcomes_region.memory()
        size = layout.read(memory, "cyp_text", at, "bytes")
        at += layout.offset("cyp_text", "text")
        return bytes(memory[at : at + size]).decode()

    def sent_word(self, slot: int) -> int:
        words = self.outcomes_region.memory()[self.outcomes_header("sent_offset") :].cast("I")
        return words[slot]

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
