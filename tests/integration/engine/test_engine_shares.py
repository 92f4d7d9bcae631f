"""Tests the queue shares that the sender publishes: front-ends place records without a key by them."""

import time

import pytest
from kfake.scripted_broker import Fault
from support import layout
from support.engine_host import RemoteEngine
from support.fault_rig import Rig
from support.front_end import run_until

AVOID, FULL = 1, 255
LITTLE = 100
"""Less than the share of a partition with one batch among others with none."""


#: Two nodes: node 1 leads the partitions 0 and 2, node 2 the others.
BROKER = {"partitions": 4, "nodes": 2}


def shares(rig):
    """Return the shares of the partitions of the only topic."""
    with rig.front_ends[0].snapshot.region.memory() as memory:
        at = layout.read(memory, "cyp_snapshot_header", 0, "leaders_offset")
        return list(memory[at : at + len(rig.broker.partitions)])


def sticky(rig):
    """Return the sticky partition of the only topic."""
    with rig.front_ends[0].snapshot.region.memory() as memory:
        return layout.sticky(memory, rig.number)


def hang_node_2(rig, even=True):
    """Let the broker take a batch for each of its partitions and not answer. Return the time before these batches."""
    for partition in range(4):
        rig.send(0, partition)
    rig.settle()
    if even:  # while the connections were made, the partitions were avoided
        wait_until_even(rig)
        rig.settle()
    rig.broker.faults.append(Fault(hang="lost", node=2))
    began = time.monotonic()
    for partition in (1, 3):
        rig.send(0, partition)
    return began


def send_until(rig, condition):
    """Send batches until the condition holds: shares are published in a loop iteration."""
    run_until(rig.engine, lambda: rig.send(0, 0) or rig.listen() or condition(), 30)


def wait_until_even(rig):
    send_until(rig, lambda: min(shares(rig)) > LITTLE)


@pytest.mark.parametrize(("settings", "least"), [({}, 0.05), ({"partitioner_availability_timeout_ms": 3000}, 2.5)])
def test_partitions_of_a_broker_that_does_not_answer_are_avoided_until_it_does(broker, settings, least):
    with Rig(broker, request_timeout_ms=60_000, **settings) as rig:
        rig.attach(slots=2048, delivery_timeout_ms=60_000)
        began = hang_node_2(rig)

        send_until(rig, lambda: shares(rig)[1] == shares(rig)[3] == AVOID)
        assert time.monotonic() - began > least
        assert min(shares(rig)[0::2]) > AVOID
        broker.drop_connections()
        rig.settle(30)

        wait_until_even(rig)
        rig.finish(30)


def test_the_share_of_a_partition_falls_with_its_queue(broker):
    with Rig(broker, request_timeout_ms=60_000, partitioner_availability_timeout_ms=60_000) as rig:
        rig.attach(slots=2048, delivery_timeout_ms=60_000)
        hang_node_2(rig)
        for _ in range(20):
            rig.send(0, 1)
        for _ in range(5):
            rig.send(0, 3)

        def ordered():
            longest, long, none = shares(rig)[1], shares(rig)[3], shares(rig)[2]
            return AVOID < longest < long < none == FULL

        send_until(rig, ordered)
        broker.drop_connections()
        rig.finish(30)


def test_a_successor_publishes_the_shares_anew(broker, nursery):
    """The former sender died while a broker did not answer."""
    with Rig(broker, lambda settings: RemoteEngine(settings, nursery), request_timeout_ms=60_000) as rig:
        rig.attach(slots=2048, delivery_timeout_ms=60_000)
        hang_node_2(rig)

        send_until(rig, lambda: shares(rig)[1] == AVOID)
        rig.engine.kill()
        broker.drop_connections()
        rig.engine.take_over()

        wait_until_even(rig)
        rig.settle(30)


@pytest.mark.parametrize(("batch_size", "changes"), [(1, True), (1 << 20, False)])
def test_the_batch_size_of_its_records_changes_the_sticky_partition(broker, batch_size, changes):
    """After 50 ms the next batch changes it anyway, so only batches that are sent within 40 ms count.

    The next one is drawn, in a quarter of all cases it is the same as before.
    """
    with Rig(broker) as rig:
        rig.begin(slots=4096, batch_size=batch_size)
        found: list[bool] = []
        ending = time.monotonic() + 60
        while len(found) < 20:
            assert time.monotonic() < ending, "the machine is too slow: nearly every batch took more than 40 ms"
            before = sticky(rig)
            while sticky(rig) == before:
                began = time.monotonic()
                rig.deliver(0, before)
            new = sticky(rig)
            rig.deliver(0, new)
            if time.monotonic() - began < 0.04:
                found.append(sticky(rig) != new)
        # The times are those of this thread, so the clock of the engine may say 50 ms once in a while.
        assert (found.count(True) > len(found) // 4) == changes
        rig.check()


def test_partitions_of_the_rack_are_preferred_while_one_of_them_answers(broker):
    def place(answer):
        for node, rack in zip(answer["brokers"], ("far", "near"), strict=True):
            node["rack"] = rack

    broker.lies = place
    rack = {"partitioner_rack_aware": True, "client_rack": "near"}
    with Rig(broker, request_timeout_ms=60_000, **rack) as rig:
        rig.attach(slots=2048, delivery_timeout_ms=60_000)

        def preferred():
            return shares(rig)[0] == shares(rig)[2] == AVOID

        send_until(rig, preferred)
        assert min(shares(rig)[1::2]) > AVOID
        assert sticky(rig) in (1, 3)
        hang_node_2(rig, even=False)

        def falls_back():
            avoided = shares(rig)[1] == shares(rig)[3] == AVOID and min(shares(rig)[0::2]) > AVOID
            return avoided and sticky(rig) in (0, 2)

        send_until(rig, falls_back)
        broker.drop_connections()
        rig.settle(30)
        send_until(rig, preferred)
        rig.finish(30)
