"""Gives the metrics of this user's senders to Prometheus, through its official client library.

Each metric has Kafka's name with underscores, behind `kafka_producer_`: `record-send-total` of the producer is
`kafka_producer_record_send_total`, that of a topic is `kafka_producer_topic_record_send_total`. Totals are counters,
everything else is a gauge. What Kafka's producer has no metric for begins with `cyproducer_`. Each scrape asks the
senders, so that nothing is kept here.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cyproducer import metric_table
from cyproducer.errors import KafkaConfigurationError
from cyproducer.observe.status import status

__all__ = ["OWN_METRICS", "application", "text", "write"]

#: The values of a metric for one sender, by the values of its labels.
Samples = dict[tuple[str, ...], float]


class OwnMetric(NamedTuple):
    """A metric that is made from the status of a sender. Each sample also has the label `socket`."""

    name: str
    labels: tuple[str, ...]
    meaning: str
    samples: Callable[[dict[str, Any]], Samples]


def _of_applications(value: str, gathered: Callable[[list[float]], float]) -> Callable[[dict[str, Any]], Samples]:
    """Return the function that gathers a field of the front-ends for each application. None counts as 0."""

    def samples(sender: dict[str, Any]) -> Samples:
        found: dict[tuple[str, ...], list[float]] = {}
        for front_end in sender["front_ends"]:
            found.setdefault((front_end["app"],), []).append(front_end[value] or 0)
        return {labels: gathered(values) for labels, values in found.items()}

    return samples


def _counts(rows: str, field: str) -> Callable[[dict[str, Any]], Samples]:
    """Return the function that counts the rows of the status with each value of a field."""
    return lambda sender: dict(Counter((str(row[field]),) for row in sender[rows]))


OWN_METRICS = (
    OwnMetric("kafka_producer_front_ends", (), "attached processes", lambda sender: {(): len(sender["front_ends"])}),
    OwnMetric(
        "cyproducer_sender_info",
        ("version", "cluster_id"),
        "1 for each sender",
        lambda sender: {(sender["version"], sender["cluster_id"] or ""): 1},
    ),
    OwnMetric(
        "cyproducer_sender_start_time_seconds",
        (),
        "when the first sender started, in seconds since 1970",
        lambda sender: {(): sender["started_at"]},
    ),
    OwnMetric(
        "cyproducer_sender_restarts_total",
        (),
        "how often a sender was started because the one before it had ended",
        lambda sender: {(): sender["restarts"]},
    ),
    OwnMetric("cyproducer_connections", ("state",), "connections to brokers", _counts("connections", "state")),
    OwnMetric("cyproducer_transactions", ("phase",), "transactional producers", _counts("transactions", "phase")),
    OwnMetric("cyproducer_front_ends", ("app",), "attached processes of an application", _counts("front_ends", "app")),
    OwnMetric(
        "cyproducer_oldest_record_age_seconds",
        ("app",),
        "the age of the oldest batch of an application without an outcome; 0 if there is none",
        _of_applications("oldest_unacked_ms", lambda ages: max(ages) / 1000),
    ),
    OwnMetric(
        "cyproducer_buffer_memory_bytes",
        ("app",),
        "the shared memory of an application for records",
        _of_applications("buffer_memory", sum),
    ),
    OwnMetric(
        "cyproducer_buffer_in_use_bytes",
        ("app",),
        "the part of that memory that is in use",
        _of_applications("buffer_in_use", sum),
    ),
    OwnMetric(
        "cyproducer_failed_records_total",
        ("app", "topic", "cause"),
        "records that were not delivered, or of which this is not known, by Kafka's name of the error",
        lambda sender: {(row["app"], row["topic"], row["cause"]): row["count"] for row in sender["ledger"]},
    ),
)


def _library() -> Any:
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError as error:
        raise KafkaConfigurationError(
            f"metrics for Prometheus need the package prometheus_client, which cannot be imported: {error}; "
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
        for group in metric_table.GROUPS:
            labels = ["socket", group.label] if group.members else ["socket"]
            for metric in group.metrics:
                name = "_".join(["kafka_producer", *filter(None, [group.scope]), metric.name.replace("-", "_")])
                family = self._family(name, f"{metric.meaning} ({metric.unit})", labels)
                for sender in senders:
                    for found, values in sender["metrics"].items():
                        if found.partition(".")[0] == group.name and values[metric.name] is not None:
                            member = [found.removeprefix(f"{group.name}.")] if group.members else []
                            family.add_metric([sender["socket"], *member], values[metric.name])
                yield family
        for own in OWN_METRICS:
            family = self._family(own.name, own.meaning, ["socket", *own.labels])
            for sender in senders:
                for values, number in own.samples(sender).items():
                    family.add_metric([sender["socket"], *values], number)
            yield family

    def _family(self, name: str, meaning: str, labels: list[str]) -> Any:
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


def application(path: str | None = None) -> Any:
    """Return the WSGI application that answers scrapes. Raise KafkaConfigurationError without the library."""
    return _library().make_wsgi_app(_registry(path))
