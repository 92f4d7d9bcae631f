"""Lists the metrics by Kafka's names, and computes them from readings of sensors.

A reading is (total, count, sum, events, max, elapsed ns), see cyproducer/shm/metrics.pyx. The counts of a client are a
dictionary of plain values, which can travel as JSON:

    client    readings of what a sender has counted for this client, by CLIENT
    own       readings of what the front-end has counted itself, by OWN
    errors    reading of the records that failed
    network   readings of the connections of the sender, by NETWORK
    nodes     {"node-1": readings by NODE}
    topics    {name: readings by TOPIC}
    gauges    {name: number or None}

Names, units and meanings are those of Kafka's SenderMetricsRegistry, KafkaProducerMetrics, BufferPool and Selector.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

Reading = Sequence[int]
Counts = dict[str, Any]

NOTHING: Reading = (0, 0, 0, 0, 0, 1_000_000)

# The sensors of each kind. Their numbers are in shared memory: tools/generate.py writes them into shm/sensors.h. A new
# one stands at the end of its tuple: `cyproducer status` also reads the counts of senders of other versions.

#: What a sender counts for one front-end, and once more for all of them.
CLIENT = (
    "batch-size",  # a batch in a request: its bytes there
    "compression",  # a batch in a request: millionths that are left of its records
    "queue-time",  # a batch in a request: nanoseconds since it was opened
    "records",  # a request: its records
    "record-size",  # a batch in a request: bytes of its largest record
    "retries",  # a batch that waits to be sent again: its records
    "errors",  # a batch that failed: its records
    "splits",  # a batch that was split because it was too large
)
#: {method: the sensor of the nanoseconds that its calls have taken}
TIMES = {
    "init_transactions": "txn-init",
    "begin_transaction": "txn-begin",
    "send_offsets_to_transaction": "txn-send-offsets",
    "commit_transaction": "txn-commit",
    "abort_transaction": "txn-abort",
}
#: What a front-end counts itself. Values are nanoseconds, or records.
OWN = (
    "buffer-wait",  # a wait for memory
    "exhausted",  # a record that got no memory
    "errors",  # records that failed before the sender could know them
    "flush",  # a flush()
    "metadata-wait",  # a wait for metadata
    *TIMES.values(),
)
#: What a sender counts for the connections to one broker.
NODE = (
    "requests",  # a request that was written: its bytes
    "sent",  # a write: its bytes
    "responses",  # a response: its bytes
    "received",  # a read: its bytes
    "latency",  # a Produce request: nanoseconds from its first write to its response
)
#: What a sender counts for all connections. Five sensors count the same events as those of a node.
NETWORK = (
    "created",  # a connection that was established
    "closed",
    "io",  # a read or a write
    "sent",
    "requests",
    "received",
    "responses",
    "latency",
    "throttle",  # a response: nanoseconds of its throttle time
    "select",  # a look at the sockets: nanoseconds of waiting
    "work",  # reading and writing of sockets: nanoseconds
    "authenticated",  # a connection: by TLS, by SASL, or by both
    "auth-failed",
    "reauthenticated",  # once more on the same connection (KIP-368): nanoseconds
    "reauth-failed",
)
#: What a sender counts for a topic, and for a topic of one front-end.
TOPIC = ("records", "bytes", "compression", "retries", "errors")
#: Numbers that are no sensors. Those of several clients are added, except ages.
GAUGES = ("connections", "in-flight", "waiting", "buffer-total", "buffer-available", "metadata-age")


class Metric(NamedTuple):
    """A row of a table. `source` is a key of the counts, "" for a number that is the same for every producer.

    `sensor` is a name in the tuple of the source. `measure` is a key of _MEASURES, or the constant. A value is
    multiplied by `scale`.
    """

    name: str
    source: str
    sensor: str
    measure: str
    unit: str
    meaning: str
    scale: float = 1.0


_MS = 1e-6  # nanoseconds to milliseconds, and millionths to a ratio


def _pair(name: str, source: str, sensor: str, what: str, unit: str, *, events: bool = False) -> tuple[Metric, Metric]:
    """Return the rate and the total of a sensor: of the sum of its values, or of the number of its `events`."""
    rate, total = ("event-rate", "count") if events else ("rate", "total")
    return (
        Metric(f"{name}-rate", source, sensor, rate, f"{unit}/s", f"{what}, per second"),
        Metric(f"{name}-total", source, sensor, total, unit, what),
    )


def _spread(name: str, source: str, sensor: str, what: str, unit: str, scale: float = 1.0) -> tuple[Metric, Metric]:
    """Return the average and the maximum of a sensor."""
    return (
        Metric(f"{name}-avg", source, sensor, "avg", unit, f"{what}: average", scale),
        Metric(f"{name}-max", source, sensor, "max", unit, f"{what}: maximum", scale),
    )


def _traffic(source: str) -> tuple[Metric, ...]:
    """Return the metrics that the group of all connections and that of each node have."""
    return (
        *_pair("request", source, "requests", "requests sent, of all kinds", "requests", events=True),
        *_spread("request-size", source, "requests", "the size of a request", "bytes"),
        *_pair("outgoing-byte", source, "sent", "bytes written to the sockets", "bytes"),
        *_pair("response", source, "responses", "responses received, of all kinds", "responses", events=True),
        *_pair("incoming-byte", source, "received", "bytes read from the sockets", "bytes"),
        *_spread("request-latency", source, "latency", "from sending a Produce request to its response", "ms", _MS),
    )


PRODUCER: tuple[Metric, ...] = (
    *_spread("batch-size", "client", "batch-size", "the bytes of a batch in a request, with its header", "bytes"),
    Metric("compression-rate-avg", "client", "compression", "avg", "ratio",
           "the compressed size of a batch divided by its size: average", _MS),
    *_spread("record-queue-time", "client", "queue-time", "from opening a batch to sending it", "ms", _MS),
    *_pair("record-send", "client", "records", "records in requests; a record counts in each attempt", "records"),
    Metric("records-per-request-avg", "client", "records", "avg", "records", "records of a request: average"),
    *_pair("record-retry", "client", "retries", "records that had to be sent again", "records"),
    *_pair("record-error", "errors", "", "records that failed, each once; calls of send() that failed count as one",
           "records"),
    *_spread("record-size", "client", "record-size", "the bytes of the largest record of a batch", "bytes"),
    *_pair("batch-split", "client", "splits", "batches that were too large for a broker and were split", "batches",
           events=True),
    Metric("waiting-threads", "gauges", "waiting", "gauge", "calls", "threads and coroutines that wait for memory now"),
    Metric("buffer-total-bytes", "gauges", "buffer-total", "gauge", "bytes", "`buffer_memory`"),
    Metric("buffer-available-bytes", "gauges", "buffer-available", "gauge", "bytes", "the part of it that is free"),
    Metric("bufferpool-wait-ratio", "own", "buffer-wait", "ratio", "ratio",
           "the part of the time for which calls waited for memory"),
    Metric("bufferpool-wait-time-ns-total", "own", "buffer-wait", "total", "ns", "time that calls waited for memory"),
    *_pair("buffer-exhausted", "own", "exhausted", "records that got no memory within `max_block_ms`", "records",
           events=True),
    Metric("flush-time-ns-total", "own", "flush", "total", "ns", "time that calls of `flush()` took"),
    Metric("metadata-wait-time-ns-total", "own", "metadata-wait", "total", "ns",
           "time that calls waited until they got the metadata of a topic"),
    *[Metric(f"{sensor}-time-ns-total", "own", sensor, "total", "ns", f"time that calls of `{method}()` took")
      for method, sensor in TIMES.items()],
    Metric("txn-prepare-time-ns-total", "", "", "zero", "ns", "this producer has no two-phase commit"),
    Metric("requests-in-flight", "gauges", "in-flight", "gauge", "requests", "requests without a response now"),
    Metric("metadata-age", "gauges", "metadata-age", "gauge", "s", "age of the cluster's metadata"),
    *_spread("produce-throttle-time", "network", "throttle", "the throttle time in a response of a broker", "ms", _MS),
    Metric("connection-count", "gauges", "connections", "gauge", "connections", "connections to brokers now"),
    *_pair("connection-creation", "network", "created", "connections that were established", "connections",
           events=True),
    *_pair("connection-close", "network", "closed", "connections that were closed", "connections", events=True),
    *_pair("network-io", "network", "io", "reads and writes of sockets", "operations", events=True),
    *_traffic("network"),
    *_pair("select", "network", "select", "looks at the sockets", "looks", events=True),
    Metric("io-wait-time-ns-avg", "network", "select", "avg", "ns", "waiting for the sockets: average"),
    Metric("io-wait-ratio", "network", "select", "ratio", "ratio", "the part of the time for which the sender waited"),
    Metric("io-wait-time-ns-total", "network", "select", "total", "ns", "time that the sender waited for the sockets"),
    Metric("io-time-ns-avg", "network", "work", "avg", "ns", "reading or writing sockets: average"),
    Metric("io-ratio", "network", "work", "ratio", "ratio",
           "the part of the time for which the sender read and wrote sockets"),
    Metric("io-time-ns-total", "network", "work", "total", "ns", "time that the sender read and wrote sockets"),
    *_pair("successful-authentication", "network", "authenticated", "connections that were authenticated (TLS, SASL)",
           "connections", events=True),
    *_pair("failed-authentication", "network", "auth-failed", "connections whose authentication failed", "connections",
           events=True),
    *_pair("successful-reauthentication", "network", "reauthenticated", "connections that were authenticated again",
           "connections", events=True),
    *_pair("failed-reauthentication", "network", "reauth-failed", "connections that could not be authenticated again",
           "connections", events=True),
    Metric("successful-authentication-no-reauth-total", "network", "authenticated", "count", "connections",
           "connections that were authenticated; for a client as for Kafka's the same as the total above"),
    *_spread("reauthentication-latency", "network", "reauthenticated", "the time to authenticate again", "ms", _MS),
)  # fmt: skip

PRODUCER_NODE: tuple[Metric, ...] = _traffic("nodes")

PRODUCER_TOPIC: tuple[Metric, ...] = (
    *_pair("record-send", "topics", "records", "records in requests; a record counts in each attempt", "records"),
    *_pair("byte", "topics", "bytes", "bytes of batches in requests", "bytes"),
    Metric("compression-rate", "topics", "compression", "avg", "ratio",
           "the compressed size of a batch divided by its size: average", _MS),
    *_pair("record-retry", "topics", "retries", "records that had to be sent again", "records"),
    *_pair("record-error", "topics", "errors", "records that failed, each once", "records"),
)  # fmt: skip


class ProcessMetric(NamedTuple):
    """A metric of the group producer-metrics that Kafka does not have. It is of this process alone."""

    name: str
    unit: str
    meaning: str


#: producer/metrics.py has their values, in this order.
PROCESS = (
    ProcessMetric("record-accepted-total", "records", "records that `send()` and the other calls have accepted"),
    ProcessMetric("byte-total", "bytes", "encoded bytes of the batches that are full or closed"),
    ProcessMetric("batch-total", "batches", "batches that were opened"),
    ProcessMetric("batch-error-total", "batches", "batches whose outcome is an error"),
    ProcessMetric("batches-pending", "batches", "batches without an outcome"),
)


class Group(NamedTuple):
    """A group of metrics. If it has `members`, each of them (a key of the counts) has a group "NAME.MEMBER".

    `scope`: the part of a metric's name in Prometheus and in KIP-714. `label`: what tells the members apart there.
    """

    name: str
    metrics: tuple[Metric, ...]
    members: str = ""
    scope: str = ""
    label: str = ""


GROUPS = (
    Group("producer-metrics", PRODUCER),
    Group("producer-node-metrics", PRODUCER_NODE, "nodes", "node", "node_id"),
    Group("producer-topic-metrics", PRODUCER_TOPIC, "topics", "topic", "topic"),
)

_ORDER = {"client": CLIENT, "own": OWN, "network": NETWORK, "nodes": NODE, "topics": TOPIC}
_MEASURES: dict[str, Callable[[Reading], float]] = {
    "total": lambda reading: float(reading[0]),
    "count": lambda reading: float(reading[1]),
    "rate": lambda reading: reading[2] * 1e9 / reading[5],
    "event-rate": lambda reading: reading[3] * 1e9 / reading[5],
    "ratio": lambda reading: reading[2] / reading[5],
    "avg": lambda reading: reading[2] / reading[3] if reading[3] else math.nan,
    "max": lambda reading: float(reading[4]) if reading[3] else math.nan,
}


def merged(readings: Iterable[Reading]) -> Reading:
    """Return the reading of several sensors as if they were one."""
    found = list(readings) or [NOTHING]
    sums = [sum(reading[at] for reading in found) for at in range(4)]
    return (*sums, max(reading[4] for reading in found), max(reading[5] for reading in found))


def merged_rows(rows: Iterable[Sequence[Reading]]) -> list[Reading]:
    """Return the readings of several rows of the same sensors as if they were one row."""
    return [merged(column) for column in zip(*rows, strict=True)]


def of_this_version(counts: Counts) -> Counts:
    """Return the counts of a sender of any version with the sensors of this one.

    An older sender has counted nothing of later sensors. Those that only a newer one has are left out.
    """

    def fit(row: Sequence[Reading], sensors: Sequence[str]) -> list[Reading]:
        return [*row[: len(sensors)], *[NOTHING] * (len(sensors) - len(row))]

    rows = {source: fit(counts[source], _ORDER[source]) for source in ("client", "own", "network")}
    members = {
        source: {name: fit(row, _ORDER[source]) for name, row in counts[source].items()}
        for source in ("nodes", "topics")
    }
    return {**counts, **rows, **members}


def merged_counts(all_counts: Sequence[Counts]) -> Counts:
    """Return the counts of several clients together: the nodes of different clusters stay out."""
    gauges: dict[str, float | None] = {}
    for name in GAUGES:
        known = [counts["gauges"][name] for counts in all_counts if counts["gauges"].get(name) is not None]
        gauges[name] = (max(known) if name == "metadata-age" else sum(known)) if known else None
    topics = {name for counts in all_counts for name in counts["topics"]}
    return {
        "client": merged_rows(counts["client"] for counts in all_counts),
        "own": merged_rows(counts["own"] for counts in all_counts),
        "errors": merged(counts["errors"] for counts in all_counts),
        "network": merged_rows(counts["network"] for counts in all_counts),
        "nodes": {},
        "topics": {
            name: merged_rows(counts["topics"][name] for counts in all_counts if name in counts["topics"])
            for name in sorted(topics)
        },
        "gauges": gauges,
    }


def value(metric: Metric, counts: Counts, member: str = "") -> float:
    """Return the value of a metric; of a node's or a topic's metric for that `member`. NaN means unknown."""
    if not metric.source:
        return 0.0
    if metric.source == "gauges":
        found = counts["gauges"].get(metric.sensor)
        return math.nan if found is None else float(found)
    readings = counts[metric.source]
    if metric.source == "errors":
        reading = readings
    else:
        row = readings[member] if member else readings
        reading = row[_ORDER[metric.source].index(metric.sensor)]
    return _MEASURES[metric.measure](reading) * metric.scale


def groups(counts: Counts) -> dict[str, dict[str, float]]:
    """Return {group: {name: value}}. Each node and each topic has a group of its own, as in kafka-python."""
    found = {}
    for group in GROUPS:
        for member in sorted(counts[group.members]) if group.members else [""]:
            name = f"{group.name}.{member}" if member else group.name
            found[name] = {metric.name: value(metric, counts, member) for metric in group.metrics}
    return found


def nothing() -> Counts:
    """Return the counts of a client that has done nothing."""
    return {
        "client": [NOTHING] * len(CLIENT),
        "own": [NOTHING] * len(OWN),
        "errors": NOTHING,
        "network": [NOTHING] * len(NETWORK),
        "nodes": {},
        "topics": {},
        "gauges": {name: None if name == "metadata-age" else 0 for name in GAUGES},
    }


def with_totals(readings: Sequence[Reading] | None, former: Sequence[Sequence[int]] | None) -> list[Reading]:
    """Return the readings with the [total, count] of former sessions added; either side may be missing."""
    if not former:
        return list(readings or ())
    now = readings or [NOTHING] * len(former)
    return [(r[0] + total, r[1] + count, *r[2:]) for r, (total, count) in zip(now, former, strict=True)]
