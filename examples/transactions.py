"""Reads, transforms and writes exactly once, with the consumer of kafka-python.

``python transactions.py localhost:9092 orders invoices``. Start it several times, each with another last argument:
``... orders invoices 2``. The workers share the partitions.
"""

import sys
from collections.abc import Callable

from kafka import KafkaConsumer

from cyproducer import KafkaProducer, errors


def transform(value: bytes) -> bytes:
    return value.upper()


def main(brokers: str, source: str, target: str, worker: str = "1", idle_s: str = "10") -> None:
    """Copy the records of one topic to another, until nothing has come for `idle_s` seconds."""
    consumer = KafkaConsumer(
        source,
        bootstrap_servers=brokers,
        group_id=f"{source}-{target}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,  # the transactions commit the offsets
        isolation_level="read_committed",
        session_timeout_ms=10_000,  # then another worker has the partitions of one that was killed
    )
    with KafkaProducer(bootstrap_servers=brokers, transactional_id=f"{source}-{target}-{worker}") as producer:
        producer.init_transactions()
        copied = 0
        while batches := consumer.poll(timeout_ms=1000 * int(idle_s)):
            producer.begin_transaction()
            try:
                for records in batches.values():
                    for record in records:
                        producer.send(target, transform(record.value), key=record.key)
                offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
                producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
                finish(producer.commit_transaction)
                copied += sum(len(records) for records in batches.values())
            except errors.KafkaError as error:
                finish(producer.abort_transaction)  # raises if this producer cannot go on
                print(f"aborted, once more from the last committed offsets: {error}", file=sys.stderr)
                rewind(consumer)
    print(f"{copied} records copied")
    consumer.close()


def finish(call: Callable[[], None]) -> None:
    """Commit or abort. A call that has no result in time is repeated: only it can tell how the transaction ends."""
    while True:
        try:
            return call()
        except errors.KafkaTimeoutError as error:
            print(f"once more: {error}", file=sys.stderr)


def rewind(consumer: KafkaConsumer) -> None:
    """Let the consumer read again what the aborted transaction had read."""
    for partition in consumer.assignment():
        offset = consumer.committed(partition)
        if offset is None:
            consumer.seek_to_beginning(partition)
        else:
            consumer.seek(partition, offset)


if __name__ == "__main__":
    main(*sys.argv[1:])
