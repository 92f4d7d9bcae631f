"""What a call of ``send()`` costs its caller, in ns: bursts that fit in the buffer, so that nothing waits.

The thread's own CPU time is taken, since the sender may work on the same core meanwhile. The loop around the
call is in the figures; its own cost, and that of an empty method, are printed with them.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench import report, runner
from bench.brokers import NullBroker
from bench.measure import machine, summary
from cyproducer import KafkaProducer

BURST = 10_000
BURSTS = 30
HEADERS = [("trace", b"0123456789abcdef"), ("kind", b"bench")]


class Empty:
    """A method that does nothing, for comparison."""

    def send(self, topic: str, value: bytes) -> None:
        """Nothing."""


def loops(topic: str, value: bytes, key: bytes) -> dict[str, Callable[[Any, Sequence[int]], object]]:
    """The calls measured, by name; each takes a producer and what to loop over."""

    def nothing(_: Any, each: Sequence[int]) -> None:
        for _ in each:
            pass

    def empty(_: Any, each: Sequence[int]) -> None:
        send = Empty().send
        for _ in each:
            send(topic, value)

    def plain(producer: Any, each: Sequence[int]) -> None:
        send = producer.send
        for _ in each:
            send(topic, value)

    def keyword(producer: Any, each: Sequence[int]) -> None:
        send = producer.send
        for _ in each:
            send(topic, value=value)

    def keyed(producer: Any, each: Sequence[int]) -> None:
        send = producer.send
        for _ in each:
            send(topic, value=value, key=key)

    def headers(producer: Any, each: Sequence[int]) -> None:
        send = producer.send
        for _ in each:
            send(topic, value=value, key=key, headers=HEADERS)

    def kept(producer: Any, each: Sequence[int]) -> object:
        send = producer.send
        return [send(topic, value) for _ in each]

    def kept_keyed(producer: Any, each: Sequence[int]) -> object:
        send = producer.send
        return [send(topic, value=value, key=key) for _ in each]

    def kept_headers(producer: Any, each: Sequence[int]) -> object:
        send = producer.send
        return [send(topic, value=value, key=key, headers=HEADERS) for _ in each]

    return {
        "the loop alone": nothing,
        "an empty method": empty,
        "value, future dropped": plain,
        "value=, future dropped": keyword,
        "value=, key=, future dropped": keyed,
        "value=, key=, 2 headers, future dropped": headers,
        "value, future kept": kept,
        "value=, key=, future kept": kept_keyed,
        "value=, key=, 2 headers, future kept": kept_headers,
    }


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure, print and return everything."""
    calls = loops("micro", b"v" * args.value_bytes, b"k" * 16)
    each = range(BURST)
    found: dict[str, list[float]] = {name: [] for name in calls}
    with NullBroker(args.partitions) as null, runner.own_senders():
        settings = {"bootstrap_servers": null.bootstrap, "sender_idle_timeout_ms": 60_000, **args.cyproducer}
        with KafkaProducer(**settings) as producer:
            for call in calls.values():
                call(producer, each)
                producer.flush()
            for _ in range(BURSTS):
                for name, call in calls.items():
                    begin = time.thread_time_ns()
                    kept = call(producer, each)
                    used = time.thread_time_ns() - begin
                    del kept
                    producer.flush()
                    found[name].append(used / BURST)
        if null.faults():
            print(f"the null broker refused {null.faults()} batches", file=sys.stderr)
    rows = [
        [name, f"{statistics.median(ns):.0f}", f"{min(ns):.0f}", f"{max(ns):.0f}"]
        for name, ns in found.items()
    ]
    print(report.table(["ns per call, the loop included", "median", "min", "max"], rows))
    return {"machine": machine(), "burst": BURST, "ns_per_call": {n: summary(ns) for n, ns in found.items()}}
