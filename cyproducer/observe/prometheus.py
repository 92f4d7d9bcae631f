"""Gives the metrics of this user's senders to Prometheus, through its official client library.

Each metric has Kafka's name with underscores, behind `kafka_producer_`: `record-send-total` of the producer is
`kafka_producer_record_send_total`, that of a topic is `kafka_producer_topic_record_send_total`. Totals are counters,
everything else is a gauge. Each scrape asks the senders, so that nothing is kept here.
"""

from collections.abc import Iterator
from typing import Any

from cyproducer import metric_table
from cyproducer.errors import KafkaConfigurationError
from cyproducer.observe.status import status

__all__ = ["serve", "text", "write"]

#: The prefix of a group's names, its metrics, and the label that its members have.
_GROUPS = (
    ("producer-metrics", "kafka_producer_", metric_table.PRODUCER, None),
    ("producer-node-metrics.", "kafka_producer_node_", metric_table.PRODUCER_NODE, "node_id"),
    ("producer-topic-metrics.", "kafka_producer_topic_", metric_table.PRODUCER_TOPIC, "topic"),
)


def _library() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError:
        raise KafkaConfigurationError(
            "metrics for Prometheus need the package prometheus_client, which is not installed: "
            "pip install 'cyproducer[prometheus]'"
        ) from None
    return prometheus_client


class _Collector:
    """Asks the senders whenever it is scraped. `path`: the socket of one of them; None: all of this user."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._core = _library().core

    def describe(self) -> list[Any]:
        """Return nothing: registering the collector must not ask the senders."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics. Raise SenderUnavailableError if a sender does not answer: the scrape fails."""
        senders = status(self._path)
        for prefix, start, metrics, label in _GROUPS:
            labels = ["socket"] if label is None else ["socket", label]
            for metric in metrics:
                family = self._family(start + metric.name.replace("-", "_"), metric, labels)
                for sender in senders:
                    for group, values in sender["metrics"].items():
                        if group.startswith(prefix) and values[metric.name] is not None:
                            member = [] if label is None else [group.removeprefix(prefix)]
                            family.add_metric([sender["socket"], *member], values[metric.name])
                yield family
        family = self._core.GaugeMetricFamily("kafka_producer_front_ends", "attached processes", labels=["socket"])
        for sender in senders:
            family.add_metric([sender["socket"]], len(sender["front_ends"]))
        yield family

    def _family(self, name: str, metric: metric_table.Metric, labels: list[str]) -> Any:
        meaning = f"{metric.meaning} ({metric.unit})"
        if name.endswith("_total"):
            return self._core.CounterMetricFamily(name.removesuffix("_total"), meaning, labels=labels)
        return self._core.GaugeMetricFamily(name, meaning, labels=labels)


def _registry(path: str | None) -> Any:
    registry = _library().CollectorRegistry(auto_describe=False)
    registry.register(_Collector(path))
    return registry


def text(path: str | None = None) -> str:
    """Return the metrics in Prometheus's text format.

    path   the socket of a sender; default: all senders of this user

    Raise KafkaConfigurationError without the library, SenderUnavailableError if a sender does not answer.
    """
    return str(_library().generate_latest(_registry(path)).decode())


def write(file: str, path: str | None = None) -> None:
    """Write the metrics to a file, in one step, for the text file collector. Raise what `text` raises, and OSError."""
    _library().write_to_textfile(file, _registry(path))


def serve(port: int, address: str, path: str | None = None) -> None:
    """Answer scrapes in a background thread, as long as this process runs. Raise OSError if the port is in use."""
    _library().start_http_server(port, address, _registry(path))
