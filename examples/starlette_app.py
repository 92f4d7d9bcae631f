"""Runs as an application of Starlette that publishes what it gets, in several workers of uvicorn.

KAFKA=localhost:9092 uvicorn --workers 2 --app-dir examples starlette_app:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from cyproducer import KafkaProducer

TOPIC = os.environ.get("TOPIC", "events")

producer = KafkaProducer(bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"), max_block_ms=10_000)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Wait at the end of the worker, for at most 10 seconds, for the outcomes of its records."""
    yield
    await producer.close_async(10)


async def show(request: Request) -> JSONResponse:
    """Show which worker answers."""
    return JSONResponse({"pid": os.getpid()})


async def publish(request: Request) -> JSONResponse:
    """Publish the body, and do not wait for Kafka's answer."""
    await producer.send_async(TOPIC, await request.body())
    return JSONResponse({"pid": os.getpid()}, 202)


async def publish_and_wait(request: Request) -> JSONResponse:
    """Publish the body, and answer with its place in the log."""
    record = await producer.send_and_wait(TOPIC, await request.body())
    return JSONResponse({"pid": os.getpid(), "partition": record.partition, "offset": record.offset}, 201)


app = Starlette(
    routes=[
        Route("/", show),
        Route("/event", publish, methods=["POST"]),
        Route("/order", publish_and_wait, methods=["POST"]),
    ],
    lifespan=lifespan,
)
