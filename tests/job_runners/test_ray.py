"""Tests the example for Ray in real worker processes, which share one sender, and what the guide says of Ray."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from devkafka.node import KafkaCluster
from programs import EXAMPLES
from support.connections import ConnectionWatch
from support.consumer import ReadRecords
from support.process import run_script, senders

if importlib.util.find_spec("ray") is None:
    raise pytest.UsageError("these tests need Ray: tox -e job_runners")

KILLED = """
    import os, signal, sys
    import ray
    from cyproducer import KafkaProducer

    @ray.remote(max_retries=0)
    def publish(servers, topic):
        producer = KafkaProducer(bootstrap_servers=servers)
        for number in range(10_000):
            producer.send(topic, b"%d" % number)
        os.kill(os.getpid(), signal.SIGKILL)

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        ray.get(publish.remote(*sys.argv[1:3]))
    except ray.exceptions.WorkerCrashedError:
        print("killed")
    ray.shutdown()
"""

CACHED = """
    import functools
    import ray
    from cyproducer import KafkaProducer

    @functools.cache
    def producer_of(servers):
        return KafkaProducer(bootstrap_servers=servers)

    @ray.remote(max_retries=0)
    def publish():
        producer_of("127.0.0.1:9")

    ray.init(num_cpus=1, include_dashboard=False)
    try:
        ray.get(publish.remote())
    except ray.exceptions.RayTaskError as error:
        print(error)
    ray.shutdown()
"""

TOO_SLOW = "The current node timed out during startup"
STARTS = 6


@pytest.fixture
def run(environment: dict[str, str], short_tmp: Path, tmp_path: Path) -> Callable[..., str]:
    """Return ``run(script, *arguments)``: it runs a script to its end, and returns what it printed.

    Ray has UNIX sockets, whose paths must be short. It gives its node 30 s to start, which no setting changes. On a
    busy machine that can be too short, so the script is run again: it has not done anything yet.
    """
    settings = {"RAY_TMPDIR": str(short_tmp), "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}

    def run_again(script: str | Path, *arguments: object) -> str:
        for _ in range(STARTS):
            ended = run_script(
                script, *arguments, timeout=240, env={**environment, **settings}, cwd=tmp_path, check=False
            )
            if TOO_SLOW not in ended.stderr:
                break
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    return run_again


@pytest.mark.timeout(1800)
def test_tasks_and_actors_share_one_sender(
    run: Callable[..., str],
    kafka: KafkaCluster,
    topic: str,
    runtime_dir: Path,
    arrived: Callable[..., ReadRecords],
    attached: Callable[[], set[int]],
) -> None:
    """The two actors have processes of their own, and the tasks run in others."""
    with ConnectionWatch(kafka.bootstrap_servers, runtime_dir) as watch:
        assert "2200 records written" in run(EXAMPLES / "ray_tasks.py").splitlines()
    (sender,) = senders(runtime_dir)
    assert {pid for sample in watch.samples for pid in sample} == {sender.pid}
    assert len(attached()) >= 3
    assert sorted(arrived(topic, 2200).value) == sorted(b"%d" % number for number in range(2200))


@pytest.mark.timeout(1800)
def test_a_killed_worker_loses_nothing(
    run: Callable[..., str], kafka: KafkaCluster, topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    printed = run(KILLED, kafka.bootstrap_servers, topic)
    assert "killed" in printed.splitlines(), printed  # Ray may tell of the dead worker before or after it
    assert sorted(arrived(topic, 10_000).value) == sorted(b"%d" % number for number in range(10_000))


@pytest.mark.timeout(1800)
def test_a_worker_does_not_find_a_cached_function_of_the_program(run: Callable[..., str]) -> None:
    """The object that functools.cache makes is pickled as its name, and the worker has another main module."""
    assert "AttributeError: Can't get attribute 'producer_of' on <module '__main__'" in run(CACHED)
