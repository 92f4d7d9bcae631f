"""Runs as an application of Flask that publishes what it gets, in several workers of gunicorn.

KAFKA=localhost:9092 gunicorn --preload --workers 4 --chdir examples flask_app:app
"""

import os
from typing import Any

from flask import Flask, request

from cyproducer import KafkaProducer, errors

TOPIC = os.environ.get("TOPIC", "events")

# Made at import, also before gunicorn forks its workers (--preload).
# A request may wait for Kafka for less time than the server waits for a worker: 30 s with gunicorn.
producer = KafkaProducer(bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"), max_block_ms=10_000)
app = Flask(__name__)


@app.errorhandler(errors.KafkaError)
def on_kafka_error(error: errors.KafkaError) -> tuple[dict[str, Any], int]:
    """Answer 503 when a record cannot be queued, or was not written."""
    return {"error": str(error)}, 503


@app.get("/")
def show() -> dict[str, Any]:
    """Show which worker answers."""
    return {"pid": os.getpid()}


@app.post("/event")
def publish() -> tuple[dict[str, Any], int]:
    """Publish the body, and do not wait for Kafka's answer."""
    producer.send(TOPIC, request.get_data())
    return {"pid": os.getpid()}, 202


@app.post("/order")
def publish_and_wait() -> tuple[dict[str, Any], int]:
    """Publish the body, and answer with its place in the log."""
    record = producer.send(TOPIC, request.get_data()).result(timeout=15)
    return {"pid": os.getpid(), "partition": record.partition, "offset": record.offset}, 201
