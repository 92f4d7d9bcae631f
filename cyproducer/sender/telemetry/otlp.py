"""Encodes metrics as MetricsData of OpenTelemetry's protocol (OTLP), under the names of KIP-714.

The metric `record-send-total` of the group producer-metrics is `org.apache.kafka.producer.record.send.total`. Those of
the nodes begin with `org.apache.kafka.producer.node.` and have the attribute node_id, those of the topics begin with
`org.apache.kafka.producer.topic.` and have the attribute topic. Totals are monotonic sums, everything else is a gauge.
A metric without a value is left out.

The library opentelemetry-proto is imported by the first call only.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from cyproducer import metric_table
from cyproducer.record.compression import CODES, compressor

__all__ = ["Request", "load_library", "payload"]

PREFIX = "org.apache.kafka.producer"
ALL = ["*"]
NONE = 0
_CODECS = {code: name for name, code in CODES.items()}


class Request(NamedTuple):
    """What a payload is made of. All of it can be marshalled.

    counts      see metric_table.py
    since       the counts that sums do not contain; None: they contain all
    delta       the temporality of sums
    start_ns    the time from which sums count, in ns since 1970
    now_ns      the present
    prefixes    the beginnings of the names that are requested; ["*"]: all
    accepted    the codecs that the broker accepts, the preferred one first
    max_bytes   the size of a payload that the broker accepts; 0 or less: it does not say
    rack        client_rack; "": none
    """

    counts: metric_table.Counts
    since: metric_table.Counts | None
    delta: bool
    start_ns: int
    now_ns: int
    prefixes: list[str]
    accepted: list[int]
    max_bytes: int
    rack: str


def load_library() -> Any:
    """Import the library. Raise any exception of the import: another package may not fit."""
    from opentelemetry.proto.metrics.v1 import metrics_pb2

    return metrics_pb2


def _full_name(scope: str, name: str) -> str:
    """Return the name of a metric in KIP-714 (TelemetryMetricNamingConvention)."""
    return ".".join([PREFIX, *filter(None, [scope]), name.replace("-", ".")])


def payload(request: Request) -> tuple[int, bytes]:
    """Return the codec and the compressed MetricsData. Raise ImportError without the library.

    If the payload is too large, it is made again without the topics, and then without the nodes.
    """
    for count in range(len(metric_table.GROUPS), 0, -1):
        codec, data = _compressed(_metrics_data(request, metric_table.GROUPS[:count]), request.accepted)
        if len(data) <= request.max_bytes or request.max_bytes <= 0:
            break
    return codec, data


def _compressed(data: bytes, accepted: Sequence[int]) -> tuple[int, bytes]:
    """Compress with the first codec of the broker that this client has."""
    for code in accepted:
        if code == NONE:
            break
        if code in _CODECS:
            try:
                return code, bytes(compressor(_CODECS[code])(data))
            except ImportError:  # cramjam is not installed
                break
    return NONE, data


def _is_selected(name: str, prefixes: list[str]) -> bool:
    return prefixes == ALL or name.startswith(tuple(prefixes))


def _metrics_data(request: Request, groups: Sequence[metric_table.Group]) -> bytes:
    library = load_library()
    data = library.MetricsData()
    of_resource = data.resource_metrics.add()
    if request.rack:
        _add_attribute(of_resource.resource, "client_rack", request.rack)
    scope = of_resource.scope_metrics.add()
    for group in groups:
        members = sorted(request.counts[group.members]) if group.members else [""]
        for metric in group.metrics:
            name = _full_name(group.scope, metric.name)
            if _is_selected(name, request.prefixes):
                values = list(_values(request, metric, members))
                if values:
                    _add_metric(library, scope.metrics.add(), name, group.label, values, request)
    encoded: bytes = data.SerializeToString()
    return encoded


def _is_sum(name: str) -> bool:
    return name.endswith((".total", "-total"))


def _values(request: Request, metric: metric_table.Metric, members: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Yield (member, value) of each member that has a value. A sum does not contain `since`."""
    since = request.since if _is_sum(metric.name) else None
    for member in members:
        value = metric_table.value(metric, request.counts, member)
        if math.isnan(value):
            continue
        if since is not None and (not member or member in since[metric.source]):
            value = max(value - metric_table.value(metric, since, member), 0.0)
        yield member, value


def _add_metric(
    library: Any, metric: Any, name: str, attribute: str, values: list[tuple[str, float]], request: Request
) -> None:
    metric.name = name
    add: Callable[[], Any] = metric.gauge.data_points.add
    if _is_sum(name):
        temporality = "DELTA" if request.delta else "CUMULATIVE"
        metric.sum.aggregation_temporality = getattr(library, f"AGGREGATION_TEMPORALITY_{temporality}")
        metric.sum.is_monotonic = True
        add = metric.sum.data_points.add
    for member, value in values:
        point = add()
        point.as_double = value
        point.time_unix_nano = request.now_ns
        if _is_sum(name):
            point.start_time_unix_nano = request.start_ns
        if attribute:
            _add_attribute(point, attribute, member)


def _add_attribute(owner: Any, key: str, value: str) -> None:
    attribute = owner.attributes.add()
    attribute.key = key
    attribute.value.string_value = value
