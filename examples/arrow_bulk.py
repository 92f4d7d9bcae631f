"""Sends an Arrow table to Kafka: its columns are the records' values, keys, headers and times.

python examples/arrow_bulk.py localhost:9092 TOPIC
"""

import sys

import pyarrow as pa

from cyproducer import KafkaProducer, errors

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def main(bootstrap_servers: str, topic: str) -> None:
    rows = 10_000
    table = pa.table(
        {
            "value": [f'{{"order": {row}}}' for row in range(rows)],
            "key": pa.array([None if row % 10 == 0 else f"customer-{row % 97}" for row in range(rows)]),
            "headers": pa.array([[{"key": "source", "value": b"shop"}]] * rows, HEADERS),
            "timestamp": pa.array(range(1_767_225_600_000, 1_767_225_600_000 + rows), pa.timestamp("ms", "UTC")),
        }
    )
    with KafkaProducer(bootstrap_servers=bootstrap_servers) as producer:
        future = producer.send_arrow(table, topic=topic)
        try:
            written = future.result(timeout=60)
        except errors.KafkaError as error:
            sys.exit(f"not everything was written: {error}")
        # The result is NumPy arrays, in the order of the rows; pyarrow takes them as they are.
        table = table.append_column("partition", pa.array(written.partition))
        table = table.append_column("offset", pa.array(written.offset))
        print(table.select(["key", "partition", "offset"]).slice(0, 5).to_pylist())

        # A single column, of any library that speaks Arrow's protocol, goes out with send_array.
        written = producer.send_array(topic, table["value"].slice(0, 100)).result(timeout=60)
        known = sum(offset >= 0 for offset in written.offset)
        print(f"{len(written.offset)} values without key, {known} with a known offset")


if __name__ == "__main__":
    main(*sys.argv[1:3])
