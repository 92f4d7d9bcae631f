"""Sends the Arrow batches of one task with the producer, and waits until all rows are acknowledged."""

from __future__ import annotations

import functools
import gc
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cyproducer import KafkaProducer, errors

if TYPE_CHECKING:
    import pyarrow

MAX_OUTSTANDING = 64
"""The most batches of a task without an acknowledgement. ``buffer.memory`` limits their bytes."""

MAX_PRODUCERS = 4
"""The most producers that a worker process keeps. Each has a buffer of ``buffer.memory`` bytes."""

_producers: OrderedDict[tuple[tuple[str, Any], ...], KafkaProducer] = OrderedDict()


AT_LEAST_ONCE = "Delivery is at least once: a repeated task sends all of its rows again"


class DeliveryFailedError(RuntimeError):
    """A row of this task was not acknowledged. The task fails, and Spark repeats it."""


class WrongRowError(ValueError):
    """A row of this task has a value that no attempt can send; the text names it."""


@dataclass
class Delivery:
    """The acknowledged rows of one task: their number, the bytes of keys and values, and rows by topic and partition.

    `first` is the offset of the first row of each of these partitions, -1 if it is not known. The topic is "" if an
    argument has given it.
    """

    rows: int = 0
    bytes: int = 0
    written: dict[tuple[str, int], int] = field(default_factory=dict)
    first: dict[tuple[str, int], int] = field(default_factory=dict)

    @property
    def partitions(self) -> dict[int, int]:
        """The rows by partition number, summed up over the topics."""
        found: dict[int, int] = {}
        for (_, number), rows in self.written.items():
            found[number] = found.get(number, 0) + rows
        return found


def producer_for(settings: dict[str, Any]) -> KafkaProducer:
    """Return the producer of this process for `settings`. It is created at its first use and kept for later tasks.

    Spark kills idle workers without running exit handlers. No row is lost, because each task waits for its rows.
    """
    _freeze_once()
    wanted = tuple(sorted(settings.items()))
    producer = _producers.pop(wanted, None) or KafkaProducer(**settings)
    _producers[wanted] = producer
    while len(_producers) > MAX_PRODUCERS:
        # A worker runs one task at a time, so the least recently used producer is not in use.
        _producers.popitem(last=False)[1].close()
    return producer


@functools.cache
def _freeze_once() -> None:
    """Exclude all objects that exist now from the garbage collections that PySpark runs after each task.

    Otherwise each collection would visit every object of PySpark, pyarrow and NumPy. Garbage is collected first, so
    that no garbage is kept.
    """
    import numpy  # noqa: F401 - every task uses it, so load it before freezing
    import pyarrow.compute  # noqa: F401 - as above

    gc.collect()
    gc.freeze()


def deliver(
    producer: KafkaProducer,
    batches: Iterable[pyarrow.RecordBatch],
    topic: str | None,
    guarantee: str = AT_LEAST_ONCE,
) -> Delivery:
    """Send every batch of one task and return when all rows are acknowledged.

    If `topic` is None, the column ``topic`` gives it. When the buffer is full, `send_arrow` blocks for up to
    ``max.block.ms``, which is the back-pressure. The first failed row ends the task with `DeliveryFailedError`, which
    contains the counts, the text of the first error and `guarantee`. Raise WrongRowError for a row that cannot be sent.
    """
    done = Delivery()
    outstanding: deque[tuple[Any, int, int]] = deque()
    sent = 0
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            sent += batch.num_rows
            future = _send(producer, batch, topic)
            outstanding.append((future, batch.num_rows, _payload_bytes(batch)))
            while outstanding and (len(outstanding) > MAX_OUTSTANDING or outstanding[0][0].done()):
                _await_oldest(outstanding, done)
        while outstanding:
            _await_oldest(outstanding, done)
    except errors.KafkaError as failed:
        error = _reason(failed, outstanding)
        raise DeliveryFailedError(
            f"at least one of the {sent} rows that this task sent was not acknowledged ({done.rows} rows are known to "
            f"be in Kafka); first error: {type(error).__name__}: {error.message}. {guarantee}"
        ) from error
    return done


def _reason(error: errors.KafkaError, outstanding: Iterable[tuple[Any, int, int]]) -> errors.KafkaError:
    """Return the error, or that of a later batch if the first one only tells that its transaction has failed."""
    if isinstance(error, errors.TransactionAbortedError):
        for future, _, _ in outstanding:
            other: errors.KafkaError | None = future.exception()
            if other is not None and not isinstance(other, errors.TransactionAbortedError):
                return other
    return error


def _send(producer: KafkaProducer, batch: pyarrow.RecordBatch, topic: str | None) -> Any:
    try:
        return producer.send_arrow(batch, topic=topic)
    except errors.KafkaError:
        raise
    except (TypeError, ValueError) as error:
        raise WrongRowError(str(error)) from error


def _await_oldest(outstanding: deque[tuple[Any, int, int]], done: Delivery) -> None:
    """Wait for the oldest batch and count its rows. Raise the error of a failed row."""
    import numpy

    future, rows, size = outstanding[0]
    for name, partitions, offsets in _by_topic(future.result()):
        for number, count in enumerate(numpy.bincount(partitions).tolist()):
            if not count:
                continue
            place = name, number
            if place not in done.written:
                done.first[place] = int(offsets[(partitions == number).argmax()])
            done.written[place] = done.written.get(place, 0) + count
    done.rows += rows
    done.bytes += size
    outstanding.popleft()


def _by_topic(result: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield each topic of one batch with the partitions and the offsets of its rows, in order."""
    import numpy

    partitions, offsets = numpy.asarray(result.partition), numpy.asarray(result.offset)
    if isinstance(result.topic, str):
        yield "", partitions, offsets
        return
    of_topic = numpy.asarray(result.topic.numbers)
    for at, name in enumerate(result.topic.names):
        rows = of_topic == at
        yield name, partitions[rows], offsets[rows]


def _payload_bytes(batch: pyarrow.RecordBatch) -> int:
    """Return the number of bytes of all keys and values."""
    import pyarrow.compute as compute

    columns = [batch.column(name) for name in ("value", "key") if name in batch.schema.names]
    return sum(compute.sum(compute.binary_length(column), min_count=0).as_py() for column in columns)
