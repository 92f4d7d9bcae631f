"""Tests that arenas with 250,000 chunks cannot cost the sender the square of that number, on a scripted cluster.

The tests assert that other front-ends go on; with quadratic cost they would, but only hours later.
"""

import os
import time

import numpy as np
import pytest
from kfake.scripted_broker import Fault
from support.fault_rig import NOW, Rig
from support.front_end import CONT, HEAD, OPEN, READY, SUBMIT_FULL, PlainFrontEnd, run_until, word
from support.takeover_rig import TakeoverRig

SLOTS = 1 << 18


BROKER = {"partitions": 2, "nodes": 2}


def fill_rows(front_end: PlainFrontEnd, topic: int, words: np.ndarray) -> None:
    """Fill a row of the slot table per word: one record, which leads to the next chunk. The words are written last."""
    following = np.arange(1, len(words) + 1)
    columns = {
        "open_seq": following, "topic": topic, "partition": 0, "base_timestamp": NOW, "max_timestamp": NOW,
        "max_count": 1, "next": following, "opened_ns": time.monotonic_ns(), "word": words,
    }  # fmt: skip
    for field, values in columns.items():
        front_end.column(field)[: len(words)] = values


def test_a_successor_is_not_held_by_chains_that_lead_into_each_other(broker, nursery):
    """Each chunk begins a batch that continues through all that follow; the last one is open."""
    rig = TakeoverRig(broker, nursery)
    hostile = PlainFrontEnd(rig.engine, slots=SLOTS)
    try:
        correct = rig.attach()
        rig.deliver(correct, 1)
        rig.engine.kill()
        words = np.full(SLOTS, word(READY, 0, 1, 70, HEAD | CONT), np.uint64)
        words[-1] = word(OPEN, 0, 1, 70, HEAD)
        fill_rows(hostile, rig.number, words)
        rig.send(correct, 1)
        rig.engine.take_over()
        rig.settle()
        assert rig.errors(correct) == [0, 0]
        assert hostile.attach_id in rig.engine.look()["violators"]
    finally:
        rig.close()
        hostile.close()


@pytest.mark.parametrize("step", [1, -1, 7919], ids=["ever older", "ever younger", "in no order"])
def test_false_ages_do_not_hold_the_sender(broker, step):
    """The batches claim ages from before they came to this sender, behind a batch that hangs at its broker."""
    with Rig(broker, request_timeout_ms=60_000) as rig:
        hostile = rig.front_ends[rig.attach(slots=SLOTS, delivery_timeout_ms=2_000_000_000)]
        correct = rig.attach()
        broker.faults.append(Fault(hang="appended", node=1))
        rig.send(0, 0)
        run_until(rig.engine, lambda: broker.produce_requests == 1)
        fill_rows(hostile, rig.number, np.full(SLOTS, word(READY, 0, 1, 70, HEAD), np.uint64))
        hostile.column("chunk_bytes")[:] = 0
        hostile.column("waited_ms")[:] = np.arange(1, SLOTS + 1) * step % SLOTS
        ring = np.ndarray(hostile.ring_entries, np.uint64, hostile.memory, hostile.ring_at)
        others = np.arange(1, SLOTS, dtype=np.uint64)
        ring[hostile.tail : hostile.tail + len(others)] = np.uint64(SUBMIT_FULL << 60) | others
        hostile.tail += len(others)
        hostile.set_header(submit_tail=hostile.tail)
        os.eventfd_write(hostile.sender_wake_fd, 1)
        run_until(rig.engine, lambda: rig.engine.undelivered() == SLOTS, 60)
        rig.send(correct, 1)
        run_until(rig.engine, lambda: rig.listen() or rig.heard[correct], 60)
        assert rig.errors(correct) == [0]
        assert rig.engine.take_violators() == []
