"""Measures the time from the import to the first acknowledged record, in a new interpreter each time."""

import json
import os
import subprocess
import sys
from typing import Any

from bench.brokers import Broker
from bench.contestants import CONTESTANTS, NotSupportedError
from bench.loads import Load, Sent, values_of
from bench.processes import ROOT
from bench.work import Before, Figures, check

OURS = """
from cyproducer import KafkaProducer
producer = KafkaProducer(bootstrap_servers=bootstrap, **given)
producer.send(topic, value).result(60)
"""
CONFLUENT = """
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": bootstrap, **given})
done = []
producer.produce(topic, value, on_delivery=lambda error, message: done.append(error))
while not done:
    producer.poll(1)
assert done[0] is None
"""
FRAME = """
import json, sys, time
bootstrap, topic, value, given = sys.argv[1], sys.argv[2], sys.argv[3].encode(), json.loads(sys.argv[4])
begin = time.perf_counter_ns()
{}
print(json.dumps((time.perf_counter_ns() - begin) / 1e6))
"""
CODE = {"send_kept": OURS, "confluent_callback": CONFLUENT}
GIVEN = {
    "send_kept": {"acks": "all", "enable_idempotence": True, "linger_ms": 5, "sender_idle_timeout_ms": 120_000},
    "confluent_callback": {"acks": "all", "enable.idempotence": True, "linger.ms": 5},
}


def given(load: Load, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a contestant's producer. Raise NotSupportedError if it has no code for a first record."""
    if name not in GIVEN:
        raise NotSupportedError(f"{name} cannot be measured: bench/start.py has no code for it")
    return {**GIVEN[name], **settings}


def measure(broker: Broker, topics: list[str], load: Load, name: str, settings: dict[str, Any]) -> Figures:
    """Return `first_ms`. The first of two runs does not count: it starts the sender and fills the disk's cache."""
    chosen = given(load, name, settings)
    before, value = Before(broker, topics), values_of(load)[0]
    for _ in range(2):
        took = _once(name, broker.bootstrap, topics[0], value, chosen)
    check(broker, topics, load, name, 2, before, {Sent(value)}, CONTESTANTS[name].codecs(load, settings))
    return {"first_ms": took}


def _once(name: str, bootstrap: str, topic: str, value: bytes, chosen: dict[str, Any]) -> float:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run = subprocess.run(
        [sys.executable, "-c", FRAME.format(CODE[name]), bootstrap, topic, value.decode(), json.dumps(chosen)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        process_group=0,
    )
    if run.returncode:
        raise RuntimeError(f"{name} did not start: {run.stderr.strip()[-1000:]}")
    return float(json.loads(run.stdout))
