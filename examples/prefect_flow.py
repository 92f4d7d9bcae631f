"""Publishes from a flow of Prefect and its tasks: each process has a producer, and all share one sender process.

    prefect server start
    PREFECT_API_URL=http://127.0.0.1:4200/api python examples/prefect_flow.py localhost:9092 TOPIC

Without PREFECT_API_URL, each process starts a server of Prefect for itself.
"""

import functools
import sys

from prefect import flow, task
from prefect.task_runners import ProcessPoolTaskRunner

from cyproducer import KafkaProducer

TASKS = 20


@functools.cache
def producer_of(bootstrap_servers: str) -> KafkaProducer:
    """Make the producer of this process, once for all tasks that it runs, also in threads."""
    return KafkaProducer(bootstrap_servers=bootstrap_servers)


@task
def publish(bootstrap_servers: str, topic: str, part: int) -> int:
    """Publish a hundred records, and return how many were written."""
    producer = producer_of(bootstrap_servers)
    sent = [producer.send(topic, b"%d" % number) for number in range(part * 100, part * 100 + 100)]
    return len([future.result(timeout=60) for future in sent])


@flow(task_runner=ProcessPoolTaskRunner(max_workers=2))
def publish_all(bootstrap_servers: str, topic: str) -> int:
    """Run the tasks in two processes, and publish a record from this one. Return how many records were written."""
    written: int = sum(publish.map(bootstrap_servers, topic, range(TASKS)).result())
    producer_of(bootstrap_servers).send(topic, b"%d" % written).result(timeout=60)
    return written + 1


if __name__ == "__main__":
    print(f"{publish_all(*sys.argv[1:3])} records written")
