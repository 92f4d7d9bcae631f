"""Defines a row of the list of Kafka's settings."""

from typing import Any, NamedTuple

__all__ = ["PARTLY", "REFUSED", "SUPPORTED", "KafkaSetting"]

SUPPORTED, PARTLY, REFUSED = "supported", "supported, with a difference", "refused"


class KafkaSetting(NamedTuple):
    """A row of the list. `name` is Kafka's.

    `note` says what is different from Kafka, or why the setting is refused. `accepted` has the values of a refused
    setting that ask for nothing: they are accepted and have no effect.
    """

    name: str
    status: str
    note: str = ""
    accepted: tuple[Any, ...] = ()
