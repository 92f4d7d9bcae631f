"""Judges how Python reaches the executors of a Spark session, and what their memory is needed for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from cyproducer.config.table import MIB, SETTINGS
from cyproducer.spark.finding import OK, WARNING, Finding

__all__ = ["INTERPRETERS", "PYSPARK_MEMORY", "archives", "interpreters", "memory"]

INTERPRETERS = "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"
"""Spark looks data sources up with the first of these variables that is set, and runs tasks with the second one."""

PYSPARK_MEMORY = "spark.executor.pyspark.memory"
SENDER_MIB = 30
"""What a sender takes beside the buffers of its front-ends, about."""

_DRIVER, _TASKS = INTERPRETERS


def interpreters(environment: Mapping[str, str], tasks: str) -> Finding:
    """Tell which interpreters Spark runs.

    environment  the variables INTERPRETERS in the driver's JVM: it looks data sources up with one of them
    tasks        what runs the tasks
    """
    name = next((name for name in INTERPRETERS if environment.get(name)), None)
    driver = "python3 of the PATH" if name is None else f"{environment[name]} ({name})"
    return Finding(
        OK,
        "interpreters",
        f"Spark looks for data sources with {driver} on the host of the driver, and runs tasks with {tasks} on the "
        "executors",
    )


def archives(texts: Sequence[str], interpreter: str) -> Finding:
    """Tell what is shipped to the executors, and whether tasks run with it.

    texts        values of spark.archives and spark.yarn.dist.archives: lists such as "env.tar.gz#env,data.zip"
    interpreter  what runs the tasks; "" if it is not known, as over Spark Connect
    """
    where = "archives"
    shipped = dict(_archive(each) for text in texts for each in text.split(",") if each.strip())
    text = ", ".join(f"{archive} is unpacked as ./{directory}" for directory, archive in shipped.items())
    if not interpreter:
        text = text or "none in the settings"
        return Finding(OK, where, f"{text}; the lines of the hosts show the interpreters of the tasks")
    directory = _directory(interpreter)
    if directory and directory not in shipped:
        return Finding(
            WARNING,
            where,
            f"tasks run with {interpreter}, and no archive is unpacked as {directory}: give --archives "
            f"{directory}.tar.gz#{directory} or spark.archives, unless the executors have this directory",
        )
    if directory:
        return Finding(OK, where, f"{text}; tasks run with {interpreter}")
    if not shipped:
        return Finding(OK, where, f"none; tasks run with {interpreter} of the hosts")
    first = next(iter(shipped))
    return Finding(
        OK,
        where,
        f"{text}; tasks do not run with an interpreter from there. To do that, set {_TASKS}=./{first}/bin/python, and "
        f"{_DRIVER} to one on the driver's host",
    )


def _directory(interpreter: str) -> str:
    """Return "env" for "./env/bin/python", which Spark finds in the working directory of executors; else ""."""
    parts = PurePosixPath(interpreter).parts
    return parts[0] if len(parts) > 1 and parts[0] not in ("/", "..") else ""


def _archive(text: str) -> tuple[str, str]:
    """Return the directory of an archive and its file name. Without "#directory", they are the same."""
    path, _, directory = text.strip().partition("#")
    name = path.rstrip("/").rpartition("/")[2]
    return directory or name, name


def memory(cores: str, limit: str) -> Finding:
    """Tell how much memory cyproducer takes outside of Spark's heap.

    cores  spark.executor.cores, limit: spark.executor.pyspark.memory; empty if they are not set
    """
    (buffers,) = (row.default // MIB for row in SETTINGS if row.name == "buffer_memory")
    limited = f"{PYSPARK_MEMORY}={limit}{f' divided by {cores} cores' if cores else ''} limits"
    return Finding(
        OK,
        "memory",
        f"{limited if limit else 'Spark does not limit'} the address space of a Python worker. A worker keeps up to "
        f"{buffers} MiB of buffers for each set of options (buffer.memory). A host with N workers has up to N times as "
        f"much, and {SENDER_MIB} MiB for its sender, outside of the heap. A container needs room for it: "
        "spark.executor.memoryOverhead",
    )
