"""Tests the example for Airflow with a real scheduler, whose LocalExecutor gives each task a process."""

import contextlib
import importlib.util
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from devkafka.node import free_ports
from programs import EXAMPLES, program, wait_for_answer
from support.connections import ConnectionWatch
from support.consumer import ReadRecords
from support.process import script_environment, wait_until

if importlib.util.find_spec("airflow") is None:
    raise pytest.UsageError("these tests need Airflow: tox -e job_runners")

KILLED = '''"""A DAG whose task is killed after it has sent its records."""
import os, signal
from airflow.sdk import dag, task
from cyproducer import KafkaProducer

@task
def publish():
    producer = KafkaProducer(bootstrap_servers=os.environ["KAFKA"])
    for number in range(10_000):
        producer.send(os.environ["TOPIC"], b"%d" % number)
    os.kill(os.getpid(), signal.SIGKILL)

@dag(schedule=None)
def killed():
    publish()

killed()
'''


class Airflow:
    """An Airflow with its home in a directory of the test."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        (port,) = free_ports(1)
        self.home = home
        self.environment = environment | {
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "AIRFLOW__CORE__PARALLELISM": "4",
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
            "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(port),
            "AIRFLOW__API__WORKERS": "1",
        }
        (home / "dags").mkdir(parents=True)

    def command(self, *arguments: str) -> None:
        """Run a command to its end."""
        ended = subprocess.run(
            [sys.executable, "-m", "airflow", *arguments],
            env=script_environment(self.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr

    def end(self) -> str | None:
        """Return how the only run of a DAG has ended; None before that."""
        with contextlib.closing(sqlite3.connect(self.home / "airflow.db", timeout=60)) as database:
            ((state,),) = database.execute("SELECT state FROM dag_run").fetchall()
        return state if state in ("success", "failed") else None

    def run(self, dag: str) -> str:
        """Run a DAG to its end. Return its last state."""
        self.command("db", "migrate")
        log = self.home / "server.log"
        with program(log, self.environment, "airflow", "api-server") as server:
            self.command("dags", "reserialize")
            self.command("dags", "trigger", dag)
            # A task that does not reach the server fails.
            wait_for_answer(server, self.environment["AIRFLOW__CORE__EXECUTION_API_SERVER_URL"] + "health", log)
            with program(self.home / "scheduler.log", self.environment, "airflow", "scheduler", "--skip-serve-logs"):
                return wait_until(self.end, 400, f"the end of {dag}")

    def logs(self) -> str:
        """Return what the scheduler and the tasks have logged."""
        return "".join(path.read_text() for path in sorted(self.home.rglob("*.log")))


@pytest.fixture
def airflow(environment: dict[str, str], tmp_path: Path) -> Airflow:
    """Return an Airflow without DAGs."""
    return Airflow(tmp_path / "airflow", environment)


@pytest.mark.timeout(1800)
def test_the_processes_of_all_tasks_share_one_sender(
    airflow: Airflow,
    topic: str,
    runtime_dir: Path,
    arrived: Callable[..., ReadRecords],
    attached: Callable[[], set[int]],
) -> None:
    shutil.copy(EXAMPLES / "airflow_dag.py", airflow.home / "dags")
    with ConnectionWatch(airflow.environment["KAFKA"], runtime_dir) as watch:
        assert airflow.run("publish_records") == "success", airflow.logs()
    assert "400 records written" in airflow.logs()
    # The tasks end before Airflow does, so the sender may have ended as well.
    assert len({pid for sample in watch.samples for pid in sample}) == 1
    assert len(attached()) == 4
    assert sorted(arrived(topic, 400).value) == sorted(b"%d" % number for number in range(400))


@pytest.mark.timeout(1800)
def test_a_killed_task_loses_nothing(airflow: Airflow, topic: str, arrived: Callable[..., ReadRecords]) -> None:
    (airflow.home / "dags" / "killed.py").write_text(KILLED)
    assert airflow.run("killed") == "failed", airflow.logs()
    assert sorted(arrived(topic, 10_000).value) == sorted(b"%d" % number for number in range(10_000))
