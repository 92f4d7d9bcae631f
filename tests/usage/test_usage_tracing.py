"""Tests TracingInterceptor with the SDK of OpenTelemetry: a span for each record, and its context in the headers."""

import os
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from support.consumer import ReadRecords

from cyproducer.errors import RecordTooLargeError
from cyproducer.opentelemetry import TracingInterceptor

SAMPLED = trace.TraceFlags.SAMPLED


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> TracerProvider:
    made = TracerProvider()
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made


def context_of(headers: list[tuple[str, bytes]]) -> str:
    (found,) = [value.decode() for name, value in headers if name == "traceparent"]
    return found


def written(span: Any) -> str:
    """Return the context of a span as W3C writes it."""
    carrier: dict[str, str] = {}
    context = trace.set_span_in_context(trace.NonRecordingSpan(span.get_span_context()))
    TraceContextTextMapPropagator().inject(carrier, context)
    return carrier["traceparent"]


def test_each_record_has_a_span_and_carries_its_context(
    exporter: InMemorySpanExporter,
    provider: TracerProvider,
    make_producer: Callable[..., Any],
    topic: str,
    arrived: Callable[..., ReadRecords],
) -> None:
    producer = make_producer(interceptors=[TracingInterceptor(provider)])
    old = ("traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with provider.get_tracer("application").start_as_current_span("request") as parent:
        sent = [producer.send(topic, b"%d" % n, b"key", [("n", b"%d" % n), old]) for n in range(100)]
    records = {(record.partition, record.offset) for record in (future.result(30) for future in sent)}
    producer.flush()
    spans = [span for span in exporter.get_finished_spans() if span.name == f"send {topic}"]
    assert len(spans) == 100
    found = arrived(topic, 100)
    assert {context_of(headers) for headers in found.headers} == {written(span) for span in spans}
    assert all(len(headers) == 2 for headers in found.headers)
    for span in spans:
        assert span.kind is SpanKind.PRODUCER
        assert span.parent == parent.get_span_context()
        assert span.status.status_code is StatusCode.UNSET
        assert span.attributes["messaging.system"] == "kafka"
        assert span.attributes["messaging.destination.name"] == topic
        assert span.attributes["messaging.kafka.message.key"] == "key"
    attributes = [span.attributes for span in spans]
    places = {(int(a["messaging.destination.partition.id"]), a["messaging.kafka.offset"]) for a in attributes}
    assert places == records


def test_a_span_has_the_error(
    exporter: InMemorySpanExporter, provider: TracerProvider, make_producer: Callable[..., Any], new_topic: Any
) -> None:
    topic = new_topic(1, configs={"max.message.bytes": "1000"})
    producer = make_producer(interceptors=[TracingInterceptor(provider)])
    with pytest.raises(RecordTooLargeError):
        producer.send(topic, bytes(5000)).result(30)
    with pytest.raises(TypeError):
        producer.send(topic, object())
    producer.flush()
    refused, raised = sorted(exporter.get_finished_spans(), key=lambda span: span.attributes["error.type"])
    assert (refused.attributes["error.type"], raised.attributes["error.type"]) == ("MESSAGE_TOO_LARGE", "TypeError")
    for span in (refused, raised):
        assert span.status.status_code is StatusCode.ERROR
        assert [event.name for event in span.events] == ["exception"]
        assert "messaging.kafka.offset" not in span.attributes


def test_a_trace_that_is_not_sampled_goes_with_the_record(
    make_producer: Callable[..., Any], topic: str, arrived: Callable[..., ReadRecords]
) -> None:
    interceptor = TracingInterceptor(TracerProvider(sampler=ALWAYS_OFF))
    make_producer(interceptors=[interceptor]).send(topic, b"value").result(30)
    flags = context_of(arrived(topic, 1).headers[0]).rpartition("-")[2]
    assert int(flags, 16) & SAMPLED == 0


def test_a_child_leaves_the_spans_of_its_parent(
    exporter: InMemorySpanExporter, provider: TracerProvider, make_producer: Callable[..., Any], topic: str
) -> None:
    producer = make_producer(interceptors=[TracingInterceptor(provider)], linger_ms=500)
    producer.send(topic, b"parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            producer.send(topic, b"child").result(30)
            producer.flush()
            status = len(exporter.get_finished_spans()) - 1
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    producer.flush()
    assert len(exporter.get_finished_spans()) == 1
