"""Tests that linger_ms counts from when a batch was opened, whenever the sender looks; this time is checked."""

import time

import pytest
from support.fault_rig import NOW, Rig

LINGER_S = 20
HOUR_NS = 3600 * 10**9


def send_open(rig: Rig, index: int, partition: int, opened_ns: int) -> int:
    """Write one record in an open batch that claims to be opened at `opened_ns`; return its slot."""
    slot = len(rig.sent[index])
    value = b"%d/%d/0" % (index, slot)
    rig.sent[index].append((partition, [value]))
    rig.front_ends[index].send(
        slot, [(NOW, None, value)], topic=rig.number, partition=partition, seal=False, opened_ns=opened_ns
    )
    return slot


def test_a_batch_that_the_sender_sees_late_has_lingered_already(rig: Rig) -> None:
    rig.attach(linger_ms=LINGER_S * 1000)
    send_open(rig, 0, 0, time.monotonic_ns() - LINGER_S * 10**9 + 10**8)
    rig.finish(LINGER_S / 2)


@pytest.mark.parametrize("lie_ns", [0, HOUR_NS, 2**64 - 1], ids=["zero", "future", "largest"])
def test_an_impossible_opening_time_counts_as_now(rig: Rig, lie_ns: int) -> None:
    rig.attach(linger_ms=300)
    began = time.monotonic_ns()
    send_open(rig, 0, 0, began + lie_ns if lie_ns == HOUR_NS else lie_ns)
    rig.settle()
    assert time.monotonic_ns() - began >= 300 * 10**6
    rig.check()
