"""Defines a row of the table of settings."""

from typing import Any, NamedTuple

from cyproducer.config.kinds import Kind

__all__ = ["BOTH", "FRONT_END", "SENDER", "Setting", "row"]

FRONT_END, SENDER, BOTH = "front-end", "sender", "both"


class Setting(NamedTuple):
    """A row of the table. `side` is the process that uses the setting.

    secret      the value is in no error message, repr or identity of a sender
    shown       error messages and repr may show the value; not if it is long, or may be a secret by mistake
    attribute   `Settings` has an attribute of this name; else the value becomes the value of other settings
    """

    name: str
    default: Any
    kind: Kind
    side: str
    meaning: str
    kafka_name: str
    supported: bool
    secret: bool
    shown: bool
    attribute: bool


def row(
    name: str,
    default: Any,
    kind: Kind,
    side: str,
    meaning: str,
    *,
    kafka_name: str = "",
    secret: bool = False,
    shown: bool = True,
    attribute: bool = True,
) -> Setting:
    """Return a row. Without `kafka_name`, Kafka's name is the name with dots."""
    kafka_name = kafka_name or name.replace("_", ".")
    return Setting(name, default, kind, side, meaning, kafka_name, True, secret, shown and not secret, attribute)
