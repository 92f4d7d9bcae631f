"""Tests sensors against Kafka's rules for samples and rates, which are written down here a second time."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given
from probe.native import SAMPLES_MAX, SensorProbe

from cyproducer import metric_table
from cyproducer.metric_table import Metric

MS = 1_000_000


class Sample:
    def __init__(self, now):
        self.reset(now)

    def reset(self, now):
        self.start = self.last = now
        self.values = []


class SampledStat:
    """Kafka's SampledStat, with the rates and spreads that Kafka derives from it. Times are in ms."""

    def __init__(self, window, samples):
        self.window, self.wanted = window, samples
        self.samples = []
        self.current = 0
        self.total = 0

    def record(self, value, now):
        if not self.samples:
            self.samples.append(Sample(now))
        sample = self.samples[self.current]
        if now - sample.start >= self.window:
            self.current = (self.current + 1) % (self.wanted + 1)
            if self.current >= len(self.samples):
                self.samples.append(Sample(now))
            sample = self.samples[self.current]
            sample.reset(now)
        sample.values.append(value)
        sample.last = now
        self.total += value

    def measure(self, now):
        """Return (sum, events, max, ms to divide by), as if the stale samples were purged now."""
        kept = [s for s in self.samples if s.values and now - s.last < self.wanted * self.window]
        values = [value for sample in kept for value in sample.values]
        elapsed = now - min([sample.start for sample in kept], default=now)
        full = elapsed // self.window
        if full < self.wanted - 1:
            elapsed += (self.wanted - 1 - full) * self.window
        return sum(values), len(values), max(values, default=0), max(elapsed, 1)


@given(
    st.integers(1, 50),
    st.integers(1, SAMPLES_MAX),
    st.lists(st.tuples(st.integers(0, 120), st.integers(0, 1000), st.booleans()), max_size=60),
)
def test_a_sensor_keeps_the_rules_of_kafka(window, samples, steps):
    probe, kafka = SensorProbe(window * MS, samples), SampledStat(window, samples)
    now, count = 1000, 0
    for wait, value, reads in steps:
        now += wait
        if not reads:
            probe.record(value, now * MS)
            kafka.record(value, now)
            count += 1
        expected = kafka.measure(now)
        found = probe.read(now * MS)
        assert found[:2] == (kafka.total, count)
        assert found[2:] == (*expected[:3], expected[3] * MS)


def test_a_rate_assumes_that_the_windows_before_were_empty():
    """One event in the first second of two windows of 30 s: Kafka divides by 31 s, not by one."""
    probe = SensorProbe(30_000 * MS, 2)
    probe.record(310, 5_000 * MS)
    reading = probe.read(6_000 * MS)
    assert _measure(reading, "rate") == 10
    assert _measure(reading, "event-rate") == pytest.approx(1 / 31)


def test_old_events_leave_the_windows_and_stay_in_the_total():
    probe = SensorProbe(1_000 * MS, 2)
    probe.record(10, 1_000 * MS)
    assert _measure(probe.read(2_999 * MS), "avg") == 10
    reading = probe.read(3_000 * MS)
    assert math.isnan(_measure(reading, "avg")) and math.isnan(_measure(reading, "max"))
    assert _measure(reading, "rate") == 0
    assert (_measure(reading, "total"), _measure(reading, "count")) == (10, 1)


def test_sensors_are_added_as_if_they_were_one():
    probes = SensorProbe(1_000 * MS, 2), SensorProbe(1_000 * MS, 2)
    for probe, values in zip(probes, ([1, 2, 3], [10]), strict=True):
        for value in values:
            probe.record(value, 5_000 * MS)
    together = metric_table.merged([probe.read(5_500 * MS) for probe in probes])
    assert (_measure(together, "total"), _measure(together, "avg"), _measure(together, "max")) == (16, 4, 10)
    assert _measure(together, "rate") == pytest.approx(16 / 1.5)


def _measure(reading, how):
    return metric_table.value(Metric("", "errors", "", how, "", ""), {"errors": reading})
