"""Runs the campaign of alarms on a Kafka node of its own, or on a given one, and prints what it has found."""

import argparse
import faulthandler
import logging
import random
import sys
import time
from typing import TextIO

from devkafka.node import KafkaCluster

from alarms.campaign import Campaign, create_topic


class LockFree(logging.StreamHandler[TextIO]):
    """Writes log lines without a lock: an alarm in its release would leave it held, and other threads would hang."""

    def createLock(self) -> None:
        self.lock = None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.alarms", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long alarms ring; 60 by default")
    parser.add_argument("--seed", type=int, help="of the order of the calls; drawn and printed if not given")
    parser.add_argument("--bootstrap-servers", help="a Kafka node; one is started if not given")
    chosen = parser.parse_args()
    faulthandler.enable()
    logging.basicConfig(handlers=[LockFree()])
    logging.getLogger("cyproducer").setLevel(logging.ERROR)  # close() warns of records without an outcome
    seed = random.SystemRandom().randrange(10**9) if chosen.seed is None else chosen.seed
    print(f"seed {seed}", flush=True)
    if chosen.bootstrap_servers:
        return _run(chosen.bootstrap_servers, chosen.seconds, seed)
    with KafkaCluster() as cluster:
        return _run(cluster.bootstrap_servers, chosen.seconds, seed)


def _run(bootstrap_servers: str, seconds: float, seed: int) -> int:
    topic = f"alarms-{time.time_ns()}"
    create_topic(bootstrap_servers, topic)
    campaign = Campaign(bootstrap_servers, topic, seed)
    campaign.run(seconds)
    defects = campaign.defects()
    print(f"{campaign.rung} alarms in {sum(campaign.calls.values())} calls: {dict(sorted(campaign.calls.items()))}")
    for defect in defects:
        print(f"DEFECT: {defect}", file=sys.stderr)
    return bool(defects)
