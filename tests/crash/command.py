"""Runs crash points from the command line, which selects points and signals, and prints the results."""

import argparse
import logging
import os
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from devkafka.node import KafkaCluster
from support import build
from support.crashpoints import Trigger, points

from crash.scenario import reachable, run_all


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--point", action="append", metavar="NAME", help="only these points (a prefix is enough)")
    parser.add_argument("--signal", action="append", choices=("KILL", "STOP"), help="default: both")
    parser.add_argument("--list", action="store_true", help="list the points and their source lines")
    chosen = parser.parse_args()
    known = points()
    names = [n for n in reachable() if not chosen.point or n.startswith(tuple(chosen.point))]
    if chosen.list:
        print("\n".join(f"{name:32} {known[name]}" for name in names))
        return 0
    if not build.is_debug():
        parser.error("crash points are in debug builds only: CYPRODUCER_DEBUG=1 python setup.py build_ext --inplace")
    logging.getLogger("cyproducer").setLevel(logging.ERROR)  # points that are excluded on purpose
    directory = Path(tempfile.mkdtemp(prefix="cyp-crash-"))
    os.environ["CYPRODUCER_RUNTIME_DIR"] = tempfile.mkdtemp(prefix="cyp-")
    clean = True
    with KafkaCluster() as cluster:
        for word in chosen.signal or ("KILL", "STOP"):
            trigger = Trigger(directory)
            began = time.monotonic()
            report = run_all(cluster, directory / word, trigger, names, signal.Signals[f"SIG{word}"], aloud=True)
            print(f"SIG{word} at {len(names)} points in {time.monotonic() - began:.0f} s")
            print("\n".join(report.lines()))
            clean = clean and report.clean
            trigger.close()
    for log in Path(os.environ["CYPRODUCER_RUNTIME_DIR"]).glob("*.log*"):
        shutil.copy(log, directory)
    shutil.rmtree(os.environ["CYPRODUCER_RUNTIME_DIR"], ignore_errors=True)
    if clean:
        shutil.rmtree(directory)
    else:
        print(f"journals and logs are in {directory}", file=sys.stderr)
    return 0 if clean else 1
