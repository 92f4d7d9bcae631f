"""Tests some faults of three brokers under load; `python -m tests.faults --help` has all of them, and their figures."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.cluster import FaultyCluster, faulty_cluster
from faults.load import FRONT_ENDS
from faults.run import alarms, play

RATE = 50


@pytest.fixture(scope="module")
def faulty(register_cluster, tmp_path_factory) -> Iterator[FaultyCluster]:
    with faulty_cluster(directory=tmp_path_factory.mktemp("faults")) as cluster, register_cluster(cluster.kafka):
        yield cluster
        cluster.kafka.stop(grace=0)


@pytest.mark.parametrize(
    ("name", "failed"),
    [
        ("leader-killed", None),
        pytest.param("black-hole", None, marks=pytest.mark.long),
        pytest.param("max-bytes", "MESSAGE_TOO_LARGE", marks=pytest.mark.long),
        ("right-withdrawn", "TOPIC_AUTHORIZATION_FAILED"),
        pytest.param("topic-recreated", None, marks=pytest.mark.long),
    ],
)
def test_every_record_has_one_true_outcome(faulty, runtime_dir: Path, tmp_path: Path, name, failed):
    # A broker that starts takes the processors of a small machine from the load for a second or two.
    outcome = play(name, faulty, tmp_path / name, RATE, sample=(0,), undisturbed_s=3.0)
    print(outcome.text())
    assert outcome.clean, outcome.text()
    assert alarms(runtime_dir) == []
    assert outcome.verdict.counts["acknowledged"] > FRONT_ENDS * RATE
    assert math.isfinite(outcome.back_s), outcome.text()
    if failed:
        assert set(outcome.verdict.failed) == {failed}
