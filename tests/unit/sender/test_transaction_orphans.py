"""Tests that the row of a front-end that has ended is freed, whatever the brokers answer."""

from collections import deque

import pytest
from transaction_rig import NODES, Rig

from cyproducer.protocol.versions import ApiKey

COORDINATOR_NOT_AVAILABLE = 15
LIMIT_S, LONG_S = 60, 300


class _Always(deque):
    """An answer without an end."""

    def popleft(self) -> int:
        return int(self[0])


def all_brokers_down(rig: Rig) -> None:
    rig.brokers.down.update(NODES)
    for node in NODES:
        rig.close(node)


def no_coordinator(rig: Rig) -> None:
    rig.coordinators.codes[ApiKey.FIND_COORDINATOR] = _Always([COORDINATOR_NOT_AVAILABLE])
    rig.close(2)


def test_an_open_transaction_is_left_to_the_broker_after_its_time():
    rig = Rig(v2=True)
    producer = rig.producer()
    producer.do("init")
    producer.send()
    assert producer.row.phase == "open"
    all_brokers_down(rig)
    producer.end()
    rig.run(LIMIT_S / 2)
    assert rig.table.rows()
    rig.run(LONG_S)
    assert rig.table.rows() == []


@pytest.mark.parametrize("break_cluster", [all_brokers_down, no_coordinator])
def test_a_producer_that_ended_before_it_had_a_producer_id_leaves_nothing(break_cluster):
    rig = Rig(v2=True)
    break_cluster(rig)
    producer = rig.producer()
    producer.ask("init")
    rig.run(5)
    assert rig.table.rows()
    producer.end()
    rig.run(LONG_S)
    assert rig.table.rows() == []
