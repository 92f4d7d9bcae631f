"""Sends NumPy arrays to Kafka: fixed-width, structured, and variable-length rows, each array with one future.

python examples/numpy_bulk.py localhost:9092 TOPIC
"""

import sys

import numpy as np

from cyproducer import KafkaProducer


def main(bootstrap_servers: str, topic: str) -> None:
    with KafkaProducer(bootstrap_servers=bootstrap_servers) as producer:
        # A structured array: the value of a record is the element's 16 bytes, the key the sensor's number.
        readings = np.zeros(100_000, dtype=[("sensor", "<u4"), ("count", "<u4"), ("celsius", "<f8")])
        readings["sensor"] = np.arange(100_000) % 50
        readings["celsius"] = 20.0
        times = np.datetime64("2026-01-01T00:00", "ms") + np.arange(100_000)
        written = producer.send_array(topic, readings, keys=readings["sensor"], timestamps_ms=times).result()
        print(f"{len(written.offset)} readings over partitions {np.unique(written.partition).tolist()}")

        # Values of different lengths: one buffer, and where each starts and ends.
        lines = [b"first", b"", b"a third line"]
        offsets = np.cumsum([0] + [len(line) for line in lines])
        written = producer.send_array(topic, (b"".join(lines), offsets), headers=[("kind", b"line")]).result()
        print(f"lines at offsets {written.offset.tolist()} of partitions {written.partition.tolist()}")

        # A masked value is Kafka's null.
        levels = np.ma.masked_array([1, 2, 3], mask=[False, True, False], dtype=">u2")
        written = producer.send_array(topic, levels, partition=0).result()
        print(f"levels at offsets {written.offset.tolist()} of partition 0, the second one null")


if __name__ == "__main__":
    main(*sys.argv[1:3])
