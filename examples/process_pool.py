"""Publishes from a ProcessPoolExecutor: ``python process_pool.py localhost:9092 topic``."""

import sys
from concurrent.futures import ProcessPoolExecutor

from cyproducer import KafkaProducer

JOBS = 200


def job(producer: KafkaProducer, topic: str, number: int) -> int:
    """Publish one result. Return the record's offset, which shows the caller that Kafka has it."""
    return producer.send(topic, key=b"%d" % number, value=b"%d" % (number * number)).result(timeout=30).offset


def main(brokers: str, topic: str) -> None:
    """Pass the producer to the workers. They get a copy of its settings, and all share one sender."""
    producer = KafkaProducer(bootstrap_servers=brokers)
    producer.send(topic, key=b"first", value=b"from the parent")
    with ProcessPoolExecutor(4) as pool:
        offsets = list(pool.map(job, [producer] * JOBS, [topic] * JOBS, range(JOBS)))
    producer.flush(timeout=30)
    print(f"{len(offsets) + 1} records written")


if __name__ == "__main__":
    main(*sys.argv[1:])
