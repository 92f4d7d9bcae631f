"""Runs as a web application that publishes what it gets: the producer is made at import, before the server forks.

    KAFKA=localhost:9092 gunicorn --preload --workers 4 --chdir examples wsgi_app:application
    KAFKA=localhost:9092 gunicorn --preload --workers 4 --worker-class gevent --chdir examples wsgi_app:application
    KAFKA=localhost:9092 uwsgi --http-socket :8000 --master --processes 4 --chdir examples --module wsgi_app

All workers share one sender process, so the broker sees one connection however many workers there are.
"""

import json
import os
import sys
from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from cyproducer import KafkaProducer, errors

TOPIC = os.environ.get("TOPIC", "events")

# Made once, in the master: constructing starts nothing, and each worker attaches when it first sends.
# A request may wait for Kafka for less time than the server waits for a worker: 30 s with gunicorn.
producer = KafkaProducer(bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"), max_block_ms=10_000)


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    """Answer: POST /event publishes the body and does not wait; POST /order waits for its offset; GET shows the pid."""
    path = environ["PATH_INFO"]
    answer = {"pid": os.getpid(), "executable": sys.executable}
    status = "200 OK"
    try:
        if path == "/event":
            producer.send(TOPIC, body_of(environ))
            status = "202 Accepted"
        elif path == "/order":
            record = producer.send(TOPIC, body_of(environ)).result(timeout=15)
            answer |= {"partition": record.partition, "offset": record.offset}
            status = "201 Created"
    except errors.KafkaError as error:
        answer["error"] = str(error)
        status = "503 Service Unavailable"
    body = json.dumps(answer).encode()
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", str(len(body)))])
    return [body]


def body_of(environ: WSGIEnvironment) -> bytes:
    """Return the request's body."""
    return bytes(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)))
