"""Runs as the fuzzer's process: one attack after another from a seed, each in its own child, until it is killed.

Arguments: socket, topic, partitions, seed, names of attacks (all if none). Prints "round N NAME" before each attack and
"attached ID" for every front-end that attaches.
"""

import ctypes
import os
import random
import signal
import sys
import time
import traceback

from hostile.attacks import ATTACKS
from hostile.stranger import Stranger

LIFE_S = 30.0
PR_SET_PDEATHSIG = 1


def one_round(path: str, topic: str, partitions: int, seed: int, name: str) -> None:
    """Run one attack as a front-end, in the child."""
    generator = random.Random(seed)
    acks = generator.choice((-1, -1, -1, 1, 0))
    linger = generator.choice((0, 0, 5))
    try:
        with Stranger(path, topic, partitions, generator, acks=acks, linger_ms=linger) as front_end:
            ATTACKS[name](front_end)
    except (OSError, TimeoutError):
        print("trouble", traceback.format_exc().splitlines()[-1], flush=True)


def main() -> None:
    path, topic, partitions, seed, *only = sys.argv[1:]
    generator = random.Random(int(seed))
    names = only or sorted(ATTACKS)
    libc = ctypes.CDLL(None)
    number = 0
    while True:
        name = generator.choice(names)
        of_round = generator.getrandbits(60)
        print(f"round {number} {name}", flush=True)
        number += 1
        child = os.fork()
        if child == 0:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            try:
                one_round(path, topic, int(partitions), of_round, name)
            except BaseException:
                traceback.print_exc()
            os._exit(0)
        end = time.monotonic() + LIFE_S
        while os.waitpid(child, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                print(f"hung in {name}", flush=True)
                os.kill(child, signal.SIGKILL)
            time.sleep(0.002)


if __name__ == "__main__":
    main()
