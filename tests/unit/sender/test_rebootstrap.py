"""Tests when the bootstrap servers are asked again: without reachable brokers, and without metadata for too long."""

import pytest

from cyproducer.config.settings import Settings
from cyproducer.sender.brokers.broker import NOTHING_DUE_MS, Link
from cyproducer.sender.brokers.rebootstrap import TRIGGER_MIN_MS, Rebootstrap

NOW_MS = 1_000_000


def make(**settings) -> Rebootstrap:
    return Rebootstrap(Settings.parse(bootstrap_servers="one:9092", **settings).sender_settings())


def links(*unreachable: bool) -> list[Link]:
    found = [Link(number, number, "host", 9092) for number in range(len(unreachable))]
    for link, value in zip(found, unreachable, strict=True):
        link.unreachable = value
    return found


@pytest.mark.parametrize("strategy", ["rebootstrap", "none"])
@pytest.mark.parametrize(("unreachable", "needed"), [((True, True), True), ((True, False), False), ((), False)])
def test_it_is_needed_when_no_known_broker_is_reachable(strategy, unreachable, needed):
    choice = make(metadata_recovery_strategy=strategy)
    assert choice.is_needed(links(*unreachable)) == (needed and strategy == "rebootstrap")


@pytest.mark.parametrize(
    ("settings", "after_ms"),
    [
        ({}, 300_000),
        ({"metadata_recovery_rebootstrap_trigger_ms": 5000}, 5000),
        ({"metadata_recovery_rebootstrap_trigger_ms": 0}, TRIGGER_MIN_MS),
        ({"metadata_recovery_strategy": "none"}, NOTHING_DUE_MS),
    ],
)
def test_the_time_without_metadata(settings, after_ms):
    choice = make(**settings)
    assert choice.due_ms(NOW_MS) == NOTHING_DUE_MS, "no metadata is needed"
    choice.begin(NOW_MS)
    assert choice.due_ms(NOW_MS) == after_ms
    choice.begin(NOW_MS + 70)  # a further attempt
    if after_ms != NOTHING_DUE_MS:
        assert choice.due_ms(NOW_MS + 100) == after_ms - 100
    choice.end()
    assert choice.due_ms(NOW_MS + 10 * after_ms) == NOTHING_DUE_MS
