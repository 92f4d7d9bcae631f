"""Checks the settings of the functions `write` and `exactly_once`, which are passed to Spark's workers."""

from __future__ import annotations

from typing import Any

from cyproducer.config.kinds import is_topic_name
from cyproducer.errors import KafkaConfigurationError
from cyproducer.spark.options import REFUSED, TOPIC_NAMES

__all__ = ["checked_topic", "plain_settings", "transactional"]


def checked_topic(topic: str | None) -> str | None:
    """Return the topic. Raise KafkaConfigurationError if it is no name of a topic."""
    if topic is not None and (not isinstance(topic, str) or not is_topic_name(topic)):
        raise KafkaConfigurationError(f"topic is {topic!r}; {TOPIC_NAMES}")
    return topic


def plain_settings(settings: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the settings as the workers need them: they are pickled, and choose the producer that a worker keeps.

    Raise KafkaConfigurationError for one that `where`, a function of this package, does not support.
    """
    return {name: _plain(name, value, where) for name, value in settings.items()}


def transactional(name: str, timeout_ms: Any) -> dict[str, Any]:
    """Return the transactional settings of a transactional id, and of a timeout that may be None."""
    return {"transactional_id": name} | ({} if timeout_ms is None else {"transaction_timeout_ms": timeout_ms})


def _plain(name: str, value: Any, where: str) -> Any:
    dotted = name.replace("_", ".")
    if dotted in REFUSED:
        raise KafkaConfigurationError(f"{name} is not supported by {where}: {REFUSED[dotted]}")
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if value is not None and not isinstance(value, str | int | float):
        raise KafkaConfigurationError(
            f"{name} must be text, a number, True, False or None in {where}, not {type(value).__name__}: "
            "it is passed to the workers of Spark"
        )
    return value
