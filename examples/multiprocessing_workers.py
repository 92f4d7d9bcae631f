"""Shares a producer among a program and its processes: ``python multiprocessing_workers.py localhost:9092 topic fork``.

The last argument is the start method: fork, spawn or forkserver.
"""

import multiprocessing
import sys

from cyproducer import KafkaProducer

WORKERS = 4
RECORDS = 1000


def work(producer: KafkaProducer, topic: str, worker: int) -> None:
    """Send from a worker; a forked one uses the parent's object, others get a copy of its settings."""
    for number in range(RECORDS):
        producer.send(topic, key=b"worker %d" % worker, value=b"%d" % number)
    # No flush() and no close(): a record that send() has accepted no longer depends on this process.


def main(brokers: str, topic: str, method: str) -> None:
    """Send from the parent before, while and after its workers do."""
    producer = KafkaProducer(bootstrap_servers=brokers)
    producer.send(topic, key=b"parent", value=b"0").result(timeout=30)
    multiprocessing.set_start_method(method)
    workers = [multiprocessing.Process(target=work, args=(producer, topic, i)) for i in range(WORKERS)]
    for process in workers:
        process.start()
    for number in range(1, RECORDS):
        producer.send(topic, key=b"parent", value=b"%d" % number)
    for process in workers:
        process.join()
    print(f"{(WORKERS + 1) * RECORDS} records sent, workers ended with {[p.exitcode for p in workers]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
