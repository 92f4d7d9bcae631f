"""Plays schedules of the simulation from the command line, and prints the seeds that failed."""

import argparse
import os
import random
import signal
import sys
from typing import Any

from simulation.campaign import Campaign, play
from simulation.schedule import TRANSACTIONAL_EVERY


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=None, help="play this schedule only, and print it")
    parser.add_argument("--first", type=int, default=None, help="the first seed; drawn and printed if not given")
    parser.add_argument("--schedules", type=int, default=None, help="how many; without --seconds 1,000")
    parser.add_argument("--seconds", type=float, default=None, help="play for so long")
    parser.add_argument("--point", help="of a debug build: kill senders where they pass it, until 3 are dead")
    parser.add_argument("--transactions", action="store_true", help="only schedules that can have transactions")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    return parser.parse_args()


def main() -> int:
    chosen = arguments()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    if chosen.seed is not None:
        return _print_schedule(play(chosen.seed, 1, workers=1, lines=True, point=chosen.point))
    first = random.SystemRandom().randrange(10**9) if chosen.first is None else chosen.first
    count = chosen.schedules or (10**9 if chosen.seconds else 1000)
    step = TRANSACTIONAL_EVERY if chosen.transactions else 1
    first -= first % step
    print(f"seeds from {first} on", file=sys.stderr)
    shown = [0.0]

    def progress(campaign: Campaign, seconds: float) -> None:
        if seconds >= shown[0] + 1:
            shown[0] = seconds
            _progress(campaign, seconds)

    try:
        campaign = play(
            first,
            count,
            chosen.seconds,
            step=step,
            workers=chosen.workers,
            point=chosen.point,
            progress=progress,
            failed=lambda row: _report(row, chosen.point),
        )
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    print(file=sys.stderr)
    for name, number in sorted(campaign.met.items()):
        print(f"{name}: {number}")
    print(f"schedules: {campaign.schedules}, virtual time: {campaign.virtual_s:.0f} s, failed: {len(campaign.failed)}")
    return 1 if campaign.failed else 0


def _report(row: dict[str, Any], point: str | None) -> None:
    """Print a failed schedule, with the command that plays it again."""
    print(f"\nFAILED: python -m tests.simulation --seed {row['seed']}{f' --point {point}' if point else ''}")
    for line in row["defects"][:6]:
        print(f"    {line[:300]}", flush=True)


def _progress(campaign: Campaign, seconds: float) -> None:
    rate = campaign.schedules / seconds * 60 if seconds else 0.0
    text = f"\r{seconds:4.0f} s, {campaign.schedules} schedules, {rate:.0f} a minute, {len(campaign.failed)} failed "
    print(text, end="", file=sys.stderr, flush=True)


def _print_schedule(campaign: Campaign) -> int:
    for row in campaign.failed or ():
        print("\n".join(row["lines"]))
        print("\n".join(row["defects"]))
    for seed, digest in campaign.digests.items():
        print(f"seed {seed}, digest {digest}, {'FAILED' if campaign.failed else 'no defect'}")
    return 1 if campaign.failed else 0
