"""Measures the machine: CPU time of processes in nanoseconds, wake-ups, versions, and summaries of rounds."""

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
from devkafka.jars import KAFKA_VERSION
from devkafka.maven import find_java

_CPUCLOCK_SCHED = 2
PACKAGES = (
    "cyproducer", "confluent-kafka", "kafka-python", "aiokafka", "pyspark", "numpy", "pyarrow", "cramjam", "Cython",
)  # fmt: skip


def cpu_ns(pid: int) -> int:
    """Return the user and system CPU time of all threads of a living process in ns. Raise ProcessLookupError.

    It reads the kernel's clock of the process (clock_getcpuclockid(3) computes the same number). The times in
    /proc have ticks of 10 ms, which is too coarse for a sender in one round.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | _CPUCLOCK_SCHED)
    except OSError as error:
        raise ProcessLookupError(f"no CPU clock of process {pid}: {error}") from None


def tree_of(pid: int) -> set[int]:
    """Return a process and all of its descendants."""
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.NoSuchProcess:
        return set()


class CpuMeter:
    """Measures the CPU time that processes use from now on. A process that starts later counts from its start.

    The time of a process that ends in between is lost; the benchmark's processes run longer than a measurement.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._started = {pid: cpu_ns(pid) for pid in pids}

    def used(self, pids: Iterable[int] | None = None) -> int:
        """Return the CPU ns since the start, of the initial processes and of `pids`."""
        total = 0
        for pid in {*self._started, *(pids or ())}:
            try:
                total += cpu_ns(pid) - self._started.get(pid, 0)
            except ProcessLookupError:
                continue
        return total


def busy_ns() -> int:
    """Return the CPU time that all processes of the machine have used, in ns, with a resolution of 10 ms."""
    times = psutil.cpu_times()
    return int((times.user + times.system + times.nice + times.irq + times.softirq + times.steal) * 1e9)


def wake_ups(pids: Iterable[int]) -> int:
    """Return how often threads of these processes have gone to sleep voluntarily so far, and so were woken."""
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
    """Return median, minimum and maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def java_version() -> str:
    """Return the version of the Java runtime that is used."""
    run = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True)
    found = re.search(r'version "([^"]+)', run.stderr + run.stdout)
    return found[1] if found else "not known"


def librdkafka_version() -> str:
    """Return the version of librdkafka in confluent-kafka."""
    from confluent_kafka import libversion

    return libversion()[0]


def processor() -> str:
    """Return the model of the first core, with family and number, because clouds use one name for many models."""
    first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    about = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}
    if "model name" not in about:
        return platform.machine()
    numbers = [f"{key} {about[key]}" for key in ("cpu family", "model") if key in about]
    return about["model name"] + (f" ({', '.join(numbers)})" if numbers else "")


def machine() -> dict[str, Any]:
    """Return the facts that the figures depend on: processor, kernel, interpreter and packages."""
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
