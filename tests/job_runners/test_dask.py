"""Tests the example for Dask in real worker processes, which share one sender."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from programs import EXAMPLES
from support.connections import ConnectionWatch
from support.consumer import ReadRecords
from support.process import senders, start_script, wait_until

if importlib.util.find_spec("distributed") is None:
    raise pytest.UsageError("this test needs Dask: tox -e job_runners")


def test_the_workers_share_one_sender(
    kafka: KafkaCluster,
    topic: str,
    runtime_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arrived: Callable[..., ReadRecords],
    retired_senders: None,
) -> None:
    monkeypatch.setenv("DASK_CONFIG", str(tmp_path))
    monkeypatch.setenv("DASK_TEMPORARY_DIRECTORY", str(tmp_path))
    with (
        ConnectionWatch(kafka.bootstrap_servers, runtime_dir) as watch,
        start_script(EXAMPLES / "dask_workers.py", kafka.bootstrap_servers, topic, cwd=tmp_path) as script,
    ):
        wait_until(lambda: senders(runtime_dir), 120, "the sender")
        (sender,) = senders(runtime_dir)
        out, err = script.communicate(timeout=120)
        assert (script.returncode, out) == (0, "2000 records written\n"), err
    assert [process.pid for process in senders(runtime_dir)] == [sender.pid]
    assert {pid for sample in watch.samples for pid in sample} == {sender.pid}
    assert sorted(arrived(topic, 2000).value) == sorted(b"%d" % number for number in range(2000))
