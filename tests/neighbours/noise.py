"""Runs as a noisy front-end: one process runs one function, until its standard input ends.

Arguments: the name of the function, the sender's socket, and the function's own. It prints "ready" when it is set up,
and begins with the next line of its standard input.
"""

import os
import resource
import sys
import threading
import time
from collections.abc import Callable

from cyproducer import KafkaProducer

MIB = 1 << 20
LONG = {"max_block_ms": 600_000, "delivery_timeout_ms": 600_000}


def wait_for_go() -> None:
    """Print that all is set up; return when the noise is to begin. From then on the end of stdin ends the process."""
    print("ready", flush=True)
    sys.stdin.readline()
    threading.Thread(target=lambda: sys.stdin.readline() or os._exit(0), daemon=True).start()


def everywhere(path: str, partitions: int, size: int, pause_s: float, measured: int) -> None:
    """Send a record of `size` bytes to each partition except that of the measured front-end, again and again."""
    producer = KafkaProducer(sender=path, buffer_memory=192 * MIB, linger_ms=50, **LONG)
    value = b"x" * size
    for partition in range(partitions):
        producer.send("t", b"first", partition=partition)
    producer.flush(60)
    wait_for_go()
    while True:
        for partition in range(partitions):
            if partition != measured:
                producer.send("t", value, partition=partition)
        time.sleep(pause_s)


def come_and_go(path: str, memory_mib: int) -> None:
    """Attach with a large arena, send a record, and close the producer."""
    wait_for_go()
    while True:
        with KafkaProducer(sender=path, buffer_memory=memory_mib * MIB) as producer:
            producer.send("t", b"x").result(60)
        time.sleep(0.2)


def want(path: str, topics: int) -> None:
    """Ask for the metadata of a known topic in a loop, beside `topics` more."""
    producer = KafkaProducer(sender=path, **LONG)
    for number in range(topics):
        producer.send(f"wanted-{number}", b"x")
    producer.flush(600)
    session = producer._channel().session
    wait_for_go()
    while True:
        session.want_topic("wanted-0")


def many_topics(path: str, topics: int, first: int) -> None:
    """Begin to use one topic after the other."""
    producer = KafkaProducer(sender=path, buffer_memory=256 * MIB, **LONG)
    wait_for_go()
    for number in range(first, first + topics):
        producer.send(f"a-topic-with-a-name-of-usual-length-{number}", b"x")
    threading.Event().wait()


def idle(path: str, count: int) -> None:
    """Attach this many front-ends, each of which sends one record."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    producers = [KafkaProducer(sender=path, buffer_memory=MIB) for _ in range(count)]
    for producer in producers:
        producer.send("t", b"x")
    for producer in producers:
        producer.flush(60)
    wait_for_go()
    threading.Event().wait()


KINDS: dict[str, Callable[..., None]] = {
    function.__name__: function for function in (everywhere, come_and_go, want, many_topics, idle)
}


def main() -> None:
    name, path, *numbers = sys.argv[1:]
    KINDS[name](path, *(float(text) if "." in text else int(text) for text in numbers))


if __name__ == "__main__":
    main()
