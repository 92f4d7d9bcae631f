"""Tests one round of some faults of a single broker. All faults, more rounds: `python -m tests.unanswered --help`."""

import random
from collections.abc import Iterator

import pytest

from unanswered.cluster import ProxiedCluster, proxied_cluster
from unanswered.rounds import LOSES_STATE, PARTITIONS, play

SEED = 11


@pytest.fixture(scope="module")
def proxied(register_cluster) -> Iterator[ProxiedCluster]:
    with proxied_cluster(1) as cluster, register_cluster(cluster.kafka):
        yield cluster


@pytest.mark.parametrize(
    "scenario", ["sigterm", "with-sender", "expired", pytest.param("deleted", marks=pytest.mark.long)]
)
def test_unanswered_batches_are_in_the_log_once(proxied, runtime_dir, scenario):
    topic = proxied.kafka.create_topic(f"unanswered-{scenario}", PARTITIONS)
    result = play(proxied, scenario, topic, random.Random(SEED))
    print(dict(result.counts))
    assert not result.defects, "\n".join(result.defects)
    assert result.counts["of them in the log"] > PARTITIONS
    if scenario in LOSES_STATE:
        assert result.counts["unknown"] == result.counts["of them in the log"]
    else:
        assert result.counts["unknown"] == 0
