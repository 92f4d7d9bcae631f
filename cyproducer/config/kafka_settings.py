"""Lists every setting of Kafka's producer (`ProducerConfig` of Kafka 4.3), and what this producer does with it.

A test compares the list with Kafka's own. The documentation has it as a table.
"""

from typing import Any

from cyproducer.config.kafka_security_settings import KAFKA_SECURITY_SETTINGS, OF_OTHER_CLIENTS
from cyproducer.config.kafka_setting import PARTLY, REFUSED, SUPPORTED, KafkaSetting

__all__ = [
    "KAFKA_SETTINGS",
    "PARTLY",
    "REFUSED",
    "SUPPORTED",
    "KafkaSetting",
    "asks_for_nothing",
    "other_clients_setting",
    "refused_setting",
]

_LONG = "Values above 2147483647 ms (24 days) count as that."
_SHORTEST = f"No pause is shorter than 10 ms. {_LONG}"
_NO_METRICS = "the metrics of this producer have no levels or reporters; see metrics()"

# fmt: off
KAFKA_SETTINGS = (
    KafkaSetting("bootstrap.servers", PARTLY, "Not needed with `sender`. A default port of 9092 is added."),
    KafkaSetting("key.serializer", PARTLY, "An object of Python. Not required: without it, keys are bytes."),
    KafkaSetting("value.serializer", PARTLY, "An object of Python. Not required: without it, values are bytes."),
    KafkaSetting("client.id", PARTLY, "The default is `cyproducer`, because one sender serves many producers."),
    KafkaSetting("acks", PARTLY, "`acks=0` goes out with `acks=1`, and its answer is not waited for."),
    KafkaSetting("enable.idempotence", SUPPORTED),
    KafkaSetting("compression.type", SUPPORTED),
    KafkaSetting("compression.gzip.level", SUPPORTED),
    KafkaSetting("compression.lz4.level", SUPPORTED),
    KafkaSetting("compression.zstd.level", SUPPORTED),
    KafkaSetting("batch.size", PARTLY,
                 "The default is 65536, and grows. A given value may not be above `max.request.size`."),
    KafkaSetting("linger.ms", PARTLY, f"Takes fractions. {_LONG}"),
    KafkaSetting("buffer.memory", PARTLY, "From 1 MiB to 4 GiB, and at least `max.request.size`."),
    KafkaSetting("max.block.ms", PARTLY, _LONG),
    KafkaSetting("max.request.size", PARTLY, "From 1 byte to 1 GiB."),
    KafkaSetting("delivery.timeout.ms", SUPPORTED),
    KafkaSetting("request.timeout.ms", PARTLY, "At least 1 ms: with 0, every request would expire."),
    KafkaSetting("retries", SUPPORTED),
    KafkaSetting("retry.backoff.ms", PARTLY, _SHORTEST),
    KafkaSetting("retry.backoff.max.ms", PARTLY, _SHORTEST),
    KafkaSetting("reconnect.backoff.ms", PARTLY, _SHORTEST),
    KafkaSetting("reconnect.backoff.max.ms", PARTLY, _SHORTEST),
    KafkaSetting("max.in.flight.requests.per.connection", SUPPORTED),
    KafkaSetting("connections.max.idle.ms", PARTLY, f"0 to 999 ms count as one second. {_LONG}"),
    KafkaSetting("send.buffer.bytes", SUPPORTED),
    KafkaSetting("receive.buffer.bytes", SUPPORTED),
    KafkaSetting("metadata.max.age.ms", PARTLY, _LONG),
    KafkaSetting("partitioner.class", PARTLY, "An object of Python, or `round_robin` (also under Java's name)."),
    KafkaSetting("partitioner.ignore.keys", SUPPORTED),
    KafkaSetting("partitioner.adaptive.partitioning.enable", SUPPORTED),
    KafkaSetting("partitioner.availability.timeout.ms", PARTLY, f"0 means a time from 100 ms to 1 s. {_LONG}"),
    KafkaSetting("interceptor.classes", PARTLY, "Objects of Python. Not called for arrays."),
    # connections and metadata
    KafkaSetting("client.dns.lookup", SUPPORTED),
    KafkaSetting("socket.connection.setup.timeout.ms", PARTLY, f"At least 100 ms. {_LONG}"),
    KafkaSetting("socket.connection.setup.timeout.max.ms", PARTLY, f"At least 100 ms. {_LONG}"),
    KafkaSetting("metadata.max.idle.ms", PARTLY, _LONG),
    KafkaSetting("metadata.recovery.strategy", SUPPORTED),
    KafkaSetting("metadata.recovery.rebootstrap.trigger.ms", PARTLY, f"At least one second. {_LONG}"),
    # transactions
    KafkaSetting("transactional.id", PARTLY, "At most 255 bytes in UTF-8."),
    KafkaSetting("transaction.timeout.ms", PARTLY, "At least 1 ms."),
    # metrics
    KafkaSetting("metric.reporters", REFUSED, _NO_METRICS, ([], (), "")),
    KafkaSetting("metrics.num.samples", PARTLY, "From 1 to 10. What concerns connections always has 2 windows."),
    KafkaSetting("metrics.recording.level", REFUSED, _NO_METRICS),
    KafkaSetting("metrics.sample.window.ms", PARTLY,
                 "From 1 to 2147483647 ms. What concerns connections always has windows of 30 s, because processes "
                 "share them."),
    KafkaSetting("enable.metrics.push", PARTLY, "The sender pushes the sums of all its processes."),
    # what Java alone has, and what is not built
    KafkaSetting("config.providers", REFUSED, "a program of Python reads its secrets itself", ([], (), "")),
    KafkaSetting("security.providers", REFUSED, "security providers are classes of Java", ("",)),
    KafkaSetting("transaction.two.phase.commit.enable", REFUSED, "two-phase commit (KIP-939) is not supported yet",
                 (False, "false")),
    *KAFKA_SECURITY_SETTINGS,
)
# fmt: on

_REFUSED = {row.name: row for row in KAFKA_SETTINGS if row.status == REFUSED}
_OF_OTHER_CLIENTS = {row.name: row for row in OF_OTHER_CLIENTS}


def refused_setting(name: str) -> KafkaSetting | None:
    """Return the row of a refused setting, by its name in either spelling. None: Kafka's 4.3 has no such name."""
    return _REFUSED.get(name.replace("_", "."))


def other_clients_setting(name: str) -> KafkaSetting | None:
    """Return the row of a setting of TLS or SASL that only another client has, by its name in either spelling."""
    return _OF_OTHER_CLIENTS.get(name.replace("_", "."))


def asks_for_nothing(name: str, value: Any) -> bool:
    """Return whether this value of a refused setting can be accepted, because it asks for nothing."""
    row = refused_setting(name) or other_clients_setting(name)
    if row is None:
        return False
    return value is None or any(type(value) is type(each) and value == each for each in row.accepted)
