"""Measures worker processes: throughput, load with a fixed rate, latency, memory.

Every measurement returns figures by name (see `bench.figures`), after a check that the broker has the records.
"""

import os
import statistics
import time
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import psutil

from bench.brokers import Broker, KafkaBroker
from bench.contestants import CONTESTANTS, Contestant
from bench.loads import Load, Sent, topics_of
from bench.measure import CpuMeter, busy_ns, wake_ups
from bench.processes import Worker, busy_processes, hear, say, sender_pids, stop_senders, workers_of
from bench.samples import Kept

WARM_RECORDS = {"paced": 100, "latency": 200, "memory": 100}
Figures = dict[str, float]


class LostError(RuntimeError):
    """The broker does not have the records that were sent."""


@contextmanager
def topics_on(broker: Broker, load: Load) -> Iterator[list[str]]:
    """Create topics, and delete them at the end of the block."""
    names = topics_of(f"bench-{os.getpid()}-{time.time_ns()}", load)
    broker.create_topics(names, load)
    try:
        yield names
    finally:
        broker.delete_topics(names)


def check(
    broker: Broker,
    topics: list[str],
    load: Load,
    name: str,
    sent: int,
    before: "Before",
    records: Set[Sent],
    codecs: Set[str | None],
) -> None:
    """Raise LostError unless exactly `sent` records arrived and a sample of them has the right content.

    records   the records that may occur
    codecs    the codecs that their batches may have
    """
    refused = broker.faults() - before.faults
    if load.transaction:
        assert isinstance(broker, KafkaBroker), "only a real broker has transactions"
        arrived = broker.committed(topics)
    else:
        arrived = broker.records(topics) - before.records
    if arrived != sent or refused:
        raise LostError(
            f"{name}: {sent} records were acknowledged, but the broker received {arrived}, "
            f"and it refused {refused} batches or frames"
        )
    if sent and broker.sampling:
        check_sample(broker.sample(topics, before.samples), name, records, codecs)


def check_sample(kept: Kept, name: str, records: Set[Sent], codecs: Set[str | None]) -> None:
    """Raise LostError if the sample is empty, or contains a record or a codec that was not sent."""
    if not kept.records:
        raise LostError(f"{name}: no record was sampled")
    wrong = sorted(set(kept.records) - records, key=repr)
    if wrong:
        value, key, headers = wrong[0]
        raise LostError(
            f"{name}: a record arrived that was not sent: {value[:80]!r}, key {key!r}, headers {list(headers)}"
        )
    if kept.codecs - codecs:
        raise LostError(
            f"{name}: batches arrived with the codecs {sorted(map(str, kept.codecs))}, not {sorted(map(str, codecs))}"
        )


class Before:
    """The counters of the broker before a measurement. Also requests that the broker keeps at least one batch of it."""

    def __init__(self, broker: Broker, topics: list[str]) -> None:
        self.records = broker.records(topics)
        self.faults, self.samples, self.volume = broker.faults(), broker.samples(), broker.volume()
        broker.want_sample()


def given(load: Load, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a contestant's producer."""
    return CONTESTANTS[name].given(load, settings)


def connections(pids: list[int], ports: set[int]) -> int:
    """Return the number of TCP connections of processes to the ports of the brokers."""
    found = 0
    for pid in pids:
        for one in psutil.Process(pid).net_connections("tcp"):
            found += bool(one.raddr) and one.raddr.port in ports and one.status == psutil.CONN_ESTABLISHED
    return found


def orders(
    broker: Broker, topics: list[str], load: Load, name: str, job: str, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return the orders of all processes."""
    kind = CONTESTANTS[name]
    if broker.keys is not None:
        settings = {**kind.trusting(str(broker.keys.ca)), **settings}
    unit = kind.unit(load)
    if job == "throughput":
        count = load.share(load.messages, unit, kind.scale)
        warmup = load.share(load.warmup, unit, min(1.0, kind.scale)) if kind.warms_up else 0
    else:
        count, warmup = int(load.rate * load.seconds), WARM_RECORDS[job]
    order = {
        "job": job, "contestant": name, "bootstrap": broker.bootstrap, "topics": topics, "load": asdict(load),
        "settings": settings, "warmup": warmup, "count": count,
    }  # fmt: skip
    return [order] * load.processes


def measure(broker: Broker, topics: list[str], load: Load, name: str, job: str, settings: dict[str, Any]) -> Figures:
    """Measure one contestant once. Raise LostError, or NotSupportedError if the contestant cannot run."""
    work = orders(broker, topics, load, name, job, settings)
    kind = CONTESTANTS[name]
    counts_handshakes = load.tls and job == "paced"
    if counts_handshakes:
        stop_senders()  # the sender of the round before has its connections already
    handshakes = broker.handshakes() if counts_handshakes else 0
    before = Before(broker, topics)
    with workers_of(work) as workers:
        for worker in workers:
            hear(worker, name)
        with busy_processes(load.busy):
            figures, answers = observe(broker, workers, kind, name, job)
        if counts_handshakes:
            figures["handshakes"] = broker.handshakes() - handshakes
    sent = sum(answer["sent"] + order["warmup"] for answer, order in zip(answers, work, strict=True))
    if kind.library != "none":
        check(broker, topics, load, name, sent, before, kind.sends(load), kind.codecs(load, settings))
        if before.volume is not None:
            figures["bytes_per_record"] = ((broker.volume() or 0) - before.volume) / sent
    figures.update(EXTRA.get(job, lambda answers: {})(answers))
    figures["gb_per_s"] = figures["rate"] * load.value_bytes / 1e9
    figures["sender_ns_per_byte"] = figures["sender_us"] * 1e3 / load.value_bytes
    return figures


def observe(
    broker: Broker, workers: list[Worker], kind: type[Contestant], name: str, job: str
) -> tuple[Figures, list[dict[str, Any]]]:
    """Start the workers, and measure all processes until they have finished."""
    # Our sender is idle while other clients are measured, and does not count as their cost.
    ours = sender_pids() if kind.library == "cyproducer" else []
    requests = broker.requests() if job == "paced" else 0
    senders, brokers, busy = CpuMeter(ours), CpuMeter(broker.pids), busy_ns()
    woken = wake_ups(ours)
    for worker in workers:
        say(worker, "go")
    answers = [hear(worker, name) for worker in workers]
    sender, broker_cpu, busy = senders.used(), brokers.used(), busy_ns() - busy
    woken = wake_ups(ours) - woken
    messages = sum(answer["sent"] for answer in answers)
    front_end = sum(answer["cpu_ns"] for answer in answers)
    took = (max(a["end_ns"] for a in answers) - min(a["begin_ns"] for a in answers)) / 1e9
    figures = {
        "messages": messages,
        "seconds": took,
        "rate": messages / took,
        "cpu_us": (front_end + sender) / 1e3 / messages,
        "front_end_us": front_end / 1e3 / messages,
        "sender_us": sender / 1e3 / messages,
        "broker_us": broker_cpu / 1e3 / messages,
        "broker_cores": broker_cpu / 1e9 / took,
        "foreign_cores": max(0, busy - front_end - sender - broker_cpu) / 1e9 / took,
    }
    if job == "paced":
        figures["requests_per_s"] = (broker.requests() - requests) / took
        figures["connections"] = connections([*ours, *(w.pid for w in workers)], broker.ports)
        figures["sender_wake_ups_per_s"] = woken / took
    return figures, answers


def latencies(answers: list[dict[str, Any]]) -> Figures:
    """Return percentiles of all round trips, in us."""
    times = sorted(t for answer in answers for t in answer["times_ns"])
    cut = statistics.quantiles(times, n=1000, method="inclusive")
    return {"p50_us": cut[499] / 1e3, "p99_us": cut[989] / 1e3, "p999_us": cut[998] / 1e3}


def footprints(answers: list[dict[str, Any]]) -> Figures:
    """Return what the producer adds to its process (memory in MB, threads), as the mean over the processes."""

    def mean(what: str) -> float:
        return statistics.fmean(answer[what] for answer in answers)

    return {
        "rest_mb": mean("rest_bytes") / 1e6, "load_mb": mean("load_bytes") / 1e6,
        "rest_threads": mean("rest_threads"), "load_threads": mean("load_threads"),
    }  # fmt: skip


EXTRA = {"latency": latencies, "memory": footprints}
