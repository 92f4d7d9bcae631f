"""Tests the example for Celery in a real worker, with each of its pools. The message broker is a folder."""

import contextlib
import importlib.util
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from devkafka.node import KafkaCluster
from support.connections import ConnectionWatch, assert_shared
from support.consumer import ReadRecords
from support.process import run_script, senders, start_module, wait_until
from web_server import EXAMPLES

HERE = Path(__file__).resolve().parent
TASKS = 40

if importlib.util.find_spec("celery") is None:
    raise pytest.UsageError("these tests need Celery: pip install 'cyproducer[usage]'")


@pytest.fixture
def environment(
    kafka: KafkaCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, retired_senders: None
) -> dict[str, str]:
    """Return the environment of the worker and of the program that calls its tasks."""
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.syspath_prepend(HERE)
    (tmp_path / "messages").mkdir()
    return {"KAFKA": kafka.bootstrap_servers, "TOPIC": topic, "CELERY_FOLDER": str(tmp_path)}


@contextlib.contextmanager
def celery(pool: str, environment: dict[str, str], log: Path, *options: object) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a worker with a pool; kill it and its children at the end. If the test fails, print the worker's log."""
    command = ["celery", "--app", "celery_files", "worker", "--pool", pool, *options]
    command += ["--concurrency", "2", "--loglevel", "INFO", "--without-mingle", "--without-gossip"]
    process = start_module(log, environment, *command)
    try:
        yield process
    except BaseException:
        print(log.read_text())
        raise
    finally:
        if process.poll() is None:
            for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                each.kill()
        process.wait()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet", "solo"])
def test_each_pool_publishes_through_one_sender(
    pool: str,
    environment: dict[str, str],
    topic: str,
    runtime_dir: Path,
    tmp_path: Path,
    arrived: Callable[..., ReadRecords],
) -> None:
    """The worker ends by SIGTERM, when it has done what it has taken."""
    log = tmp_path / "log"
    sent = [b"%s %d" % (task, i) for task in (b"publish", b"publish_and_wait") for i in range(TASKS)]
    with celery(pool, environment, log) as worker:
        for task in ("publish", "publish_and_wait"):
            run_script(HERE / "celery_files.py", task, TASKS, task, env=environment)
        assert sorted(arrived(topic, len(sent), 60).value) == sorted(sent)
        (sender,) = senders(runtime_dir)
        assert_shared(ConnectionWatch(environment["KAFKA"], runtime_dir).now(), sender.pid)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(60) == 0, log.read_text()
    text = log.read_text()
    assert text.count("succeeded in") == len(sent), text
    assert "Traceback" not in text, text


def test_a_killed_process_of_the_pool_loses_nothing(
    environment: dict[str, str], topic: str, runtime_dir: Path, tmp_path: Path, arrived: Callable[..., ReadRecords]
) -> None:
    """A process is killed in a task: with this broker, an idle one holds a lock of the pool that no end releases."""
    log = tmp_path / "log"
    sent = {"publish": TASKS, "publish_and_die": 2, "publish_again": TASKS}
    with celery("prefork", environment, log, "--max-tasks-per-child", 10):
        run_script(HERE / "celery_files.py", "publish", sent["publish"], "publish", env=environment)
        run_script(
            HERE / "celery_files.py", "publish_and_die", sent["publish_and_die"], "publish_and_die", env=environment
        )
        wait_until(lambda: log.read_text().count("signal 9 (SIGKILL)") == sent["publish_and_die"], 60, "the kills")
        run_script(HERE / "celery_files.py", "publish", sent["publish_again"], "publish_again", env=environment)
        values = arrived(topic, sum(sent.values()), 60).value
        assert len(senders(runtime_dir)) == 1
    assert sorted(values) == sorted(b"%s %d" % (task.encode(), i) for task, count in sent.items() for i in range(count))
