"""Spark's sinks in turn, ``format("cyproducer")`` and Spark's own ``format("kafka")``, in one session."""

import os
import subprocess
import sys
import time

from bench.brokers import Broker
from bench.measure import CpuMeter, busy_ns, tree_of
from bench.runner import LostError, Measurement, hear, say, sender_pids, workers_of

SINKS = ("cyproducer", "kafka")
PAIRS: list[tuple[str, str, float | None]] = [("spark cyproducer", "spark kafka", 1.0)]


def run(broker: Broker, rounds: int, rows: int, value_bytes: int, partitions: int) -> list[Measurement]:
    """Measurements of all rounds; "front-end" is Spark as a whole: driver, JVM, Python workers.

    The sinks write once before the rounds, since a JVM's first job is the compiler's.
    """
    found = []
    order = {"rows": rows, "value_bytes": value_bytes}
    with workers_of([order], "bench.spark_worker") as (spark,):
        hear(spark, "Spark")
        for number in range(-1, rounds):
            topic = f"bench-spark-{os.getpid()}-{time.time_ns()}"
            broker.create_topic(topic, partitions)
            for sink in SINKS:
                one = _measure(broker, spark, sink, number, topic, rows)
                if number < 0:
                    continue
                found.append(one)
                print(
                    f"round {number + 1} {one.contestant}: {one.rate / 1e6:.2f} M rows/s, "
                    f"{one.cpu_us:.2f} us each",
                    file=sys.stderr,
                    flush=True,
                )
            broker.delete_topic(topic)
    return found


def _measure(
    broker: Broker, spark: "subprocess.Popen[str]", sink: str, number: int, topic: str, rows: int
) -> Measurement:
    """One sink once. LostError if the topic has fewer rows than were written (Spark may repeat some)."""
    held = broker.records(topic)
    clients = CpuMeter(tree_of(spark.pid))
    senders = CpuMeter(sender_pids() if sink == "cyproducer" else [])
    brokers = CpuMeter([broker.pid] if broker.pid is not None else [])
    busy = busy_ns()
    say(spark, f'{{"sink": "{sink}", "bootstrap": "{broker.bootstrap}", "topic": "{topic}"}}')
    answer = hear(spark, "Spark")
    client, broker_cpu, busy = clients.used(tree_of(spark.pid)), brokers.used(), busy_ns() - busy
    sender = senders.used(sender_pids() if sink == "cyproducer" else [])
    arrived = broker.records(topic) - held
    if arrived < rows:
        raise LostError(f"spark {sink}: {rows} rows were written, the topic grew by {arrived}")
    return Measurement(
        f"spark {sink}",
        number,
        rows,
        (answer["end_ns"] - answer["begin_ns"]) / 1e9,
        client,
        sender,
        broker_cpu,
        max(0, busy - client - sender - broker_cpu),
    )
