"""Shows which errors send() raises and which a callback gets: ``python errors_handled.py localhost:9092 topic``."""

import sys

from cyproducer import KafkaProducer, RecordMetadata, errors


def delivered(error: errors.KafkaError | None, record: RecordMetadata) -> None:
    """Print an outcome. The producer calls this function once for each record, on a thread of its own."""
    if error is None:
        print(f"offset {record.offset} of partition {record.partition}")
    elif isinstance(error, errors.OutcomeUnknownError):
        print(f"it may be in the log: {error}")
    elif error.retriable:
        print(f"sending again may help: {error}")
    else:
        print(f"not written: {error}")


def main(brokers: str, topic: str) -> None:
    """Send, and handle what send() raises: that record is not queued. Later errors reach the future and callback."""
    with KafkaProducer(bootstrap_servers=brokers, max_block_ms=5000) as producer:
        try:
            producer.send(topic, value=b"x" * 2_000_000)
        except errors.RecordTooLargeError as error:
            print(f"refused: {error}")
        try:
            producer.send(topic, value={"not": "bytes"})
        except TypeError as error:
            print(f"refused: {error}")
        try:
            producer.send(topic, value=b"accepted", on_delivery=delivered)
        except errors.BufferExhaustedError as error:
            print(f"the broker does not keep up: {error}")
        except errors.KafkaTimeoutError as error:
            print(f"no such topic, or no broker: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
