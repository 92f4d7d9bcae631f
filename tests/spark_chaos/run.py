"""Runs a driver again and again while processes are killed, and checks what a reader sees.

Killed are the driver, senders and workers, and on a cluster executors and brokers as well.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from devkafka.node import KafkaCluster
from support.consumer import read_topic
from support.process import below_of, command_of, kill_senders, script_environment, senders, supervisors
from support.spark_cluster import SparkCluster
from support.spark_environment import spark_environment

ROWS = 200
"""Numbers in each file; each file is a micro-batch."""
START_S = 120.0
END_S = 200.0
LAST_STARTS = 3
#: Errors that no kill causes.
NEVER = ("cyproducer.spark.micro_batches.MarkerError", "cyproducer.spark.owner.FencedDriverError")
PAUSE_S = 5.0
"""The longest time between two kills: several micro-batches end in it on a machine that has nothing else to do."""
WEIGHTS = {"driver": 2, "sender": 3, "sender and supervisor": 2, "worker": 3}
CLUSTER_WEIGHTS = {"executor": 3, "broker": 2}
"""The kinds that a run on a cluster has in addition."""


@dataclass
class Result:
    """How many of each were killed, how many numbers there are, and what is wrong.

    wrong    numbers with how often they are visible, if not once
    errors   lines of the driver's log with an error that no kill causes
    """

    killed: Counter[str] = field(default_factory=Counter)
    numbers: int = 0
    wrong: dict[int, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.wrong and not self.errors

    def text(self) -> str:
        kills = ", ".join(f"{count} {name}" for name, count in sorted(self.killed.items()))
        if self.errors:
            kills += f"; errors of the driver: {self.errors[:3]}"
        found = f"{len(self.wrong)} numbers are missing or repeated: {dict(list(self.wrong.items())[:10])}"
        return f"killed: {kills}; {self.numbers} numbers; {found if self.wrong else 'each is visible once'}"


class Driver:
    """Starts the process of `driver.py`, on a cluster of Spark if there is one, else on two threads of its own.

    directory   with the source and the checkpoint; several drivers may have the same one
    runtimes    directories for senders, one for each host; the driver is on the first one
    log         the name of a file for the driver's output
    more        more variables of its environment
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        directory: Path,
        runtimes: Sequence[Path],
        spark: SparkCluster | None = None,
        log: str = "driver.log",
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._log = directory / log
        self.runtimes = runtimes
        self.spark = spark
        master = "local[2, 2]" if spark is None else spark.url
        self._command = [sys.executable, "-m", "spark_chaos.driver", cluster.bootstrap_servers, topic, str(directory)]
        self._command += ["--master", master]
        changes = spark_environment() | {"CYPRODUCER_RUNTIME_DIR": str(runtimes[0])} | dict(more or {})
        del changes["PYTHONPATH"]  # that of script_environment() has the tests, too
        self._environment = script_environment(changes)
        self.process: subprocess.Popen[bytes] | None = None
        (directory / "in").mkdir(parents=True, exist_ok=True)

    def add(self, numbers: range) -> None:
        """Add a file to the source."""
        path = self.directory / f"{numbers.start}.txt"
        path.write_text("".join(f"{number}\n" for number in numbers))
        path.rename(self.directory / "in" / path.name)

    def start(self, *arguments: str) -> None:
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [*self._command, *arguments], env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def workers(self) -> list[int]:
        """Return Spark's Python workers."""
        assert self.process is not None
        parents = [self.process.pid, *(self.spark.workers() if self.spark is not None else [])]
        below = [each for parent in parents for each in below_of(parent)]
        return [each.pid for each in below if "pyspark.daemon" in " ".join(command_of(each))]

    def executors(self) -> list[int]:
        """Return the executors of the cluster."""
        return [] if self.spark is None else [pid for pids in self.spark.executors().values() for pid in pids]

    def senders(self) -> list[int]:
        """Return the senders of all hosts."""
        return [process.pid for runtime in self.runtimes for process in senders(runtime)]

    def kill(self) -> None:
        """SIGKILL the driver, and wait until its JVM and workers have ended: they end by themselves."""
        assert self.process is not None
        below = below_of(self.process.pid)
        self.process.kill()
        self.wait(below)

    def wait(self, below: list[psutil.Process] | None = None) -> int:
        """Wait for its end. Raise TimeoutExpired if it has not committed a micro-batch for END_S."""
        assert self.process is not None
        status = None
        while status is None:
            committed = self._commits()
            try:
                status = self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                if self._commits() == committed:
                    raise
        _, left = psutil.wait_procs(below or [], timeout=30)
        for process in left:
            process.kill()
        self.process = None
        return status

    def _commits(self) -> int:
        return len(list(self.directory.glob("checkpoint/commits/*")))


def run_once(driver: Driver, *arguments: str) -> int:
    """Run a driver to its end. Return its status; negative: the signal."""
    driver.start(*arguments)
    assert driver.process is not None
    below: list[psutil.Process] = []
    while driver.process.poll() is None:
        below = below_of(driver.process.pid) or below
        time.sleep(0.1)
    return driver.wait(below)


def run(
    kills: int,
    seed: int,
    cluster: KafkaCluster,
    topic: str,
    directory: Path,
    runtimes: Sequence[Path],
    spark: SparkCluster | None = None,
    progress: bool = False,
) -> Result:
    """Kill `kills` processes at random moments while files are added. Raise AssertionError if the driver hangs.

    The first kills are one of each kind, in a drawn order.
    """
    dice = random.Random(seed)
    result = Result()
    driver = Driver(cluster, topic, directory, runtimes, spark)
    source = _files(driver)
    next(source)
    driver.start()
    try:
        _kill_at_random(kills, dice, driver, cluster, source, result, progress)
        cluster.restore()
        (directory / "stop").touch()
        for _ in range(LAST_STARTS):  # a kill of the last moment may have ended it
            if not (driver.wait() if driver.process is not None else run_once(driver)):
                break
        else:
            raise AssertionError(f"the driver does not come to its end: {driver.log()[-3000:]}")
    finally:
        if driver.process is not None:
            driver.kill()
    seen = Counter(map(int, read_topic(cluster.bootstrap_servers, topic, 0).value))
    result.errors = [line for line in driver.log().splitlines() if line.startswith(NEVER)]
    result.wrong = {number: seen[number] for number in range(result.numbers) if seen[number] != 1}
    return result


def _kill_at_random(
    kills: int,
    dice: random.Random,
    driver: Driver,
    cluster: KafkaCluster,
    source: Iterator[int],
    result: Result,
    progress: bool,
) -> None:
    weights = WEIGHTS | (CLUSTER_WEIGHTS if driver.spark is not None else {})
    first = list(weights)
    dice.shuffle(first)
    until = time.monotonic() + START_S
    while result.killed.total() < kills:
        if driver.process is None or driver.process.poll() is not None:
            driver.process = None
            driver.start()
        time.sleep(dice.uniform(0.05, PAUSE_S))
        assert time.monotonic() < until, f"nothing to kill: {first[:1] or 'the driver has not begun to write'}"
        if not driver.senders():  # Spark is starting
            continue
        result.numbers = next(source)
        name = first[0] if first else dice.choices(list(weights), list(weights.values()))[0]
        if name == "broker":
            _kill_broker(cluster, dice)
        elif not _kill(driver, name, dice):
            continue  # there is none at the moment
        result.killed[name] += 1
        if first:
            del first[0]
        if progress:
            print(f"{result.killed.total()}/{kills} kills", file=sys.stderr, flush=True)
        until = time.monotonic() + START_S


def _files(driver: Driver) -> Iterator[int]:
    """Add a file at each step. Yield how many numbers there are."""
    count = 0
    while True:
        driver.add(range(count, count + ROWS))
        count += ROWS
        yield count


def _kill_broker(cluster: KafkaCluster, dice: random.Random) -> None:
    """SIGKILL a broker, and start it again after a while."""
    number = dice.randint(1, len(cluster.nodes))
    cluster.kill(number)
    time.sleep(dice.uniform(0.1, PAUSE_S))
    cluster.restart(number)


def _kill(driver: Driver, name: str, dice: random.Random) -> bool:
    """Return whether something was killed."""
    if name == "driver":
        is_running = driver.process is not None and driver.process.poll() is None
        driver.kill()
        return is_running
    if name == "sender and supervisor":
        found = [each for each in driver.runtimes if senders(each) and supervisors(each)]
        if found:
            kill_senders(dice.choice(found))
        return bool(found)
    pids = {"sender": driver.senders, "worker": driver.workers, "executor": driver.executors}[name]()
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(dice.choice(pids), signal.SIGKILL)
            return True
    return False
