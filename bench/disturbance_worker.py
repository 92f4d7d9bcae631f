"""Sends to some partitions while their neighbours are disturbed: `python -m bench.disturbance_worker JSON`.

The process answers {"acknowledged": number of records, "figures": by name}. Two producers send at a fixed rate: one
whose records are timed, and the neighbour.
"""

import contextlib
import json
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from cyproducer import KafkaProducer

STOPPED_S, CONTINUED_S = 0.1, 0.005
WARM_UP_S = 15.0
SETTLED_S = 1.0
"""The first second of a disturbed interval is also reported apart: in it, further connections are opened."""


class Timed:
    """A producer whose records are timed. `times`: (when it was sent, ms) of each record of this interval."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.producer = KafkaProducer(bootstrap_servers=order["bootstrap"], **order["given"])
        self.times: list[tuple[float, float]] = []
        self.failed = 0
        self.acknowledged = 0

    def send(self, topic: str, partition: int, key: bytes | None) -> None:
        """Send a record and time it."""
        began = time.perf_counter()

        def done(error: BaseException | None, _: object) -> None:
            self.times.append((began, (time.perf_counter() - began) * 1e3))
            self.acknowledged += error is None
            self.failed += error is not None

        self.producer.send(topic, b"x" * 100, key, partition=partition, on_delivery=done)


@contextlib.contextmanager
def stopping(pid: int) -> Iterator[None]:
    """Stop and continue a process in turn until the end of the block."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(pid, signal.SIGCONT)
            ended.wait(CONTINUED_S)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)


def interval(order: dict[str, Any], timed: Timed, neighbour: Timed, seconds: float, key: bytes | None) -> None:
    """Send at the fixed rate with both producers, and wait for all results. `key`: of the neighbour's records."""
    begins, number = time.perf_counter(), 0
    while (now := time.perf_counter()) < begins + seconds:
        due = begins + number / order["rate"]
        if now < due:
            time.sleep(due - now)
        timed.send(order["own"], number % order["partitions"], b"k%d" % number)
        neighbour.send(order["neighbours"], number % order["neighbour_partitions"], key and b"%b%d" % (key, number))
        number += 1
    timed.producer.flush(60)
    neighbour.producer.flush(60)


def main() -> None:
    """Measure the order in the arguments."""
    order = json.loads(sys.argv[1])
    timed, neighbour = Timed(order), Timed(order)
    interval(order, timed, neighbour, WARM_UP_S, b"n")
    found: dict[str, list[float]] = {}
    poison = order["disturbance"] == "poison-neighbour"
    for disturbed in (False, True):
        timed.times.clear()
        began = time.perf_counter()
        with stopping(order["follower"]) if disturbed and not poison else contextlib.nullcontext():
            interval(order, timed, neighbour, order["seconds"], None if disturbed and poison else b"n")
        found["disturbed" if disturbed else "undisturbed"] = [took for _, took in timed.times]
        if disturbed:
            found["settled"] = [took for at, took in timed.times if at > began + SETTLED_S]
    cuts = {what: statistics.quantiles(times, n=100, method="inclusive") for what, times in found.items()}
    figures = {f"{what}_p99_ms": cut[98] for what, cut in cuts.items()}
    figures |= {f"{what}_p50_ms": cuts[what][49] for what in ("undisturbed", "disturbed")}
    figures["disturbed_times"] = figures["disturbed_p99_ms"] / figures["undisturbed_p99_ms"]
    figures["settled_times"] = figures["settled_p99_ms"] / figures["undisturbed_p99_ms"]
    figures["refused"] = float(neighbour.failed)
    if timed.failed:
        raise SystemExit(f"{timed.failed} of the timed records failed")
    print(json.dumps({"acknowledged": timed.acknowledged + neighbour.acknowledged, "figures": figures}), flush=True)
    timed.producer.close()
    neighbour.producer.close()


if __name__ == "__main__":
    main()
