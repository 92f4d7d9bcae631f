"""Runs one contestant in one measurement: `python -m bench.worker JSON`.

The process answers {"ready"} on standard output when it is connected and warmed up, or {"not_supported"}. Then it waits
for a line, does its job and answers with the result. It ends at the next line.
"""

import json
import os
import random
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.contestants import CONTESTANTS, Contestant, NotSupportedError
from bench.loads import Load


def cpu_ns() -> int:
    """Return the CPU time in ns of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time_ns() + int((children.ru_utime + children.ru_stime) * 1e9)


def pss_bytes() -> int:
    """Return the proportional set size of this process: each shared page is divided by the processes that map it."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("no Pss in /proc/self/smaps_rollup")


def thread_count() -> int:
    """Return the number of threads of this process, those of C libraries included."""
    return len(os.listdir("/proc/self/task"))


def throughput(contestant: Contestant, order: dict[str, Any]) -> dict[str, Any]:
    """Send as fast as possible, and repeat until the time is long enough to measure."""
    least_seconds, count = order["load"]["least_seconds"], order["count"]
    sent, begin, used = 0, time.monotonic_ns(), cpu_ns()
    while True:
        seconds = contestant.run(count)
        sent, end = sent + count, time.monotonic_ns()
        if seconds is not None:
            begin = end - int(seconds * 1e9)
            break
        if (end - begin) / 1e9 >= least_seconds:
            break
    return {"begin_ns": begin, "end_ns": end, "cpu_ns": cpu_ns() - used, "sent": sent}


def paced(contestant: Contestant, order: dict[str, Any]) -> dict[str, Any]:
    """Send messages with the load's rate for the load's duration."""
    load = Load(**order["load"])
    one, serve, sleep, clock = contestant.one, contestant.serve, time.sleep, time.monotonic
    count = int(load.rate * load.seconds)
    begin, used = time.monotonic_ns(), cpu_ns()
    # Sleep for at least a millisecond. The random start prevents that all processes send at the same moments.
    burst = max(1, load.rate // 1000)
    first = clock() + random.random() * burst / load.rate
    for at in range(0, count, burst):
        for number in range(at, min(at + burst, count)):
            one(number)
        serve()
        left = first + (at + burst) / load.rate - clock()
        if left > 0:
            sleep(left)
    contestant.finish()
    used, end = cpu_ns() - used, time.monotonic_ns()
    return {"begin_ns": begin, "end_ns": end, "cpu_ns": used, "sent": count}


def latency(contestant: Contestant, order: dict[str, Any]) -> dict[str, Any]:
    """Send one record at a time with the load's rate, wait for each, and return the times in ns."""
    load = Load(**order["load"])
    round_trip, clock = contestant.round_trip, time.perf_counter_ns
    count = int(load.rate * load.seconds)
    times = []
    begin, used = time.monotonic_ns(), cpu_ns()
    first = time.monotonic()
    for number in range(count):
        left = first + number / load.rate - time.monotonic()
        if left > 0:
            time.sleep(left)
        sent = clock()
        round_trip(number)
        times.append(clock() - sent)
    used, end = cpu_ns() - used, time.monotonic_ns()
    return {"begin_ns": begin, "end_ns": end, "cpu_ns": used, "sent": count, "times_ns": times}


def memory(contestant: Contestant, order: dict[str, Any]) -> dict[str, Any]:
    """Return PSS and threads at rest after the warm-up, and their maximum while sending with the load's rate."""
    bare, bare_threads = order["bare_bytes"], order["bare_threads"]
    rest = {"rest_bytes": pss_bytes() - bare, "rest_threads": thread_count() - bare_threads}
    done, most, threads = threading.Event(), 0, 0

    def watch() -> None:
        nonlocal most, threads
        while not done.wait(0.2):
            # This thread does not belong to the contestant.
            most, threads = max(most, pss_bytes()), max(threads, thread_count() - 1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answer = paced(contestant, order)
    finally:
        done.set()
        watcher.join()
    return {**answer, **rest, "load_bytes": most - bare, "load_threads": threads - bare_threads}


def warm_up(contestant: Contestant, order: dict[str, Any]) -> None:
    """Send `warmup` records before the measurement. The broker counts them too."""
    if order["job"] == "latency":
        for number in range(order["warmup"]):
            contestant.round_trip(number)
    elif order["job"] in ("paced", "memory"):
        for number in range(order["warmup"]):
            contestant.one(number)
        contestant.finish()
    elif order["warmup"]:
        contestant.run(order["warmup"])


JOBS: dict[str, Callable[[Contestant, dict[str, Any]], dict[str, Any]]] = {
    "throughput": throughput,
    "paced": paced,
    "latency": latency,
    "memory": memory,
}


def main() -> None:
    """Run the order: job, contestant, bootstrap, topics, load, settings, warmup, count."""
    order = json.loads(sys.argv[1])
    contestant = CONTESTANTS[order["contestant"]](order["topics"], Load(**order["load"]))
    # The memory until here belongs to the load's values; everything after this belongs to the producer.
    order["bare_bytes"], order["bare_threads"] = pss_bytes(), thread_count()
    try:
        contestant.open(order["bootstrap"], order["settings"])
        warm_up(contestant, order)
    except ModuleNotFoundError as error:
        print(json.dumps({"not_supported": f"{error.name} is not installed: pip install '.[bench]'"}), flush=True)
        return
    except NotSupportedError as error:
        print(json.dumps({"not_supported": str(error)}), flush=True)
        return
    print(json.dumps({"ready": True}), flush=True)
    if not sys.stdin.readline():
        return
    print(json.dumps(JOBS[order["job"]](contestant, order)), flush=True)
    # Wait: the CPU of the other measured processes is read before this producer ends.
    sys.stdin.readline()
    contestant.close()


if __name__ == "__main__":
    main()
