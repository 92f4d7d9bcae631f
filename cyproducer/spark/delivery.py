"""Hands one task's Arrow batches to the producer and waits until its rows are acknowledged."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cyproducer import KafkaProducer, errors

if TYPE_CHECKING:
    import pyarrow

MAX_OUTSTANDING = 64
"""Batches of a task that may wait for their acknowledgement; their bytes are bounded by ``buffer.memory``."""

MAX_PRODUCERS = 4
"""Producers kept per worker process; each owns a buffer of ``buffer.memory`` bytes."""

_producers: OrderedDict[tuple[tuple[str, Any], ...], KafkaProducer] = OrderedDict()


class DeliveryFailedError(RuntimeError):
    """A row of this task was not acknowledged: the task fails, and Spark repeats it."""


@dataclass
class Delivery:
    """What one task has had acknowledged: rows, key and value bytes, and rows by partition number."""

    rows: int = 0
    bytes: int = 0
    partitions: dict[int, int] = field(default_factory=dict)


def producer_for(settings: dict[str, Any]) -> KafkaProducer:
    """The producer of this process for `settings`: made at first use, kept because Spark reuses its workers.

    Spark kills idle workers without running exit handlers. Nothing is lost: a task has waited for its rows.
    """
    wanted = tuple(sorted(settings.items()))
    producer = _producers.pop(wanted, None) or KafkaProducer(**settings)
    _producers[wanted] = producer
    while len(_producers) > MAX_PRODUCERS:
        # A worker runs one task at a time, so the one that was not used for longest is in nobody's use.
        _producers.popitem(last=False)[1].close()
    return producer


def deliver(
    producer: KafkaProducer, batches: Iterable[pyarrow.RecordBatch], topic: str | None
) -> Delivery:
    """Send every batch of one task and return when all rows are acknowledged. `topic` None: by their column.

    A full buffer blocks in `send_arrow` (up to ``max.block.ms``): that is the backpressure. The first failed
    row ends the task at once: `DeliveryFailedError` holds the counts and the first error's text.
    """
    done = Delivery()
    outstanding: deque[tuple[Any, int, int]] = deque()
    sent = 0
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            sent += batch.num_rows
            future = producer.send_arrow(batch, topic=topic)
            outstanding.append((future, batch.num_rows, _payload_bytes(batch)))
            while outstanding and (len(outstanding) > MAX_OUTSTANDING or outstanding[0][0].done()):
                _settle(outstanding, done)
        while outstanding:
            _settle(outstanding, done)
    except errors.KafkaError as error:
        raise DeliveryFailedError(
            f"a row was not acknowledged, of the {sent} that this task sent ({done.rows} are known to be in "
            f"Kafka); first error: {type(error).__name__}: {error.message}. Delivery is at least once: "
            "a repeated task sends all of its rows again"
        ) from error
    return done


def _settle(outstanding: deque[tuple[Any, int, int]], done: Delivery) -> None:
    """Wait for the oldest batch and count its rows; a failed row raises its error."""
    import numpy

    future, rows, size = outstanding[0]
    for number, count in enumerate(numpy.bincount(future.result().partition).tolist()):
        if count:
            done.partitions[number] = done.partitions.get(number, 0) + count
    done.rows += rows
    done.bytes += size
    outstanding.popleft()


def _payload_bytes(batch: pyarrow.RecordBatch) -> int:
    """Bytes of all keys and values."""
    import pyarrow.compute as compute

    columns = [batch.column(name) for name in ("value", "key") if name in batch.schema.names]
    return sum(compute.sum(compute.binary_length(column), min_count=0).as_py() for column in columns)
