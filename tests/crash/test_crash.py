"""Tests a kill, and a stop, at every crash point that a run against a real Kafka reaches.

Run by `tox -e crash`, or `tox -e debug`; the others have no debug build.
"""

import signal
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from support import build
from support.crashpoints import Trigger

from crash.scenario import reachable, run_all


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["KILL", "STOP"])
def test_the_world_goes_on_after_every_point(kafka: KafkaCluster, runtime_dir: Path, tmp_path: Path, number) -> None:
    assert build.is_debug(), "a release build has no crash points: tox -e crash"
    trigger = Trigger(tmp_path)
    try:
        report = run_all(kafka, tmp_path / "run", trigger, reachable(), number)
    finally:
        trigger.close()
    print("\n".join(report.lines()))
    assert report.clean, "\n".join(report.lines())
    assert report.counts["accepted"] > 10_000
