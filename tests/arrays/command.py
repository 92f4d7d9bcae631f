"""Makes generated calls of send_array() and send_arrow() on a stand-in sender, and prints the seed that failed."""

import argparse
import faulthandler
import random
import sys

from arrays.campaign import Wrong, play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.arrays", description=__doc__)
    parser.add_argument("--seed", type=int, help="make the call of this seed only")
    parser.add_argument("--first", type=int, help="the first seed; drawn and printed if not given")
    parser.add_argument("--calls", type=int, help="how many; 10,000 if neither this nor --seconds is given")
    parser.add_argument("--seconds", type=float, help="make calls for so long")
    chosen = parser.parse_args()
    faulthandler.enable()
    first = random.SystemRandom().randrange(10**9) if chosen.first is None else chosen.first
    count = chosen.calls or (10**9 if chosen.seconds else 10_000)
    if chosen.seed is not None:
        first, count = chosen.seed, 1
    print(f"seeds from {first} on", flush=True)
    try:
        met = play(first, count, chosen.seconds)
    except Wrong as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{sum(met.values())} calls: {dict(sorted(met.items()))}")
    return 0
