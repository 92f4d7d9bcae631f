"""Plays rounds of unanswered batches and broker faults from the command line, and prints each record's result."""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter

from unanswered.cluster import proxied_cluster
from unanswered.rounds import PARTITIONS, SCENARIOS, play


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.unanswered", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help=f"each of {PARTITIONS} partitions with 2 to 5 batches")
    parser.add_argument("--seed", type=int, default=None, help="seed of the schedule; drawn and printed if not given")
    parser.add_argument(
        "--only", action="append", choices=sorted(SCENARIOS), help="only this scenario; may be repeated"
    )
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    chance = random.Random(seed)
    names = chosen.only or list(SCENARIOS)
    runtime = tempfile.mkdtemp(prefix="cyp-")
    os.environ["CYPRODUCER_RUNTIME_DIR"] = runtime
    plan = [names[number % len(names)] for number in range(chosen.rounds)]
    print(f"seed {seed}, {chosen.rounds} rounds", file=sys.stderr)
    total: Counter[str] = Counter()
    defects: list[str] = []
    began = time.monotonic()
    done = 0
    try:
        for nodes in (1, 3):
            mine = [name for name in plan if SCENARIOS[name][0] == nodes]
            if not mine:
                continue
            with proxied_cluster(nodes) as cluster:
                for name in mine:
                    done += 1
                    topic = cluster.kafka.create_topic(f"round-{done}", PARTITIONS, nodes)
                    result = play(cluster, name, topic, chance)
                    total += result.counts
                    defects += result.defects
                    counts = ", ".join(f"{key} {value}" for key, value in sorted(result.counts.items()))
                    print(
                        f"{done}/{chosen.rounds} {time.monotonic() - began:.0f} s {name}: {counts}; "
                        f"defects {len(defects)}",
                        file=sys.stderr,
                    )
                    for defect in result.defects:
                        print(f"  DEFECT {defect}", file=sys.stderr)
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
    for key, value in sorted(total.items()):
        print(f"{key}: {value}")
    print(f"rounds: {done}, partitions: {done * PARTITIONS}, defects: {len(defects)}")
    return 1 if defects else 0
