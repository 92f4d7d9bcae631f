"""Traces records with OpenTelemetry: `TracingInterceptor`, a span for each record from `send()` to its outcome.

The context of the span goes with the record in its headers (`traceparent` and `tracestate` of W3C by default), so the
span of the consumer can belong to the same trace. Names and attributes are those of OpenTelemetry's conventions for
messaging with Kafka.
"""

import os
from collections.abc import Iterable
from typing import Any

from cyproducer.errors import KafkaError
from cyproducer.types import ProducerRecord

try:
    from opentelemetry import propagate, trace
except ImportError:
    raise ImportError(
        "tracing needs the package opentelemetry-api, which is not installed: pip install 'cyproducer[opentelemetry]'"
    ) from None

__all__ = ["TracingInterceptor"]


class TracingInterceptor:
    """An interceptor that makes a span for each record of `send()` and `send_async()`.

    tracer_provider   that of the spans; default: the global one
    propagator        writes the context into the headers; default: the global one

    The span begins in `send()`, as a child of the current span. It ends with the outcome, and has the partition and the
    offset, or the error. Pass an object of this class in `interceptors`; several producers may share it.
    """

    def __init__(self, tracer_provider: Any = None, propagator: Any = None) -> None:
        self._tracer = trace.get_tracer("cyproducer", tracer_provider=tracer_provider)
        self._propagator = propagator if propagator is not None else propagate.get_global_textmap()
        self._spans: dict[tuple[int, int], trace.Span] = {}
        self._process = os.getpid()

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """Begin the span, and return the record with the context in its headers."""
        if self._process != os.getpid():  # the spans of the parent are the parent's to end
            self._process, self._spans = os.getpid(), {}
        span = self._tracer.start_span(
            f"send {record.topic}", kind=trace.SpanKind.PRODUCER, attributes=_attributes(record)
        )
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, trace.set_span_in_context(span))
        headers = [header for header in _pairs(record.headers) if header[0] not in carrier]
        headers += [(name, value.encode()) for name, value in carrier.items()]
        found = self._context_of(headers)
        if span.is_recording() and found is not None:
            self._spans[found] = span
        return record._replace(headers=headers)

    def on_acknowledgement(self, metadata: Any, error: BaseException | None, headers: Any) -> None:
        """End the span of the record with these headers."""
        found = self._context_of(_pairs(headers))
        span = None if found is None else self._spans.pop(found, None)
        if span is None:
            return
        if metadata is not None and metadata.partition >= 0:
            span.set_attribute("messaging.destination.partition.id", str(metadata.partition))
        if metadata is not None and metadata.offset >= 0:
            span.set_attribute("messaging.kafka.offset", metadata.offset)
        if error is not None:
            span.set_attribute(
                "error.type", error.kafka_name if isinstance(error, KafkaError) else type(error).__name__
            )
            span.record_exception(error)
            span.set_status(trace.Status(trace.StatusCode.ERROR, str(error)))
        span.end()

    def _context_of(self, headers: Iterable[tuple[str, bytes]]) -> tuple[int, int] | None:
        """Return trace id and span id in the headers; None if there are none."""
        carrier = {name: value.decode("ascii", "replace") for name, value in headers if isinstance(value, bytes)}
        found = trace.get_current_span(self._propagator.extract(carrier)).get_span_context()
        return (found.trace_id, found.span_id) if found.is_valid else None


def _pairs(headers: Any) -> list[Any]:
    return [] if headers is None else list(headers)


def _attributes(record: ProducerRecord) -> dict[str, Any]:
    found: dict[str, Any] = {
        "messaging.system": "kafka",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": str(record.topic),
    }
    if isinstance(record.key, str):
        found["messaging.kafka.message.key"] = record.key
    elif isinstance(record.key, bytes):
        found["messaging.kafka.message.key"] = record.key.decode("utf-8", "backslashreplace")
    if record.value is None:
        found["messaging.kafka.message.tombstone"] = True
    return found
