"""Measures the cost of a call of `send()` for its caller, with bursts that fit in the buffer, so that no call waits.

`python -m bench.calls JSON` is the measured process: it answers a line with a name with the ns per call. The figure is
the CPU time of the thread, because the sender may use the same core meanwhile. It includes the loop around the calls.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.brokers import Broker
from bench.contestants import CONTESTANTS
from bench.loads import HEADERS, KEY_BYTES, Load, Sent, values_of
from bench.processes import Worker, hear, say, workers_of
from bench.work import Before, Figures, check

BURST = 10_000
KEY = b"k" * KEY_BYTES
Call = Callable[[Any, Sequence[int]], object]


class Empty:
    """A method that does nothing, for comparison."""

    def send(self, topic: str, value: bytes) -> None:
        """Do nothing."""


def loops(topic: str, value: bytes) -> dict[str, Call]:
    """Return the measured calls by name. Each takes a producer's send() and a sequence for its loop."""

    def loop(send: Any, each: Sequence[int]) -> None:
        for _ in each:
            pass

    def python_method(send: Any, each: Sequence[int]) -> None:
        send = Empty().send
        for _ in each:
            send(topic, value)

    def plain(send: Any, each: Sequence[int]) -> None:
        for _ in each:
            send(topic, value)

    def keyword(send: Any, each: Sequence[int]) -> None:
        for _ in each:
            send(topic, value=value)

    def keyed(send: Any, each: Sequence[int]) -> None:
        for _ in each:
            send(topic, value=value, key=KEY)

    def headers(send: Any, each: Sequence[int]) -> None:
        for _ in each:
            send(topic, value=value, key=KEY, headers=HEADERS)

    return {
        "loop": loop,
        "python_method": python_method,
        "send": plain,
        "send value=": keyword,
        "send value= key=": keyed,
        "send value= key= headers=": headers,
        "send kept": lambda send, each: [send(topic, value) for _ in each],
        "send kept value= key=": lambda send, each: [send(topic, value=value, key=KEY) for _ in each],
        "send kept value= key= headers=": lambda send, each: [
            send(topic, value=value, key=KEY, headers=HEADERS) for _ in each
        ],
    }


def given(load: Load, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the producer's settings; loops that send nothing have none."""
    return {"sender_idle_timeout_ms": 60_000, **settings} if name.startswith("send") else {}


def record_of(name: str, value: bytes) -> Sent:
    """Return the record that the call of that name sends."""
    return Sent(value, KEY if "key=" in name else None, tuple(HEADERS) if "headers=" in name else ())


@contextmanager
def stage(
    broker: Broker, topics: list[str], load: Load, settings: dict[str, Any]
) -> Iterator[Callable[[str], Figures]]:
    """Start a process for all calls; the result is a function from a call's name to its figures."""
    order = {"bootstrap": broker.bootstrap, "topic": topics[0], "given": given(load, "send", settings)}
    codecs = CONTESTANTS["send"].codecs(load, settings)
    value = values_of(load)[0]
    with workers_of([order], "bench.calls") as (worker,):
        hear(worker, "the process of the calls")
        yield lambda name: _measure(broker, topics, load, worker, name, record_of(name, value), codecs)


def _measure(
    broker: Broker, topics: list[str], load: Load, worker: Worker, name: str, record: Sent, codecs: set[str | None]
) -> Figures:
    before = Before(broker, topics)
    say(worker, name)
    answer = hear(worker, name)
    check(broker, topics, load, name, answer["sent"], before, {record}, codecs)
    return {"ns": answer["ns"]}


def main() -> None:
    """Measure the calls that the input names, until the input ends."""
    from cyproducer import KafkaProducer

    order = json.loads(sys.argv[1])
    each = range(BURST)
    with KafkaProducer(bootstrap_servers=order["bootstrap"], **order["given"]) as producer:
        calls = loops(order["topic"], values_of(Load())[0])
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            name = line.strip()
            if name not in calls:
                break
            # Count only the second of two bursts: the first one touches its pages for the first time.
            for _ in range(2):
                begin = time.thread_time_ns()
                kept = calls[name](producer.send, each)
                used = time.thread_time_ns() - begin
                del kept
                producer.flush()
            sent = 2 * BURST if name.startswith("send") else 0
            print(json.dumps({"ns": used / BURST, "sent": sent}), flush=True)


if __name__ == "__main__":
    main()
