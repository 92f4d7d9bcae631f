"""Provides senders of which one follows the other, and a transactional producer that uses them."""

import time

import pytest
from standin_sender import StandIn, die

from cyproducer import KafkaProducer


@pytest.fixture
def path(short_tmp):
    return short_tmp / f"s{time.monotonic_ns()}"


@pytest.fixture
def started(path):
    """Return `started(**topics) -> StandIn`: the next sender on the path; earlier ones are gone."""
    running = []

    def start(**topics):
        path.unlink(missing_ok=True)
        running.append(StandIn(path, topics or {"t": 4, "one": 1}))
        return running[-1].__enter__()

    yield start
    for sender in running:
        die(sender)


@pytest.fixture
def made(sender):
    with KafkaProducer(
        sender=str(sender.path),
        transactional_id="x",
        max_block_ms=10_000,
        request_timeout_ms=1000,
        delivery_timeout_ms=2000,
    ) as producer:
        yield producer


@pytest.fixture
def ready(made):
    made.init_transactions()
    return made


@pytest.fixture
def begun(ready):
    ready.begin_transaction()
    return ready
