"""Makes the result of KafkaProducer.metrics(), and counts the calls that failed."""

from collections.abc import Mapping
from typing import Any

from cyproducer import errors, metric_table
from cyproducer.config.settings import Settings
from cyproducer.producer.session.session import Session
from cyproducer.version import VERSION

__all__ = ["count_refused", "groups_of"]

#: Kafka's AppInfoParser says this for a build without a commit.
_COMMIT = "unknown"


def groups_of(
    session: Session, settings: Settings, waiting: int, started_ms: float, transaction_ns: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """Return {group: {name: value}} of a producer.

    waiting         calls that wait for memory
    started_ms      when the producer was made, in ms since 1970
    transaction_ns  the time that its calls of each method for transactions took
    """
    counts = session.counts.read()
    total = settings.buffer_memory
    counts["gauges"] |= {
        "waiting": waiting,
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
    found["producer-metrics"] |= {
        metric_table.TRANSACTION_TIMES[method]: float(ns) for method, ns in transaction_ns.items()
    }
    found["app-info"] = {"version": VERSION, "commit-id": _COMMIT, "start-time-ms": float(int(started_ms))}
    return found


def count_refused(producer: Any, error: errors.KafkaError) -> None:
    """Count a call that raised `error` instead of queuing its records. Kafka does not count calls of a closed producer.

    producer   a KafkaProducer
    """
    if not isinstance(error, errors.ProducerClosedError):
        producer._session.arena.own.count_refused(isinstance(error, errors.BufferExhaustedError))
