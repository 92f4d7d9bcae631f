"""Converts the options of ``format("cyproducer")`` to producer settings; checks them on the driver before any task."""

from __future__ import annotations

import difflib

from cyproducer.config.kinds import TOPIC_NAME_MAX, is_topic_name
from cyproducer.config.secrets import conceal
from cyproducer.config.settings import Settings
from cyproducer.config.table import OTHER_SPELLINGS, SETTINGS
from cyproducer.errors import KafkaConfigurationError

PREFIX = "kafka."
GUARANTEE = "delivery.guarantee"
OWN = ("topic", "includeHeaders", "sender", GUARANTEE)

ASYNC_PROGRESS = "asyncProgressTrackingEnabled"
SPARK = {
    name.lower(): name
    for name in ("path", "checkpointLocation", "queryName", ASYNC_PROGRESS, "asyncProgressTrackingCheckpointIntervalMs")
}
"""Options of a query, by lower-case name, which Spark gives to its sink. The sink ignores them."""

CONSUMER = (
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "check.crcs",
    "default.api.timeout.ms",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.id",
    "group.instance.id",
    "group.protocol",
    "group.remote.assignor",
    "heartbeat.interval.ms",
    "isolation.level",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "share.acknowledgement.mode",
    "share.acquire.mode",
)
"""Settings of Kafka's consumer that its producer does not have, without those that Spark's Kafka source refuses."""

SOURCE = {
    name.lower(): name
    for name in (
        "assign",
        "subscribe",
        "subscribePattern",
        "startingOffsets",
        "endingOffsets",
        "startingTimestamp",
        "endingTimestamp",
        "startingOffsetsByTimestamp",
        "endingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "failOnDataLoss",
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "groupIdPrefix",
        *(PREFIX + name for name in CONSUMER),
    )
}
"""Options of Spark's Kafka source, by lower-case name. Applications often give the same options to source and sink."""

_TRANSACTIONS = "transactions are made by write(df, atomic=True) and by exactly_once() of cyproducer.spark"
REFUSED = {
    "key.serializer": "keys are sent unchanged; convert the column 'key' with DataFrame operations",
    "value.serializer": "values are sent unchanged; convert the column 'value' with DataFrame operations",
    "interceptor.classes": "change the rows with DataFrame operations instead",
    "interceptors": "change the rows with DataFrame operations instead",
    "transactional.id": _TRANSACTIONS,
    "transaction.timeout.ms": _TRANSACTIONS,
}
"""Producer settings that the sink does not support, by dotted name, with the reason. None is ignored silently."""

#: Spark hides the value of an option if name or value match its spark.redaction.regex: by default secret, password,
#: token, access.key. So it hides every other secret, since `sasl.jaas.config` has one of these words in its value.
SHOWN_BY_SPARK = {"ssl_keydata"}

_WITHOUT_PREFIX = SPARK | SOURCE | {name.lower(): name for name in OWN if name != "sender"}
"""Options of the sink, of Spark's Kafka source and of a query, by lower-case name."""

TOPIC_NAMES = (
    f"the name of a topic has 1 to {TOPIC_NAME_MAX} of the characters a-z, A-Z, 0-9, '.', '_' and '-', and is not "
    "'.' or '..'"
)


def parse_options(options: dict[str, str]) -> tuple[dict[str, str], str | None]:
    """Split Spark's options (keys in any case) into producer settings (Kafka's dotted names) and the topic.

    Raise KafkaConfigurationError for an option that is unknown, refused, or has a wrong value, and if there are
    neither brokers nor a sender. The value of an unknown option is never shown, because it may be a secret. The files
    that the settings name must be on the hosts of the executors, and need not be here.
    Options of Spark's Kafka source are skipped; `source_options` returns them.
    """
    options = conceal(options)
    settings: dict[str, str] = {}
    topic = None
    for name, value in sorted((name.lower(), value) for name, value in options.items()):
        if name in SOURCE:
            continue
        if name == "sender" or name.startswith(PREFIX):
            setting = _setting(name)
            if setting in settings:
                raise KafkaConfigurationError(f"the option 'kafka.{setting}' is given in two spellings")
            settings[setting] = value
        elif name == "topic":
            topic = _topic(value)
        elif name == "includeheaders":
            _boolean("includeHeaders", value)
        elif name == GUARANTEE:
            _at_least_once(value)
        elif name == ASYNC_PROGRESS.lower():
            _no_async_progress(value)
        elif name not in SPARK:
            raise _unknown(name)
    if "sender" not in settings and "bootstrap.servers" not in settings:
        raise KafkaConfigurationError(
            "the option 'kafka.bootstrap.servers' is missing: give the brokers as host:port, separated by "
            "commas, or give the option 'sender', the socket of a running sender"
        )
    _check(settings)
    return settings, topic


def source_options(options: dict[str, str]) -> tuple[str, ...]:
    """Return the given options that only Spark's Kafka source uses, in Spark's spelling."""
    return tuple(sorted(SOURCE[name] for name in map(str.lower, options) if name in SOURCE))


def _check(settings: dict[str, str]) -> None:
    """Check names and values of the ``kafka.*`` options by the rules of the producer."""
    try:
        Settings.parse_for_other_host(**settings)
    except KafkaConfigurationError as error:
        raise KafkaConfigurationError(f"among the options 'kafka.*': {error}") from None


def _unknown(name: str) -> KafkaConfigurationError:
    known = {option.lower(): option for option in OWN}
    settings = [PREFIX + row.kafka_name for row in SETTINGS]
    known |= dict(zip(settings, settings, strict=True))
    dotted = PREFIX + name.replace("_", ".")
    nearest = [dotted] if dotted in known else difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{known[nearest[0]]}'?" if nearest else "."
    return KafkaConfigurationError(
        f"'{name}' is not an option of the Kafka sink 'cyproducer'{hint} Its options are {', '.join(OWN)}, "
        "and Kafka's producer settings with the prefix 'kafka.'"
    )


def _setting(option: str) -> str:
    """Return the dotted name of the producer's setting. Raise KafkaConfigurationError if the sink refuses it."""
    plain = option.removeprefix(PREFIX)
    if option.startswith(PREFIX) and (plain in _WITHOUT_PREFIX or plain.startswith(PREFIX)):
        raise KafkaConfigurationError(
            f"'{option}' is not an option of the Kafka sink 'cyproducer'; did you mean "
            f"'{_WITHOUT_PREFIX.get(plain, plain)}', without 'kafka.'?"
        )
    name = plain.replace("_", ".")
    if name in REFUSED:
        raise KafkaConfigurationError(f"the option 'kafka.{name}' is not supported by the Spark sink: {REFUSED[name]}")
    plain = name.replace(".", "_")
    if OTHER_SPELLINGS.get(plain, plain) in SHOWN_BY_SPARK:
        raise KafkaConfigurationError(
            f"the option 'kafka.{name}' is a private key, which Spark may show in plans, in its event log and in its "
            "pages, because its redaction does not know this name. Give a file that the executors can read, as "
            "kafka.ssl.keystore.location or kafka.ssl.key.location, or use the function write() of cyproducer.spark"
        )
    return name


def _topic(value: str) -> str:
    # The name is trimmed, as in Spark's own sink. A name that Kafka would refuse for each row is refused here once.
    topic = value.strip()
    if not is_topic_name(topic):
        raise KafkaConfigurationError(f"the option 'topic' is {value!r}; {TOPIC_NAMES}")
    return topic


def _boolean(option: str, value: str) -> None:
    # Spark's own sink sends a column 'headers' independently of this option, and so does this sink.
    if value.strip().lower() not in ("true", "false"):
        raise KafkaConfigurationError(f"the option '{option}' is {value!r}; use true or false")


def _no_async_progress(value: str) -> None:
    # Spark refuses it for a stream, but not for a batch with the same options.
    if value.strip().lower() != "false":
        raise KafkaConfigurationError(
            f"the option '{ASYNC_PROGRESS}' is {value!r}, and this sink has no asynchronous progress tracking, which "
            "only Spark's own sinks have; leave the option out"
        )


def _at_least_once(value: str) -> None:
    wanted = value.strip().lower()
    if wanted == "exactly-once":
        raise KafkaConfigurationError(
            f"the option '{GUARANTEE}' is exactly-once, but this sink is at least once. Write a stream with "
            "df.writeStream.foreachBatch(cyproducer.spark.exactly_once(id=..., topic=..., bootstrap_servers=...)), and "
            "a batch with cyproducer.spark.write(df, ..., atomic=True)"
        )
    if wanted != "at-least-once":
        raise KafkaConfigurationError(f"the option '{GUARANTEE}' is {value!r}; use at-least-once")
