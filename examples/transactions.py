"""Reads, transforms and writes exactly once: ``python transactions.py localhost:9092 from-topic to-topic``.

It needs kafka-python for the consumer, and ends when nothing has come for ten seconds.
"""

import sys

from kafka import KafkaConsumer

from cyproducer import KafkaProducer, errors

IDLE_MS = 10_000


def main(brokers: str, source: str, target: str) -> None:
    """Copy the values of one topic to another, in upper case."""
    consumer = KafkaConsumer(
        source,
        bootstrap_servers=brokers,
        group_id="upper-case",
        auto_offset_reset="earliest",
        enable_auto_commit=False,  # the transactions commit the offsets
        isolation_level="read_committed",
    )
    with KafkaProducer(bootstrap_servers=brokers, transactional_id="upper-case-1") as producer:
        producer.init_transactions()
        copied = 0
        while batches := consumer.poll(timeout_ms=IDLE_MS):
            try:
                with producer.transaction():
                    for records in batches.values():
                        for record in records:
                            producer.send(target, record.value.upper(), key=record.key)
                    offsets = {partition: records[-1].offset + 1 for partition, records in batches.items()}
                    producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            except errors.ProducerFencedError:
                raise  # another process has this transactional_id
            except errors.KafkaError as error:
                print(f"aborted, once more from the last committed offsets: {error}")
                rewind(consumer)
            else:
                copied += sum(len(records) for records in batches.values())
        print(f"{copied} records copied")
    consumer.close()


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
