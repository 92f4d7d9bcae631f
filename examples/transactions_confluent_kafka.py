"""Reads, transforms and writes exactly once, with the consumer of confluent-kafka.

``python transactions_confluent_kafka.py localhost:9092 orders invoices``. Start it several times, each with another
last argument: ``... orders invoices 2``. The workers share the partitions.
"""

import sys
import time
from collections.abc import Callable

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from cyproducer import KafkaProducer, errors


def transform(value: bytes) -> bytes:
    return value.upper()


def main(brokers: str, source: str, target: str, worker: str = "1", idle_s: str = "10") -> None:
    """Copy the records of one topic to another, until nothing has come for `idle_s` seconds."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": f"{source}-{target}",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # the transactions commit the offsets
            "isolation.level": "read_committed",
            "session.timeout.ms": 10_000,  # then another worker has the partitions of one that was killed
        }
    )
    revoked: list[list[TopicPartition]] = []
    consumer.subscribe([source], on_revoke=lambda _, partitions: revoked.append(partitions))
    with KafkaProducer(bootstrap_servers=brokers, transactional_id=f"{source}-{target}-{worker}") as producer:
        producer.init_transactions()
        copied = 0
        while first := consumer.poll(float(idle_s)):
            messages = [message for message in [first, *consumer.consume(499, 0.05)] if message.error() is None]
            if revoked:  # between the two calls: another worker may have these messages now
                revoked.clear()
                rewind(consumer)
                continue
            producer.begin_transaction()
            try:
                for message in messages:
                    producer.send(target, transform(message.value()), key=message.key())
                offsets = {(message.topic(), message.partition()): message.offset() + 1 for message in messages}
                producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
                finish(producer.commit_transaction)
                copied += len(messages)
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


def rewind(consumer: Consumer) -> None:
    """Let the consumer continue at the committed offsets."""
    assigned = consumer.assignment()
    while assigned:
        try:
            partitions = consumer.committed(assigned, timeout=60)
            failed = next((partition.error for partition in partitions if partition.error is not None), None)
            if failed is not None:
                raise KafkaException(failed)
        except KafkaException as error:  # no message may be read before the offsets are known
            print(f"the committed offsets are not known yet: {error}", file=sys.stderr)
            time.sleep(0.1)
            continue
        for partition in partitions:
            if partition.offset < 0:  # nothing is committed
                partition.offset = OFFSET_BEGINNING
        consumer.assign(partitions)
        return


if __name__ == "__main__":
    main(*sys.argv[1:])
