"""Tests what an engine counts for its front-ends when a broker answers with errors, by a script."""

import pytest
from kfake.scripted_broker import Fault

from cyproducer import metric_table
from cyproducer.codes import NOT_ENOUGH_REPLICAS
from cyproducer.metric_table import CLIENT, NODE, TOPIC


def found(rig):
    """Return the groups of the engine."""
    return metric_table.groups(rig.engine._front_ends.counts())


def test_retries_count_records_and_attempts(rig, broker):
    """Two refusals: the three records of the batch are sent three times, and wait twice."""
    rig.attach()
    broker.faults.extend([Fault(code=NOT_ENOUGH_REPLICAS), Fault(code=NOT_ENOUGH_REPLICAS)])
    rig.send(0, 0, records=3)
    rig.finish()
    groups = found(rig)
    for group in ("producer-metrics", "producer-topic-metrics.t"):
        assert groups[group]["record-send-total"] == 9
        assert groups[group]["record-retry-total"] == 6
        assert groups[group]["record-error-total"] == 0
    assert groups["producer-metrics"]["records-per-request-avg"] == 3


def test_a_lost_connection_counts_as_a_retry(rig, broker):
    rig.attach()
    broker.faults.append(Fault(close="before"))
    rig.deliver(0, 0, records=2)
    groups = found(rig)
    assert groups["producer-metrics"]["record-send-total"] == 4
    assert groups["producer-metrics"]["record-retry-total"] == 2
    assert groups["producer-metrics"]["connection-close-total"] >= 1
    assert groups["producer-metrics"]["requests-in-flight"] == 0


def test_a_throttle_time_counts(rig, broker):
    rig.begin()
    before = rig.engine._front_ends.counts()["network"][metric_table.NETWORK.index("throttle")]
    broker.faults.append(Fault(throttle_ms=70))
    rig.deliver(0, 0)
    reading = rig.engine._front_ends.counts()["network"][metric_table.NETWORK.index("throttle")]
    assert reading[0] - before[0] == 70_000_000
    groups = found(rig)
    assert groups["producer-metrics"]["produce-throttle-time-max"] == 70
    assert groups["producer-metrics"]["produce-throttle-time-avg"] == pytest.approx(70 / reading[1])


def test_the_tables_match_the_sensors(rig):
    counts = rig.engine._front_ends.counts()
    assert len(counts["client"]) == len(CLIENT)
    assert len(counts["own"]) == len(metric_table.OWN)
    assert len(counts["network"]) == len(metric_table.NETWORK)
    rig.begin()
    counts = rig.engine._front_ends.counts()
    assert {len(row) for row in counts["nodes"].values()} == {len(NODE)}
    assert {len(row) for row in counts["topics"].values()} == {len(TOPIC)}
