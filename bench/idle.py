"""Measures what attached but idle front-ends cost: their own wake-ups, those of the sender, and a busy front-end."""

import time
from dataclasses import replace
from typing import Any

from bench.brokers import Broker
from bench.contestants.ours import Cyproducer
from bench.loads import Load
from bench.measure import CpuMeter, wake_ups
from bench.processes import hear, sender_pids, workers_of
from bench.work import Figures
from bench.work import measure as measure_work

SETTLE_S = 2.0
"""The pause after the last record: longer than a front-end stays on the sender's active list and keeps its pages."""
AFTER_STATUS_S = 0.3
"""The pause after a request for the sender's status, which wakes the sender."""


def given(load: Load, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the idle producers; the busy producer has the contestant's usual settings."""
    return {**Cyproducer.own, **settings}


def measure(broker: Broker, topics: list[str], load: Load, name: str, settings: dict[str, Any]) -> Figures:
    """Measure wake-ups of the idle front-ends and of the sender, then the CPU per record of a busy front-end."""
    chosen = given(load, name, settings)
    order = {"bootstrap": broker.bootstrap, "topic": topics[0], "count": load.idle, "given": chosen}
    # Start the sender, also if there is no idle front-end.
    measure_work(broker, topics, replace(load, seconds=0.1), name, "paced", settings)
    with workers_of([order], "bench.idle_worker") as (parent,):
        attached = hear(parent, "the parent of the idle front-ends")
        time.sleep(SETTLE_S)
        groups = (attached["pids"], sender_pids("sender"), sender_pids("supervisor"))
        time.sleep(AFTER_STATUS_S)
        begin, before = time.monotonic(), [wake_ups(pids) for pids in groups]
        time.sleep(load.seconds)
        woken = [wake_ups(pids) - count for pids, count in zip(groups, before, strict=True)]
        took = time.monotonic() - begin
        used = CpuMeter(attached["pids"])
        figures = measure_work(broker, topics, load, name, "throughput", settings)
        idle_us = used.used() / 1e3 / figures["messages"]
    return {
        **figures,
        "cpu_us": figures["cpu_us"] + idle_us,
        "idle_wake_ups_per_s": woken[0] / took,
        "idle_sender_wake_ups_per_s": woken[1] / took,
        "idle_supervisor_wake_ups_per_s": woken[2] / took,
        **({"attach_ms": attached["seconds"] * 1e3 / load.idle} if load.idle else {}),
    }
