"""How long it takes from nothing imported to the first record acknowledged, in a fresh interpreter each time."""

import json
import os
import subprocess
import sys
from typing import Any

from bench.brokers import Broker
from bench.contestants import NotSupportedError
from bench.loads import Load, values_of
from bench.processes import ROOT
from bench.work import Before, Figures, check

OURS = """
from cyproducer import KafkaProducer
producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=5,
                         sender_idle_timeout_ms=120_000)
producer.send(topic, value).result(60)
"""
CONFLUENT = """
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 5})
done = []
producer.produce(topic, value, on_delivery=lambda error, message: done.append(error))
while not done:
    producer.poll(1)
assert done[0] is None
"""
FRAME = """
import json, sys, time
bootstrap, topic, value = sys.argv[1], sys.argv[2], sys.argv[3].encode()
begin = time.perf_counter_ns()
{}
print(json.dumps((time.perf_counter_ns() - begin) / 1e6))
"""
CODE = {"send_kept": OURS, "confluent_callback": CONFLUENT}


def measure(
    broker: Broker, topics: list[str], load: Load, name: str, settings: dict[str, Any]
) -> Figures:
    """`first_ms`. The first of two runs starts the sender, warms the disk's cache, and is not counted."""
    if name not in CODE:
        raise NotSupportedError(f"{name} has no first record")
    before, value = Before(broker, topics), values_of(load)[0]
    for _ in range(2):
        took = _once(name, broker.bootstrap, topics[0], value)
    check(broker, topics, load, name, 2, before)
    return {"first_ms": took}


def _once(name: str, bootstrap: str, topic: str, value: bytes) -> float:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "-c", FRAME.format(CODE[name]), bootstrap, topic, value.decode()],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        process_group=0,
    )
    if run.returncode:
        raise RuntimeError(f"{name} did not start: {run.stderr.strip()[-1000:]}")
    return float(json.loads(run.stdout))
