"""The process of one contestant in one round: ``python -m bench.worker JSON``.

Answers {"ready"} on its standard output when it is connected and warm, waits for a line, sends, and answers
with what that took.
"""

import json
import sys
import time

from bench.contestants import CONTESTANTS


def main() -> None:
    """Run the order: contestant, bootstrap, topic, value_bytes, settings, warmup, count."""
    order = json.loads(sys.argv[1])
    contestant = CONTESTANTS[order["contestant"]](
        order["bootstrap"], order["topic"], order["value_bytes"], order["settings"]
    )
    contestant.run(order["warmup"])
    print(json.dumps({"ready": True}), flush=True)
    if not sys.stdin.readline():
        return
    begin, used = time.monotonic_ns(), time.process_time_ns()
    contestant.run(order["count"])
    used, end = time.process_time_ns() - used, time.monotonic_ns()
    print(json.dumps({"begin_ns": begin, "end_ns": end, "cpu_ns": used}), flush=True)
    # The CPU of what is measured beside this process is read before the producer ends.
    sys.stdin.readline()
    contestant.close()


if __name__ == "__main__":
    main()
