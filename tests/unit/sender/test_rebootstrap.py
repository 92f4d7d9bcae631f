"""Tests when the bootstrap servers are asked again because there is no metadata for too long."""

import pytest

from cyproducer.config.settings import Settings
from cyproducer.sender.cluster.metadata import TRIGGER_MIN_MS, Rebootstrap
from cyproducer.sender.system.tasks import NOTHING_DUE_MS

NOW_MS = 1_000_000


def make(**settings) -> Rebootstrap:
    return Rebootstrap(Settings.parse(bootstrap_servers="one:9092", **settings).sender_settings())


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
