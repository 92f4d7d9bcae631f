"""Makes the result of KafkaProducer.metrics(), and counts the calls that failed."""

from typing import Any

from cyproducer import errors, metric_table
from cyproducer.producer.core.native import Session
from cyproducer.version import VERSION

__all__ = ["count_refused", "groups_of"]

#: Kafka's AppInfoParser says this for a build without a commit.
_COMMIT = "unknown"


def groups_of(producer: Any, started_ms: float) -> dict[str, dict[str, Any]]:
    """Return {group: {name: value}} of a KafkaProducer.

    started_ms   when the producer was made, in ms since 1970
    """
    session: Session = producer._session
    session.look()
    # asyncio: of the calls that wait to send to one topic, only the first is in the queue for memory
    for_memory = session.memory_queue.waiters()
    lines = [line.waiters() for line in list(producer._lines.values())]
    behind = [len(line) - 1 for line in lines if line and line[0] in for_memory]
    counts = session.counts.read()
    total = producer.settings.buffer_memory
    counts["gauges"] |= {
        "waiting": len(session.memory_queue) + sum(behind),
        "buffer-total": total,
        "buffer-available": session.arena.buffer_available if session.alive else total,
    }
    found: dict[str, dict[str, Any]] = dict(metric_table.groups(counts))
    found["producer-metrics"] |= {
        "record-accepted-total": float(session.arena.records + session.arena.open_records),
        "byte-total": float(session.arena.bytes),
        "batch-total": float(session.arena.batches),
        "batch-error-total": float(session.outcomes.failures),
        "batches-pending": float(session.outstanding()[0]),
    }
    found["app-info"] = {"version": VERSION, "commit-id": _COMMIT, "start-time-ms": float(int(started_ms))}
    return found


def count_refused(producer: Any, error: errors.KafkaError) -> None:
    """Count a call that raised `error` instead of queuing its records. Kafka does not count calls of a closed producer.

    producer   a KafkaProducer
    """
    if not isinstance(error, errors.ProducerClosedError):
        producer._session.arena.own.count_refused(isinstance(error, errors.BufferExhaustedError))
