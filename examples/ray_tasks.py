"""Publishes from tasks and actors of Ray: each worker process has a producer, and all share one sender process.

KAFKA=localhost:9092 TOPIC=events python examples/ray_tasks.py
"""

import os

import ray

from cyproducer import KafkaProducer

TASKS = 20
ACTORS = 2

# Ray pickles a function of the program that is run together with the objects that it names, here the producer as its
# settings. A worker process reads the function once, for all tasks that it runs.
producer = KafkaProducer(bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"))


@ray.remote
def publish(topic: str, part: int) -> int:
    """Publish a hundred records, and return how many were written."""
    sent = [producer.send(topic, b"%d" % number) for number in range(part * 100, part * 100 + 100)]
    return len([future.result(timeout=60) for future in sent])


@ray.remote
class Publisher:
    """Publishes in a process of its own."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.producer = KafkaProducer(bootstrap_servers=bootstrap_servers)

    def publish(self, topic: str, part: int) -> int:
        """Publish a hundred records, and return how many were written."""
        sent = [self.producer.send(topic, b"%d" % number) for number in range(part * 100, part * 100 + 100)]
        return len([future.result(timeout=60) for future in sent])


def main(bootstrap_servers: str, topic: str) -> None:
    """Run tasks and actors on this host. A cluster of several hosts has one sender on each of them."""
    ray.init(num_cpus=2, include_dashboard=False)
    written = ray.get([publish.remote(topic, part) for part in range(TASKS)])
    actors = [Publisher.remote(bootstrap_servers) for _ in range(ACTORS)]
    written += ray.get([actor.publish.remote(topic, TASKS + part) for part, actor in enumerate(actors)])
    print(f"{sum(written)} records written")
    ray.shutdown()


if __name__ == "__main__":
    main(os.environ.get("KAFKA", "localhost:9092"), os.environ.get("TOPIC", "events"))
