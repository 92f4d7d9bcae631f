"""Measures how long the records of some partitions take while something disturbs their neighbours.

"slow-follower"     partitions of the same leader have a follower that is stopped and continued all the time
"poison-neighbour"  another front-end sends to the same partition, and the broker refuses each of its records

Each round has an undisturbed and a disturbed interval, so that both meet the same machine. The neighbour sends in both.
"""

from typing import Any

from bench.brokers import Broker
from bench.contestants import NotSupportedError
from bench.contestants.ours import Cyproducer
from bench.loads import Load
from bench.processes import hear, workers_of
from bench.work import Figures, LostError

LEADER, FOLLOWER, SLOW_FOLLOWER = 1, 2, 3
PARTITIONS = 8
SLOW_PARTITIONS = 1


def given(load: Load, name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of each producer. Raise NotSupportedError for another library."""
    if name != "send":
        raise NotSupportedError(f"{name} cannot be measured: bench/disturbance_worker.py has no code for it")
    return {**Cyproducer.own, "linger_ms": load.linger_ms, **settings}


def measure(broker: Broker, topics: list[str], load: Load, name: str, settings: dict[str, Any]) -> Figures:
    """Return percentiles in ms, undisturbed and disturbed. Raise LostError if records did not arrive."""
    from confluent_kafka.admin import AdminClient, NewTopic

    own = neighbours = f"{topics[0]}-own"  # it is compacted, and refuses records without a key
    assigned = {own: [[LEADER, FOLLOWER]] * PARTITIONS}
    if load.disturbance == "slow-follower":
        neighbours = f"{topics[0]}-neighbours"
        assigned[neighbours] = [[LEADER, SLOW_FOLLOWER]] * SLOW_PARTITIONS
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 2})
    config = {"cleanup.policy": "compact", "min.insync.replicas": "2"}
    wanted = [NewTopic(topic, len(at), replica_assignment=at, config=config) for topic, at in assigned.items()]
    for made in admin.create_topics(wanted, operation_timeout=30).values():
        made.result(30)
    order = {
        "bootstrap": broker.bootstrap, "own": own, "neighbours": neighbours, "given": given(load, name, settings),
        "disturbance": load.disturbance, "follower": broker.pids[SLOW_FOLLOWER - 1], "seconds": load.seconds,
        "rate": load.rate, "partitions": PARTITIONS, "neighbour_partitions": len(assigned[neighbours]),
    }  # fmt: skip
    try:
        with workers_of([order], "bench.disturbance_worker") as (worker,):
            answer = hear(worker, "the worker that measures")
        if answer["acknowledged"] != broker.records(list(assigned)):
            raise LostError(f"{answer['acknowledged']} records were acknowledged, the broker has another number")
    finally:
        broker.delete_topics(list(assigned))
    figures: Figures = answer["figures"]
    return figures
