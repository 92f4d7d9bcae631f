"""Measures one front-end's send().result() beside noisy front-ends and sick brokers: `python -m tests.neighbours`."""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from neighbours.run import measure
from neighbours.scenarios import SCENARIOS


def main() -> int:
    """Return 0 if all scenarios that were run are within their budgets."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.neighbours",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="scenarios:\n" + "\n".join(f"  {name:12} {scenario.text}" for name, scenario in SCENARIOS.items()),
    )
    parser.add_argument("--seconds", type=float, default=180.0, help="duration of each scenario (default 180)")
    parser.add_argument("--only", nargs="*", choices=list(SCENARIOS), default=[], help="only these scenarios")
    given = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="cyp-neighbours-", dir="/tmp"))
    os.environ["CYPRODUCER_RUNTIME_DIR"] = str(directory)

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(text, file=sys.stderr, flush=True)

    over = []
    for name in given.only or SCENARIOS:
        outcome = measure(name, SCENARIOS[name], directory, given.seconds, progress)
        progress("")
        print(outcome.text(), flush=True)
        if not outcome.in_budget:
            over.append(name)
    if over:
        print(f"over their budgets: {', '.join(over)}; the sender's log is {directory}/neighbours.log")
        return 1
    shutil.rmtree(directory)
    return 0
