"""Starts a run with transactional front-ends from the command line."""

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from devkafka.node import KafkaCluster

from transactional.run import Plan, run


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.transactional",
        description="Kills transactional front-ends, senders and brokers at random; checks what readers see.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--kills", type=int, default=200, help="SIGKILLs; stops come on top")
    parser.add_argument("--seed", type=int, default=None, help="seed of the schedule; drawn and printed if not given")
    parser.add_argument("--transaction-version", type=int, default=2, help="of the cluster: 2 is KIP-890, 1 before it")
    parser.add_argument("--keep", metavar="DIR", help="for journals and logs; default: temporary, removed if clean")
    chosen = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if chosen.seed is None else chosen.seed
    directory = Path(chosen.keep or tempfile.mkdtemp(prefix="cyp-txn-"))
    runtime = tempfile.mkdtemp(prefix="cyp-")
    os.environ["CYPRODUCER_RUNTIME_DIR"] = runtime
    print(f"seed {seed}, {chosen.kills} kills, in {directory}", file=sys.stderr, flush=True)
    with KafkaCluster(3, features={"transaction.version": chosen.transaction_version}) as cluster:
        result = run(
            Plan(chosen.kills, seed, chosen.kills * 1.5, chosen.transaction_version < 2), cluster, directory, True
        )
    print(result.text())
    for log in Path(runtime).glob("*.log*"):
        shutil.copy(log, directory)
    shutil.rmtree(runtime, ignore_errors=True)
    if result.clean and not chosen.keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        print(f"journals and logs are in {directory}", file=sys.stderr)
    return 0 if result.clean else 1
