"""Decodes metrics that were pushed to a broker, by libraries that the sender does not use."""

import zlib
from typing import Any

import lz4.frame
import snappy
import zstandard
from kfake.telemetry import GZIP, LZ4, SNAPPY, ZSTD, Telemetry
from opentelemetry.proto.metrics.v1 import metrics_pb2

DELTA = metrics_pb2.AGGREGATION_TEMPORALITY_DELTA
CUMULATIVE = metrics_pb2.AGGREGATION_TEMPORALITY_CUMULATIVE

Point = tuple[str, tuple[tuple[str, str], ...]]
"""(name of the metric, attributes)"""


def decompressed(codec: int, data: bytes) -> bytes:
    """Return the bytes, without their compression."""
    if codec == GZIP:
        return zlib.decompress(data, wbits=31)
    if codec == LZ4:
        return lz4.frame.decompress(data)
    if codec == ZSTD:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    if codec == SNAPPY:
        found, at = b"", 16  # behind the header of snappy-java
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            found += snappy.uncompress(data[at + 4 : at + 4 + size])
            at += 4 + size
        return found
    return data


class Payload:
    """The metrics of one push: values by name and attributes, and what the sums say about themselves."""

    def __init__(self, data: bytes) -> None:
        self.values: dict[Point, float] = {}
        self.temporalities: set[int] = set()
        self.sums: set[str] = set()
        self.times: dict[Point, tuple[int, int]] = {}  # start and end of a sum, in ns since 1970
        self.resource: dict[str, str] = {}
        metrics = metrics_pb2.MetricsData.FromString(data)
        for of_resource in metrics.resource_metrics:
            self.resource = {item.key: item.value.string_value for item in of_resource.resource.attributes}
            for scope in of_resource.scope_metrics:
                for metric in scope.metrics:
                    self._read(metric)

    def _read(self, metric: Any) -> None:
        is_sum = metric.WhichOneof("data") == "sum"
        data = metric.sum if is_sum else metric.gauge
        if is_sum:
            assert metric.sum.is_monotonic
            self.sums.add(metric.name)
            self.temporalities.add(metric.sum.aggregation_temporality)
        for point in data.data_points:
            key = metric.name, tuple((item.key, item.value.string_value) for item in point.attributes)
            assert key not in self.values, f"{key} is there twice"
            self.values[key] = point.as_double
            if is_sum:
                self.times[key] = point.start_time_unix_nano, point.time_unix_nano

    def names(self) -> set[str]:
        return {name for name, _ in self.values}

    def value(self, name: str, **attributes: str) -> float:
        return self.values[f"org.apache.kafka.producer.{name}", tuple(attributes.items())]


def payloads(telemetry: Telemetry) -> list[Payload]:
    """Return what was pushed to a scripted broker."""
    return [Payload(decompressed(body["compression_type"], body["metrics"])) for _, body in telemetry.pushed]
