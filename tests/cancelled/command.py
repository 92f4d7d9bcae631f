"""Runs transactions with calls that are cancelled, from the command line."""

import argparse
import os
import random
import shutil
import sys
import tempfile

from devkafka.node import KafkaCluster

from cancelled.campaign import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.cancelled",
        description="Cancels the calls of transactions in asyncio after random times, repeats them, and checks what "
        "readers of committed records see.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--transactions", type=int, default=10_000, help="of all producers together")
    parser.add_argument("--threads", type=int, default=4, help="busy threads in the same process")
    parser.add_argument("--seed", type=int, default=None, help="seed of the limits; drawn and printed if not given")
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    runtime = tempfile.mkdtemp(prefix="cyp-")
    os.environ["CYPRODUCER_RUNTIME_DIR"] = runtime
    print(f"seed {seed}, {chosen.transactions} transactions", file=sys.stderr, flush=True)
    try:
        with KafkaCluster(1) as cluster:
            topic = cluster.create_topic("cancelled", 1)
            plan = Plan(chosen.transactions, chosen.threads, seed)
            result = run(plan, cluster.bootstrap_servers, topic, progress=True)
    finally:
        shutil.rmtree(runtime, ignore_errors=True)
    print(result.text())
    return 1 if result.defects else 0
