"""Runs the fuzzer from the command line: `python -m tests.hostile --seconds 3600 --seed 7`."""

import argparse
import os
import random
import shutil
import tempfile
from pathlib import Path

from devkafka.node import KafkaCluster

from hostile.attacks import ATTACKS
from hostile.campaign import fuzz
from hostile.message_campaign import fuzz_messages


def main() -> int:
    """Return 0 if the correct front-ends have lost nothing and the sender has survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="duration (default 60)")
    parser.add_argument("--seed", type=int, default=None, help="seed of the attacks' order and noise (default: random)")
    parser.add_argument("--only", nargs="*", choices=sorted(ATTACKS), default=[], help="only these attacks")
    parser.add_argument(
        "--messages",
        type=int,
        metavar="N",
        help="instead, N examples of control messages for a sender, and N for a front-end; needs no broker",
    )
    given = parser.parse_args()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    if given.messages is not None:
        return fuzz_messages(given.messages, seed, lambda text: print(text, flush=True))
    directory = Path(tempfile.mkdtemp(prefix="cyp-hostile-", dir="/tmp"))
    os.environ["CYPRODUCER_RUNTIME_DIR"] = str(directory)
    with KafkaCluster(1) as kafka:
        verdict = fuzz(kafka, directory, given.seconds, seed, given.only, lambda text: print(text, flush=True))
    if verdict.complaints:
        print(f"the sender's log is {directory}/sender.log")
        return 1
    shutil.rmtree(directory)
    return 0
