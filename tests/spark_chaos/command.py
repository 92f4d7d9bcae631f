"""Starts a run from the command line: kills at random, and a report on every number."""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from devkafka.node import KafkaCluster
from support.spark_cluster import SparkCluster

from spark_chaos.run import run


def main() -> int:
    """Return the exit status: 1 if a number is missing or repeated."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark_chaos", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None, help="drawn and printed if not given")
    parser.add_argument("--keep", metavar="DIR", help="for the logs; default: temporary, removed if clean")
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    directory = Path(chosen.keep or tempfile.mkdtemp(prefix="cyp-spark-chaos-"))
    runtimes = [Path(tempfile.mkdtemp(prefix="cyp-")) for _ in range(2)]
    print(f"seed {seed}, {chosen.kills} kills, in {directory}", file=sys.stderr)
    with KafkaCluster(3) as cluster, SparkCluster(directory / "spark", runtimes) as spark:
        topic = cluster.create_topic("chaos", 3, 3)
        result = run(chosen.kills, seed, cluster, topic, directory / "run", runtimes, spark, progress=True)
    print(result.text())
    for host, runtime in enumerate(runtimes, 1):
        for log in runtime.glob("*.log*"):
            shutil.copy(log, directory / f"host-{host}-{log.name}")
        shutil.rmtree(runtime, ignore_errors=True)
    if result.clean and not chosen.keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"logs are in {directory}", file=sys.stderr)
    return 0 if result.clean else 1
