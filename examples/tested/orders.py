"""Is an application whose tests are beside it: it publishes orders."""

import json
import os

from cyproducer import KafkaProducer, errors

TOPIC = "orders"
producer = KafkaProducer(bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"))


def place(order: int) -> str:
    """Publish the order; return where it is in the log, or why it is not there."""
    try:
        record = producer.send(TOPIC, key=b"%d" % order, value=json.dumps({"order": order}).encode()).result(timeout=30)
    except errors.KafkaError as error:
        return f"failed: {type(error).__name__}"
    return f"partition {record.partition}, offset {record.offset}"
