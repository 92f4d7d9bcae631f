"""Shares one producer among threads: ``python threads.py localhost:9092 topic``."""

import sys
from concurrent.futures import ThreadPoolExecutor

from cyproducer import KafkaProducer, wait

THREADS = 8
RECORDS = 1000


def work(producer: KafkaProducer, topic: str, thread: int) -> int:
    """Send the records of a thread. Those with one key arrive in the order in which they were sent."""
    futures = [producer.send(topic, key=b"thread %d" % thread, value=b"%d" % number) for number in range(RECORDS)]
    done, not_done = wait(futures, timeout=30)
    return sum(future.succeeded() for future in done) - len(not_done)


def main(brokers: str, topic: str) -> None:
    """Start the threads. Each thread waits for its own records only."""
    with KafkaProducer(bootstrap_servers=brokers) as producer, ThreadPoolExecutor(THREADS) as pool:
        written = sum(pool.map(work, [producer] * THREADS, [topic] * THREADS, range(THREADS)))
    print(f"{written} records written")


if __name__ == "__main__":
    main(*sys.argv[1:])
