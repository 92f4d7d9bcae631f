"""Runs as the measured front-end: sends one record and waits for its result, every 20 ms.

Arguments: the sender's socket, its partition. For each line with a number of seconds on standard input it prints what
it measured in that time: {"n", "p50", "p99", "max"} in ms, and the errors {"failed": [text]}.
"""

import json
import sys
import time
from typing import Any

from cyproducer import KafkaProducer

PAUSE_S = 0.02
TIMEOUT_S = 200.0


def measure(producer: KafkaProducer, partition: int, seconds: float) -> dict[str, Any]:
    """Send for `seconds`; return the latencies."""
    taken: list[float] = []
    failed: list[str] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        try:
            producer.send("t", b"honest", partition=partition).result(TIMEOUT_S)
        except Exception as error:
            failed.append(repr(error))
        taken.append((time.monotonic() - began) * 1e3)
        time.sleep(PAUSE_S)
    taken.sort()
    at = {name: taken[min(int(len(taken) * part), len(taken) - 1)] for name, part in (("p50", 0.5), ("p99", 0.99))}
    return {"n": len(taken), **at, "max": taken[-1], "failed": failed[:5]}


def main() -> None:
    path, partition = sys.argv[1:]
    with KafkaProducer(sender=path, linger_ms=0, delivery_timeout_ms=300_000) as producer:
        producer.send("t", b"honest", partition=int(partition)).result(60)
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(measure(producer, int(partition), float(line))), flush=True)


if __name__ == "__main__":
    main()
