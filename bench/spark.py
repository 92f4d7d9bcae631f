"""Measures ways to write from Spark in one session.

These are the sinks `cyproducer` and Spark's own `kafka`, two sinks that write nothing, and the functions `write` and
`exactly_once`. The latter writes one micro-batch, after an empty one that begins its transactions.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from bench.brokers import Broker
from bench.contestants import NotSupportedError
from bench.loads import Load, Sent
from bench.measure import CpuMeter, busy_ns, tree_of
from bench.processes import Worker, hear, say, sender_pids, workers_of
from bench.work import Before, Figures, LostError, topics_on

OURS = {"spark_cyproducer": "cyproducer", "spark_write": "write()", "spark_exactly_once": "exactly_once()"}
WRITES = OURS | {"spark_kafka": "kafka"}
WRITES_NOTHING = {"spark_noop_arrow": "noop_arrow", "spark_noop": "noop"}
SINKS = WRITES | WRITES_NOTHING
HEX_OF_MD5 = 32


def given(load: Load, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the options `kafka.*` of a sink; sinks that write nothing have none. `settings` are for our sink."""
    if name not in WRITES:
        return {}
    chosen = {
        "acks": "all",
        "enable.idempotence": "true",
        "linger.ms": "5",
        "batch.size": "65536",
    }
    if name in OURS:
        chosen |= {"sender.idle.timeout.ms": "120000", **{what: str(value) for what, value in settings.items()}}
    return chosen


@contextmanager
def stage(
    broker: Broker, load: Load, settings: dict[str, Any], names: Iterable[str] = SINKS
) -> Iterator[Callable[[str], Figures]]:
    """Start a session with cached rows; each of `names` writes once before, so that the JVM compiles."""
    order = {"rows": load.messages, "value_bytes": load.value_bytes, "digests": digests_of(load.value_bytes)}
    with workers_of([order], "bench.spark_worker") as (spark,):
        absent = hear(spark, "Spark")["absent"]

        def measure(name: str) -> Figures:
            if SINKS[name] in absent:
                raise NotSupportedError(absent[SINKS[name]])
            return _measure(broker, spark, load, name, given(load, name, settings))

        for name in names:
            with suppress(NotSupportedError):
                measure(name)
        yield measure


def _measure(broker: Broker, spark: Worker, load: Load, name: str, chosen: dict[str, Any]) -> Figures:
    """Measure one sink once. The part of the "front-end" is all of Spark: driver, JVM, Python workers."""
    with topics_on(broker, load) as topics:
        before = Before(broker, topics)
        options = {"kafka.bootstrap.servers": broker.bootstrap, "topic": topics[0]} if name in WRITES else {}
        options |= {f"kafka.{what}": value for what, value in chosen.items()}
        say(spark, json.dumps({"sink": SINKS[name], "options": options}))
        hear(spark, "Spark")  # it is ready
        clients, senders = CpuMeter(tree_of(spark.pid)), CpuMeter(sender_pids())
        brokers, busy = CpuMeter(broker.pids), busy_ns()
        say(spark, "write")
        answer = hear(spark, "Spark")
        client, broker_cpu, busy = clients.used(tree_of(spark.pid)), brokers.used(), busy_ns() - busy
        sender = senders.used(sender_pids()) if name in OURS else 0
        arrived = broker.records(topics) - before.records
        # Spark may write a row twice, but must not lose a row.
        if name in WRITES and arrived < load.messages:
            raise LostError(f"{name}: {load.messages} rows were written, but the topic grew by only {arrived}")
        if name in WRITES:
            _check_sample(broker, topics, load, name)
    took = (answer["end_ns"] - answer["begin_ns"]) / 1e9
    return {
        "messages": load.messages,
        "seconds": took,
        "rate": load.messages / took,
        "job_ms": took * 1e3,
        "cpu_us": (client + sender) / 1e3 / load.messages,
        "front_end_us": client / 1e3 / load.messages,
        "sender_us": sender / 1e3 / load.messages,
        "broker_us": broker_cpu / 1e3 / load.messages,
        "foreign_cores": max(0, busy - client - sender - broker_cpu) / 1e9 / took,
    }


def digests_of(value_bytes: int) -> int:
    """Return how many MD5 digests in hexadecimal digits a value consists of."""
    return -(-value_bytes // HEX_OF_MD5)


def row_of(number: int, value_bytes: int) -> Sent:
    """Return a row as Spark makes it: the number as key, and digests of it and of the next numbers as value."""
    text = "".join(hashlib.md5(b"%d" % (number + i)).hexdigest() for i in range(digests_of(value_bytes)))
    return Sent(text[:value_bytes].encode(), b"%d" % number)


def _check_sample(broker: Broker, topics: list[str], load: Load, name: str) -> None:
    """Raise LostError unless the records of a sample are rows exactly as they were written."""
    records = broker.sample(topics, ()).records
    numbers = [int(record.key) if record.key and record.key.isdigit() else -1 for record in records]
    if not records or any(
        not 0 <= number < load.messages or record != row_of(number, load.value_bytes)
        for number, record in zip(numbers, records, strict=True)
    ):
        raise LostError(f"{name}: the records that were read back differ from the rows that were written")
