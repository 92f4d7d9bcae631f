"""Measures how long it takes to attach a front-end, to reclaim a killed front-end, and to restart a killed sender.

The records of killed front-ends must arrive as well, which is checked.
"""

from typing import Any

from bench.brokers import Broker
from bench.contestants import CONTESTANTS
from bench.contestants.ours import Cyproducer
from bench.loads import Load
from bench.processes import hear, workers_of
from bench.work import Before, Figures, check

FORKS, PROCESSES, DEATHS, RESTARTS = 100, 15, 50, 8


def given(load: Load, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of each producer."""
    return {**Cyproducer.own, **settings}


def measure(broker: Broker, topics: list[str], load: Load, name: str, settings: dict[str, Any]) -> Figures:
    """Return percentiles of each time in ms. `FORKS` and the others are the counts; a quick run does a share of them.

    Raise LostError if not every record arrived, those of killed front-ends included.
    """
    share = min(1.0, load.seconds / Load().seconds)
    order = {
        "bootstrap": broker.bootstrap, "topic": topics[0], "given": given(load, name, settings),
        "forked": max(2, int(FORKS * share)), "fresh": max(2, int(PROCESSES * share)),
        "reclaim": max(2, int(DEATHS * share)), "restart": max(2, int(RESTARTS * share)),
    }  # fmt: skip
    figures: Figures = {}
    before = Before(broker, topics)
    with workers_of([order], "bench.recovery_worker") as (parent,):
        answer = hear(parent, "the parent of the measured front-ends")
        for what, found in answer["times_ms"].items():
            found.sort()
            figures[f"{what}_p50_ms"] = found[len(found) // 2]
            figures[f"{what}_p99_ms"] = found[min(len(found) - 1, len(found) * 99 // 100)]
    kind = CONTESTANTS[name]
    check(broker, topics, load, name, answer["sent"], before, kind.sends(load), kind.codecs(load, settings))
    return figures
