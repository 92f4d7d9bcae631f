"""Options of ``format("cyproducer")`` as the producer's settings, checked on the driver before any task."""

from __future__ import annotations

import difflib

from cyproducer.config import SETTINGS, Settings
from cyproducer.errors import KafkaConfigurationError
from cyproducer.kinds import is_topic_name

PREFIX = "kafka."
OWN = ("topic", "includeHeaders", "sender")

SPARK = frozenset({"path", "checkpointlocation", "queryname"})
"""What Spark itself puts among a sink's options; none of it is ours."""

REFUSED = {
    "key.serializer": "keys are sent as they are; convert the column 'key' with DataFrame operations",
    "value.serializer": "values are sent as they are; convert the column 'value' with DataFrame operations",
    "interceptor.classes": "change the rows with DataFrame operations instead",
    "interceptors": "change the rows with DataFrame operations instead",
    "transactional.id": "this sink delivers at least once and opens no transactions",
    "transaction.timeout.ms": "this sink delivers at least once and opens no transactions",
}
"""Producer settings that mean nothing here, by dotted name, with the reason: none is ignored in silence."""


def parse_options(options: dict[str, str]) -> tuple[dict[str, str], str | None]:
    """Split Spark's options (keys in any case) into producer settings (Kafka's dotted names) and the topic.

    Raise KafkaConfigurationError for an option that is unknown, refused, or has a wrong value, and when
    neither brokers nor a sender are named. An unknown option's value is never printed: it may be a secret.
    """
    settings: dict[str, str] = {}
    topic = None
    for name, value in sorted((name.lower(), value) for name, value in options.items()):
        if name == "sender" or name.startswith(PREFIX):
            setting = _setting(name)
            if setting in settings:
                raise KafkaConfigurationError(f"the option 'kafka.{setting}' is given in two spellings")
            settings[setting] = value
        elif name == "topic":
            topic = _topic(value)
        elif name == "includeheaders":
            _boolean("includeHeaders", value)
        elif name not in SPARK:
            raise _unknown(name)
    if "sender" not in settings and "bootstrap.servers" not in settings:
        raise KafkaConfigurationError(
            "the option 'kafka.bootstrap.servers' is missing: give the brokers as host:port, separated by "
            "commas (or 'sender', the socket of a sender that was started on purpose)"
        )
    _check(settings)
    return settings, topic


def _check(settings: dict[str, str]) -> None:
    """Names and values of the ``kafka.*`` options, by the producer's own rules."""
    try:
        Settings.parse(**settings)
    except KafkaConfigurationError as error:
        raise KafkaConfigurationError(f"among the options 'kafka.*': {error}") from None


def _unknown(name: str) -> KafkaConfigurationError:
    known = {option.lower(): option for option in OWN}
    settings = [PREFIX + row.kafka_name for row in SETTINGS if not row.name.endswith("*")]
    known |= dict(zip(settings, settings, strict=True))
    dotted = PREFIX + name.replace("_", ".")
    nearest = [dotted] if dotted in known else difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{known[nearest[0]]}'?" if nearest else "."
    return KafkaConfigurationError(
        f"'{name}' is not an option of the Kafka sink 'cyproducer'{hint} Its options are {', '.join(OWN)}, "
        "and Kafka's producer settings with the prefix 'kafka.'"
    )


def _setting(option: str) -> str:
    """The dotted name of the producer's setting; an error for one that means nothing in Spark."""
    name = option.removeprefix(PREFIX).replace("_", ".")
    if name in REFUSED:
        raise KafkaConfigurationError(
            f"the option 'kafka.{name}' is not supported by the Spark sink: {REFUSED[name]}"
        )
    return name


def _topic(value: str) -> str:
    # Trimmed, as Spark's own sink does; what Kafka would refuse row by row is refused here once.
    topic = value.strip()
    if not is_topic_name(topic):
        raise KafkaConfigurationError(
            f"the option 'topic' is {value!r}; a topic's name has 1 to 249 of the characters a-z, A-Z, 0-9, "
            "'.', '_' and '-', and is not '.' or '..'"
        )
    return topic


def _boolean(option: str, value: str) -> None:
    # Spark's own sink sends a column 'headers' whatever this option says, and so does this one.
    if value.strip().lower() not in ("true", "false"):
        raise KafkaConfigurationError(f"the option '{option}' is {value!r}; allowed are true and false")
