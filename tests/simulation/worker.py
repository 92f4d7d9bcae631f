"""Plays a block of schedules in a process of their own and prints a line of JSON for each.

The process is started with the library of virtual.c. It ends without any clean-up, because it has frozen threads.
"""

import argparse
import faulthandler
import json
import logging
import os
import sys

from support.crashpoints import points

from cyproducer.shm.native import DEBUG


def crash_points() -> list[str]:
    """Return the crash points of the engine; none in a release build, which has none."""
    if not DEBUG:
        return []
    return sorted(name for name, file in points().items() if file.startswith("sender/engine/"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--lines", action="store_true")
    parser.add_argument("--point")
    chosen = parser.parse_args()
    faulthandler.enable()
    from simulation.schedule import Machine

    machine = Machine(crash_points(), chosen.point)
    for seed in range(chosen.first, chosen.first + chosen.count * chosen.step, chosen.step):
        print(json.dumps({"begins": seed}), flush=True)
        result = machine.play(seed, logging.INFO if chosen.lines else logging.CRITICAL)
        row = {
            "seed": seed,
            "defects": result.defects,
            "digest": result.digest,
            "met": dict(result.met),
            "virtual_ms": result.virtual_ms,
            "lines": result.lines if chosen.lines or result.defects else [],
        }
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
