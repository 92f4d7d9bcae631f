"""Forks idle front-ends from one producer: `python -m bench.idle_worker JSON`.

Each front-end sends one record, waits for its outcome, and then does nothing until the parent ends. The parent answers
{"pids", "seconds"}.
"""

import json
import os
import sys
import time

from bench.loads import Load, values_of
from cyproducer import KafkaProducer

AT_ONCE = 20


def front_end(producer: KafkaProducer, topic: str, ready: int, life: int) -> None:
    """Run a child: attach by sending a record, notify the parent, and wait for the end of the parent."""
    producer.send(topic, values_of(Load())[0]).result(60)
    os.write(ready, b"+")
    os.read(life, 1)


def main() -> None:
    """Fork the front-ends, a few at a time, answer, and wait for a line."""
    order = json.loads(sys.argv[1])
    producer = KafkaProducer(bootstrap_servers=order["bootstrap"], **order["given"])
    said, ready = os.pipe()
    life, held = os.pipe()
    pids: list[int] = []
    begin = time.monotonic()
    while len(pids) < order["count"]:
        group = min(AT_ONCE, order["count"] - len(pids))
        for _ in range(group):
            pid = os.fork()
            if pid == 0:
                os.close(held)
                status = 1
                try:
                    front_end(producer, order["topic"], ready, life)
                    status = 0
                finally:
                    os._exit(status)
            pids.append(pid)
        while group:
            if os.waitpid(-1, os.WNOHANG)[0]:
                raise SystemExit("an idle front-end failed")
            group -= len(os.read(said, group))
    print(json.dumps({"pids": pids, "seconds": time.monotonic() - begin}), flush=True)
    sys.stdin.readline()
    os.close(held)
    for pid in pids:
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
