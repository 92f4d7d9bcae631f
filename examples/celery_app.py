"""Runs as an application of Celery whose tasks publish: the producer is made at import, before the pool forks.

    KAFKA=localhost:9092 celery --workdir examples --app celery_app worker --pool prefork --concurrency 4

All processes of all pools of the host share one sender process.
"""

import os

from celery import Celery

from cyproducer import KafkaProducer

TOPIC = os.environ.get("TOPIC", "events")

app = Celery("events", broker=os.environ.get("BROKER", "redis://localhost:6379/0"))
producer = KafkaProducer(bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"))


@app.task
def publish(text: str) -> None:
    """Publish the text, and do not wait for Kafka's answer."""
    producer.send(TOPIC, text.encode())


@app.task
def publish_and_wait(text: str) -> int:
    """Publish the text, and return its offset. The task fails if the record was not written."""
    return producer.send(TOPIC, text.encode()).result(timeout=30).offset
