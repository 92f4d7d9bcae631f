"""Tests the example for Ray in real worker processes, which share one sender, and what the guide says of Ray."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
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


@pytest.fixture
def ray_environment(environment: dict[str, str], short_tmp: Path) -> dict[str, str]:
    """Return the environment of the programs. Ray has UNIX sockets, whose paths must be short."""
    return {
        **environment,
        "RAY_TMPDIR": str(short_tmp),
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def test_tasks_and_actors_share_one_sender(
    ray_environment: dict[str, str],
    topic: str,
    runtime_dir: Path,
    tmp_path: Path,
    arrived: Callable[..., ReadRecords],
    attached: Callable[[], set[int]],
) -> None:
    """The two actors have processes of their own, and the tasks run in others."""
    with ConnectionWatch(ray_environment["KAFKA"], runtime_dir) as watch:
        script = run_script(EXAMPLES / "ray_tasks.py", timeout=240, env=ray_environment, cwd=tmp_path)
    assert script.stdout.endswith("2200 records written\n"), script.stdout
    (sender,) = senders(runtime_dir)
    assert {pid for sample in watch.samples for pid in sample} == {sender.pid}
    assert len(attached()) >= 3
    assert sorted(arrived(topic, 2200).value) == sorted(b"%d" % number for number in range(2200))


def test_a_killed_worker_loses_nothing(
    ray_environment: dict[str, str], topic: str, tmp_path: Path, arrived: Callable[..., ReadRecords]
) -> None:
    script = run_script(KILLED, ray_environment["KAFKA"], topic, timeout=240, env=ray_environment, cwd=tmp_path)
    assert script.stdout.endswith("killed\n"), script.stdout
    assert sorted(arrived(topic, 10_000).value) == sorted(b"%d" % number for number in range(10_000))


def test_a_worker_does_not_find_a_cached_function_of_the_program(
    ray_environment: dict[str, str], tmp_path: Path
) -> None:
    """The object that functools.cache makes is pickled as its name, and the worker has another main module."""
    script = run_script(CACHED, timeout=240, env=ray_environment, cwd=tmp_path)
    assert "AttributeError: Can't get attribute 'producer_of' on <module '__main__'" in script.stdout
