"""Declares what a table of a message consists of: fields, and the versions that have them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .fields import REQUIRED

NEVER = 32767
"""The first version of something that no version has; no version number is this high."""


class Field(NamedTuple):
    """A field of a message, which exists from version `first` to version `last`.

    `type` is the name of a primitive type or "struct", with "[]" in front for an array. `nullable` is the first version
    that allows null, `tag` the number of a tagged field. `default` is the value in a version without the field, or if
    the caller gives none. If `ignorable` is true, a version without the field drops its value silently.
    """

    name: str
    type: str
    first: int = 0
    last: int = NEVER - 1
    nullable: int = NEVER
    tag: int | None = None
    default: Any = REQUIRED
    ignorable: bool = False
    fields: Sequence["Field"] = ()


class Message(NamedTuple):
    """A request or response: its API, the first and last version in the table, and the first flexible version."""

    name: str
    api_key: int
    first: int
    last: int
    flexible: int
    fields: Sequence[Field]
