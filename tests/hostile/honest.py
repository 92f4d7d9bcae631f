"""Runs as a correct front-end: sends numbered records to a topic until stdin ends, and prints the results as JSON.

Arguments: socket, topic, own name, records per second. Every acknowledged record adds a term made of its number and
offset to a sum, which is compared with the log. Printed: {"sent", "sums": {partition: sum}, "failed": [text],
"latency_ms": {"p50", "p99", "max"}}.
"""

import json
import select
import sys
import time
from collections import Counter
from typing import Any

from cyproducer import KafkaProducer

PER_TURN_S = 0.02
FAILURES_SHOWN = 10


def term(number: int, offset: int) -> int:
    """Return what one record adds to its partition's sum."""
    return (number + 1) * (offset + 7) % ((1 << 61) - 1)


def main() -> None:
    path, topic, name, rate = sys.argv[1:]
    producer = KafkaProducer(sender=path, linger_ms=2)
    sums: Counter[int] = Counter()
    failed: list[str] = []
    latencies: list[float] = []
    pending: list[tuple[int, float, Any]] = []
    sent = 0
    print("ready", flush=True)

    def collect(everything: bool) -> None:
        while pending and (everything or pending[0][2].done()):
            number, began, future = pending.pop(0)
            try:
                metadata = future.result(60)
            except Exception as error:
                failed.append(f"{number}: {error!r}")
                continue
            latencies.append(time.monotonic() - began)
            sums[metadata.partition] += term(number, metadata.offset)

    while not select.select([sys.stdin], [], [], PER_TURN_S)[0]:
        for _ in range(max(1, int(int(rate) * PER_TURN_S))):
            value = b"%s %d" % (name.encode(), sent)
            pending.append((sent, time.monotonic(), producer.send(topic, value, key=b"%d" % (sent % 50))))
            sent += 1
        collect(False)
    collect(True)
    producer.close(60)
    latencies.sort()
    at = {
        label: latencies[min(int(len(latencies) * part), len(latencies) - 1)] * 1000
        for label, part in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }
    print(
        json.dumps(
            {"sent": sent, "sums": sums, "failed": failed[:FAILURES_SHOWN], "failures": len(failed), "latency_ms": at}
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
