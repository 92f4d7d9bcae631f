"""Runs as an application of FastAPI that publishes what it gets, in several workers of uvicorn.

    KAFKA=localhost:9092 uvicorn --workers 2 --app-dir examples fastapi_app:app

All workers share one sender process.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from cyproducer import KafkaProducer, errors

TOPIC = os.environ.get("TOPIC", "events")

# Made at import: this starts nothing, and the worker attaches to the sender when it first sends. A request waits for at
# most 10 seconds when no broker answers.
producer = KafkaProducer(bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"), max_block_ms=10_000)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Wait at the end of the worker, for at most 10 seconds, for the outcomes of its records."""
    yield
    await producer.close_async(10)


app = FastAPI(lifespan=lifespan)


@app.exception_handler(errors.KafkaError)
async def on_kafka_error(request: Request, error: Exception) -> JSONResponse:
    """Answer 503 when a record cannot be queued, or was not written."""
    return JSONResponse({"error": str(error)}, 503)


@app.get("/")
async def show() -> dict[str, int]:
    """Show which worker answers."""
    return {"pid": os.getpid()}


@app.post("/event", status_code=202)
async def publish(request: Request) -> dict[str, int]:
    """Publish the body, and do not wait for Kafka's answer."""
    await producer.send_async(TOPIC, await request.body())
    return {"pid": os.getpid()}


@app.post("/order", status_code=201)
async def publish_and_wait(request: Request) -> dict[str, int]:
    """Publish the body, and answer with its place in the log."""
    record = await producer.send_and_wait(TOPIC, await request.body())
    return {"pid": os.getpid(), "partition": record.partition, "offset": record.offset}
