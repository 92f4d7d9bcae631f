"""Runs a Spark Connect server on this machine."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.process import wait_until
from support.spark_environment import end_spark, spark_environment
from support.spark_jvm import short_lived_jvm

START_S = 300.0


@contextlib.contextmanager
def spark_connect_server(
    directory: Path, runtime: Path, master: str = "local[2, 2]", more: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield the address of a server, which is the driver. Its Python workers use a runtime directory of cyproducer.

    directory   for its log and its files
    runtime     the CYPRODUCER_RUNTIME_DIR of the server
    master      Spark's master
    more        more settings of Spark
    """
    directory.mkdir(parents=True, exist_ok=True)
    given = spark_environment()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": short_lived_jvm(),
        "spark.executor.extraJavaOptions": short_lived_jvm(),
        "spark.sql.shuffle.partitions": "2",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        **(more or {}),
    }
    command = [f"{given['SPARK_HOME']}/bin/spark-submit", "--master", master]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    with open(directory / "server.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            env={**os.environ, **given, "CYPRODUCER_RUNTIME_DIR": str(runtime)},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:

        def answers() -> bool:
            assert process.poll() is None, (directory / "server.log").read_text(errors="replace")[-2000:]
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        wait_until(answers, START_S, "the Spark Connect server")
        yield f"sc://127.0.0.1:{port}"
    finally:
        end_spark([process])
