"""Publishes from the worker processes of Dask: each of them has a producer, and all share one sender process.

python examples/dask_workers.py localhost:9092 TOPIC
"""

import functools
import sys

from distributed import Client, LocalCluster, Worker, WorkerPlugin, get_worker

from cyproducer import KafkaProducer

TASKS = 20


class Publisher(WorkerPlugin):
    """Gives each worker process a producer."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers

    def setup(self, worker: Worker) -> None:
        """Make the producer when the worker starts, also when it is started again."""
        worker.producer = KafkaProducer(bootstrap_servers=self.bootstrap_servers)

    def teardown(self, worker: Worker) -> None:
        """Wait for the outcomes when the worker ends."""
        worker.producer.close(10)


def publish(topic: str, task: int) -> int:
    """Publish a hundred records, and return how many were written."""
    producer = get_worker().producer
    sent = [producer.send(topic, b"%d" % number) for number in range(task * 100, task * 100 + 100)]
    return len([future.result(timeout=60) for future in sent])


def main(bootstrap_servers: str, topic: str) -> None:
    """Run the tasks in two worker processes. A cluster of several hosts has one sender on each of them."""
    with LocalCluster(n_workers=2, threads_per_worker=2, dashboard_address=None) as cluster, Client(cluster) as client:
        client.register_plugin(Publisher(bootstrap_servers))
        tasks = client.map(functools.partial(publish, topic), range(TASKS))
        print(f"{sum(client.gather(tasks))} records written")


if __name__ == "__main__":
    main(*sys.argv[1:3])
