"""What coming and going costs: a front-end attaches, a killed one is reclaimed, a killed sender is back."""

from typing import Any

from bench.brokers import Broker
from bench.contestants.ours import Cyproducer
from bench.loads import Load
from bench.processes import hear, workers_of
from bench.work import Figures

FORKS, PROCESSES, DEATHS, RESTARTS = 100, 15, 50, 8


def given(load: Load, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """What each producer is told."""
    return {**Cyproducer.own, **settings}


def measure(broker: Broker, topics: list[str], load: Load, name: str, settings: dict[str, Any]) -> Figures:
    """Percentiles of each, in ms; how often: `FORKS` and the others, a share of them in a quick run."""
    share = min(1.0, load.seconds / Load().seconds)
    order = {
        "bootstrap": broker.bootstrap, "topic": topics[0], "given": given(load, name, settings),
        "forked": max(2, int(FORKS * share)), "fresh": max(2, int(PROCESSES * share)),
        "reclaim": max(2, int(DEATHS * share)), "restart": max(2, int(RESTARTS * share)),
    }  # fmt: skip
    figures: Figures = {}
    with workers_of([order], "bench.recovery_worker") as (parent,):
        times = hear(parent, "the parent of those that come and go")
        for what, found in times.items():
            found.sort()
            figures[f"{what}_p50_ms"] = found[len(found) // 2]
            figures[f"{what}_p99_ms"] = found[min(len(found) - 1, len(found) * 99 // 100)]
    return figures
