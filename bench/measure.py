"""What the machine did: CPU time of processes to the nanosecond, and how to sum up rounds."""

import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

from cyproducer.cli.kafka_jars import KAFKA_VERSION
from cyproducer.cli.maven_jars import find_java

_CPUCLOCK_SCHED = 2
PACKAGES = (
    "cyproducer", "confluent-kafka", "kafka-python", "aiokafka", "pyspark", "numpy", "pyarrow", "cramjam", "Cython",
)  # fmt: skip


def cpu_ns(pid: int) -> int:
    """CPU time, user and system, of all threads of a process that lives, in ns. ProcessLookupError if not.

    The kernel's clock of another process (clock_getcpuclockid(3) computes the same number): the times in
    /proc count ticks of 10 ms, too coarse for what a sender uses in one round.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError as error:
        raise ProcessLookupError(f"no CPU clock of process {pid}: {error}") from None


def tree_of(pid: int) -> set[int]:
    """A process and all of its descendants."""
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.NoSuchProcess:
        return set()


class CpuMeter:
    """CPU time that processes use from now on; one that starts meanwhile counts from its own beginning.

    What a process used that ended in between is lost: the benchmark's own processes outlive a measurement.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._started = {pid: cpu_ns(pid) for pid in pids}

    def used(self, pids: Iterable[int] | None = None) -> int:
        """CPU ns since the start, of the processes of the start and of those named here as well."""
        total = 0
        for pid in {*self._started, *(pids or ())}:
            try:
                total += cpu_ns(pid) - self._started.get(pid, 0)
            except ProcessLookupError:
                continue
        return total


def busy_ns() -> int:
    """CPU time that the whole machine has been busy, in ns, in steps of 10 ms."""
    times = psutil.cpu_times()
    return int((times.user + times.system + times.nice + times.irq + times.softirq + times.steal) * 1e9)


def wake_ups(pids: Iterable[int]) -> int:
    """How often threads of processes have gone to sleep by themselves so far, and so were woken."""
    total = 0
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            try:
                text = status.read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            total += int(text.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


def summary(values: Sequence[float]) -> dict[str, float]:
    """Median, least and greatest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def java_version() -> str:
    """That of the Java runtime that is used."""
    run = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    found = re.search(r'version "([^"]+)', run.stderr + run.stdout)
    return found[1] if found else "not known"


def librdkafka_version() -> str:
    """That of the librdkafka in confluent-kafka."""
    from confluent_kafka import libversion

    return libversion()[0]


def processor() -> str:
    """The first core's model; with family and number, since clouds give all of a maker's the same name."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    if "model name" not in about:
        return platform.machine()
    numbers = [f"{key} {about[key]}" for key in ("cpu family", "model") if key in about]
    return about["model name"] + (f" ({', '.join(numbers)})" if numbers else "")


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, kernel, interpreter and packages."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "memory_mib": psutil.virtual_memory().total >> 20,
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "packages": packages,
        "kafka": KAFKA_VERSION,
        "load_average": list(os.getloadavg()),
    }
