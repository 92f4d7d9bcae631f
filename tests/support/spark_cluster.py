"""Runs a standalone cluster of Spark on this machine: one master, and workers that stand for hosts."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from support.process import below_of, command_of, kill9, wait_until
from support.spark_environment import end_spark, spark_environment
from support.spark_jvm import short_lived_jvm

START_S = 120.0
_ADDRESS = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = "Successfully registered with master"


class SparkCluster:
    """One master and one worker for each runtime directory, with the addresses 127.0.0.1, 127.0.0.2, and so on.

    directory    for logs and the files of executors
    runtimes     the CYPRODUCER_RUNTIME_DIR of each worker; two workers with the same one share a sender, as on one host
    cores        the cores of each worker

    It is a context manager, which ends all processes.
    """

    def __init__(self, directory: Path, runtimes: Sequence[Path], cores: int = 1) -> None:
        self.url = ""
        self._directory = directory
        self._runtimes = runtimes
        self._cores = cores
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> "SparkCluster":
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start_master()
            for number, runtime in enumerate(self._runtimes, 1):
                self._start_worker(number, runtime)
            for number in range(1, len(self._runtimes) + 1):
                wait_until(lambda n=number: _REGISTERED in self._log(f"worker-{n}"), START_S, f"worker {number}")
        except BaseException:
            end_spark(self._processes)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end_spark(self._processes)

    def executors(self) -> dict[str, list[int]]:
        """Return the processes of the executors by the address of their host."""
        return {
            f"127.0.0.{number}": [
                each.pid
                for each in below_of(worker.pid)
                if "CoarseGrainedExecutorBackend" in " ".join(command_of(each))
            ]
            for number, worker in enumerate(self._processes[1:], 1)
        }

    def workers(self) -> list[int]:
        """Return the processes of the workers, whose children are the executors."""
        return [process.pid for process in self._processes[1:]]

    def kill_executor(self, host: str) -> None:
        """SIGKILL the executors of a host. Its worker starts another one."""
        found = self.executors()[host]
        assert found, f"no executor on {host}"
        for pid in found:
            kill9(pid)

    def _start_master(self) -> None:
        self._start("master", "127.0.0.1", {}, "master.Master", "--host", "127.0.0.1")
        wait_until(lambda: _ADDRESS.search(self._log("master")), START_S, "the master")
        found = _ADDRESS.search(self._log("master"))
        assert found is not None
        self.url = found[1]

    def _start_worker(self, number: int, runtime: Path) -> None:
        host = f"127.0.0.{number}"
        environment = {"CYPRODUCER_RUNTIME_DIR": str(runtime), "SPARK_LOCAL_DIRS": str(self._directory / "local")}
        arguments = "--host", host, "--cores", str(self._cores), "--memory", f"{self._cores * 1024}m"
        work = "--work-dir", str(self._directory / f"work-{number}")
        self._start(f"worker-{number}", host, environment, "worker.Worker", *arguments, *work, self.url)

    def _start(self, name: str, host: str, environment: dict[str, str], kind: str, *arguments: str) -> None:
        given = spark_environment()
        # Both set the ports of the web pages to free ones; Spark has no switch for these pages.
        command = [f"{given['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{kind}", "--port", "0"]
        command += ["--webui-port", "0", *arguments]
        changes = {
            "SPARK_LOCAL_IP": host,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_DAEMON_JAVA_OPTS": short_lived_jvm(),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with open(self._directory / f"{name}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                env={**os.environ, **given, **environment, **changes},
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)

    def _log(self, name: str) -> str:
        process = self._processes[0 if name == "master" else int(name.rpartition("-")[2])]
        text = (self._directory / f"{name}.log").read_text(errors="replace")
        assert process.poll() is None, f"{name} has ended: {text[-2000:]}"
        return text
