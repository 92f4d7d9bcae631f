"""Judges how Python reaches the executors of a Spark session, and what their memory is needed for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cyproducer.config.table import MIB, SETTINGS
from cyproducer.spark.finding import OK, WARNING, Finding

__all__ = ["archives", "interpreters", "memory"]

SENDER_MIB = 30
"""What a sender takes beside the buffers of its front-ends, about."""

_DRIVER, _TASKS = "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"
#: The directory in which an interpreter is looked for, if its path is relative: "./env/bin/python" is in "env".
_UNPACKED = re.compile(r"(?:\./)?([^/]+)/")


def interpreters(environment: Mapping[str, str]) -> Finding:
    """Tell which interpreters a driver with this environment has Spark run: for look-ups, and for tasks."""

    def chosen(*names: str) -> str:
        for name in names:
            if environment.get(name):
                return f"{environment[name]} ({name})"
        return "python3 of the PATH"

    return Finding(
        OK,
        "interpreters",
        f"Spark looks for data sources with {chosen(_DRIVER, _TASKS)} on the host of the driver, and runs tasks with "
        f"{chosen(_TASKS)} on the executors",
    )


def archives(texts: Sequence[str], interpreter: str) -> Finding:
    """Tell what is shipped to the executors, and whether tasks run with it.

    texts        values of spark.archives and spark.yarn.dist.archives: lists such as "env.tar.gz#env,data.zip"
    interpreter  what runs the tasks; "" if it is not known
    """
    where = "archives"
    shipped = dict(_archive(each) for text in texts for each in text.split(",") if each.strip())
    relative = "" if interpreter.startswith("/") else interpreter
    unpacked = _UNPACKED.match(relative)
    if unpacked and unpacked[1] not in shipped:
        return Finding(
            WARNING,
            where,
            f"tasks run with {interpreter}, and no archive is unpacked as {unpacked[1]}: give --archives "
            f"{unpacked[1]}.tar.gz#{unpacked[1]} or spark.archives, unless the executors have this directory",
        )
    if not shipped:
        return Finding(OK, where, "none; tasks run with what is installed on the hosts of the executors")
    text = ", ".join(f"{archive} is unpacked as ./{directory}" for directory, archive in shipped.items())
    if unpacked:
        return Finding(OK, where, f"{text}; tasks run with {interpreter}")
    directory = next(iter(shipped))
    return Finding(
        OK,
        where,
        f"{text}; tasks do not run with an interpreter from there. To do that, set {_TASKS}=./{directory}/bin/python, "
        f"and {_DRIVER} to one on the driver's host",
    )


def _archive(text: str) -> tuple[str, str]:
    """Return the directory of an archive and its file name. Without "#directory", they are the same."""
    path, _, directory = text.strip().partition("#")
    name = path.rstrip("/").rpartition("/")[2]
    return directory or name, name


def memory(workers: Mapping[str, int], cores: str, limit: str) -> Finding:
    """Tell how much memory cyproducer takes outside of Spark's heap.

    workers  the number of Python workers that were seen, by host
    cores    spark.executor.cores, limit: spark.executor.pyspark.memory; empty if they are not set
    """
    (buffers,) = (row.default // MIB for row in SETTINGS if row.name == "buffer_memory")
    host, count = max(workers.items(), key=lambda item: item[1], default=("none", 0))
    share = f" divided by {cores} cores" if cores else ""
    limited = f"the address space of a worker is limited by spark.executor.pyspark.memory={limit}{share}"
    return Finding(
        OK,
        "memory",
        f"{limited if limit else 'the address space of a worker has no limit of Spark'}. A worker keeps up to "
        f"{buffers} MiB of buffers for each set of options (buffer.memory), and the sender of a host {SENDER_MIB} MiB, "
        f"outside of the heap: with the {count} workers that were seen on {host} up to "
        f"{count * buffers + SENDER_MIB} MiB. In a container, spark.executor.memoryOverhead has to include it",
    )
