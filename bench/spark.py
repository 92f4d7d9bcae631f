"""Spark's sinks in one session: `cyproducer`, Spark's own `kafka`, and two that write nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.brokers import Broker
from bench.loads import Load
from bench.measure import CpuMeter, busy_ns, tree_of
from bench.processes import Worker, hear, say, sender_pids, workers_of
from bench.work import Before, Figures, LostError, topics_on

WRITES = {"spark_cyproducer": "cyproducer", "spark_kafka": "kafka"}
WRITES_NOTHING = {"spark_noop_arrow": "noop_arrow", "spark_noop": "noop"}
SINKS = WRITES | WRITES_NOTHING


@contextmanager
def stage(broker: Broker, load: Load, settings: dict[str, Any]) -> Iterator[Callable[[str], Figures]]:
    """A session whose rows are cached and whose sinks have written once: a JVM's first job is the compiler's."""
    order = {"rows": load.messages, "value_bytes": load.value_bytes, "settings": settings}
    with workers_of([order], "bench.spark_worker") as (spark,):
        hear(spark, "Spark")
        for name in SINKS:
            _measure(broker, spark, load, name)
        yield lambda name: _measure(broker, spark, load, name)


def _measure(broker: Broker, spark: Worker, load: Load, name: str) -> Figures:
    """One sink once; "front-end" is Spark as a whole: driver, JVM, Python workers."""
    with topics_on(broker, load) as topics:
        before = Before(broker, topics)
        clients, senders = CpuMeter(tree_of(spark.pid)), CpuMeter(sender_pids())
        brokers, busy = CpuMeter(broker.pids), busy_ns()
        say(spark, f'{{"sink": "{SINKS[name]}", "bootstrap": "{broker.bootstrap}", "topic": "{topics[0]}"}}')
        answer = hear(spark, "Spark")
        client, broker_cpu, busy = clients.used(tree_of(spark.pid)), brokers.used(), busy_ns() - busy
        sender = senders.used(sender_pids()) if name == "spark_cyproducer" else 0
        arrived = broker.records(topics) - before.records
        # Spark may write a row twice; it may not lose one.
        if name in WRITES and arrived < load.messages:
            raise LostError(f"{name}: {load.messages} rows were written, the topic grew by {arrived}")
        if name in WRITES:
            _check_sample(broker, topics, load, name)
    took = (answer["end_ns"] - answer["begin_ns"]) / 1e9
    return {
        "messages": load.messages,
        "seconds": took,
        "rate": load.messages / took,
        "cpu_us": (client + sender) / 1e3 / load.messages,
        "front_end_us": client / 1e3 / load.messages,
        "sender_us": sender / 1e3 / load.messages,
        "broker_us": broker_cpu / 1e3 / load.messages,
        "foreign_cores": max(0, busy - client - sender - broker_cpu) / 1e9 / took,
    }


def _check_sample(broker: Broker, topics: list[str], load: Load, name: str) -> None:
    """The values are hexadecimal digits, as many as was asked for."""
    values = broker.sample(topics, 0)
    digits = set(b"0123456789abcdef")
    if not values or any(len(value) != load.value_bytes or not digits.issuperset(value) for value in values):
        raise LostError(f"{name}: what was read back is not what was written")
