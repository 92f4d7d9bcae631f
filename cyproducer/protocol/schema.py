"""Makes the types of messages from the table of Kafka's definitions: ``schema`` returns the body in one version.

A message is read from the table when it is first used. A version that lacks a field decodes it to its default, or to
zero, false, empty or nothing, as Java does. To encode a field that the version has, a caller must give a value, unless
the definition has a default, or the field is tagged, or ignorable.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple

from .apis import APIS, NEVER, Api
from .fields import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    INT64,
    REQUIRED,
    UUID,
    ZERO_UUID,
    Array,
    Bytes,
    Member,
    String,
    Struct,
    Type,
)
from .kafka_messages import MESSAGES, ApiKey

SIMPLE: dict[str, Type] = {
    "int8": INT8,
    "int16": INT16,
    "int32": INT32,
    "int64": INT64,
    "bool": BOOLEAN,
    "uuid": UUID,
}
ZEROS: dict[str, Any] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 0),
    "bool": False,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
}
CONSTANTS: dict[str, Any] = {"null": None, "true": True, "false": False, '""': ""}
ABSENT = Type()
"""The type of a field in a version that does not have it: it can neither be encoded nor decoded."""


class Field(NamedTuple):
    """A field of a message, which exists from version `first` to version `last`.

    `type` is the name of a primitive type or "struct", with "[]" in front for an array. `nullable` is the first version
    that allows null, `tag` the number of a tagged field. If `ignorable` is true, a version without the field drops its
    value silently.
    """

    name: str
    type: str
    first: int
    last: int
    nullable: int
    tag: int | None
    default: Any
    ignorable: bool
    fields: Sequence["Field"]

    def is_in(self, version: int) -> bool:
        """Return whether the version has the field."""
        return self.first <= version <= self.last

    def value_without(self) -> Any:
        """Return the value if the message does not contain the field."""
        if self.default is not REQUIRED:
            return self.default
        if self.type.startswith("[]"):
            return []
        if self.type == "struct":
            return {field.name: field.value_without() for field in self.fields}
        return ZEROS[self.type]


class Message:
    """A request or a response: its API, the versions that cyproducer uses, and the first flexible version."""

    def __init__(self, kind: str, api: Api, api_key: ApiKey, flexible: int, lines: str) -> None:
        self.name = api.name + kind.title()
        self.api = api
        self.api_key = api_key
        self.first = api.first
        self.last = api.last
        self.flexible = flexible
        self._lines = lines

    @cached_property
    def fields(self) -> Sequence[Field]:
        """The fields that one of the versions has."""
        levels: list[list[Field]] = [[]]
        for line in self._lines.splitlines():
            depth = (len(line) - len(line.lstrip())) // 2 - 1
            inner: list[Field] = []
            field = _field(line.split(), inner)
            del levels[depth + 1 :]
            levels.append(inner)
            if field.first <= self.last and field.last >= self.first:
                levels[depth].append(field)
        return levels[0]

    def field(self, name: str) -> Field:
        """Return a field of the body by its name."""
        return next(field for field in self.fields if field.name == name)


def _versions(text: str) -> tuple[int, int]:
    """Return the first and last version of "3-13", "3+" or "3"; (NEVER, NEVER) of "none"."""
    if text == "none":
        return NEVER, NEVER
    first, _, last = text.removesuffix("+").partition("-")
    return int(first), NEVER if text.endswith("+") else int(last or first)


def _field(words: list[str], inner: Sequence[Field]) -> Field:
    """Return the field of a line of the table: name, type and versions, then the words that it needs."""
    nullable, tag, default, ignorable = NEVER, None, REQUIRED, False
    rest = iter(words[3:])
    for word in rest:
        if word == "nullable":
            nullable, _ = _versions(next(rest))
        elif word == "tag":
            tag = int(next(rest))
        elif word == "default":
            given = next(rest)
            default = CONSTANTS[given] if given in CONSTANTS else int(given)
        else:
            ignorable = True
    return Field(words[0], words[1], *_versions(words[2]), nullable, tag, default, ignorable, inner)


def _tables() -> tuple[dict[int, Message], dict[int, Message]]:
    """Return the requests and the responses by the keys of their APIs."""
    apis = {api.name: api for api in APIS}
    tables: dict[str, dict[int, Message]] = {"request": {}, "response": {}}
    for block in MESSAGES.split("\n\n"):
        head, _, lines = block.partition("\n")
        kind, number, name, *_, flexible = head.split()
        key = ApiKey(int(number))
        tables[kind][key] = Message(kind, apis[name], key, _versions(flexible)[0], lines)
    return tables["request"], tables["response"]


REQUESTS, RESPONSES = _tables()
ROWS: dict[int, Api] = {key: message.api for key, message in REQUESTS.items()}
"""The row of each API."""
SUPPORTED: dict[int, tuple[int, int]] = {key: (row.first, row.last) for key, row in ROWS.items()}
"""The first and last version of each API that cyproducer uses."""


def _type_of(field: Field, version: int, flexible: bool, name: str | None = None) -> Type:
    """Return the type of a field in one version; `name` replaces the field's type (for the element of an array)."""
    kind = field.type if name is None else name
    # Only the outermost type of a field can be null: no Kafka message has an array of nullable items.
    nullable = name is None and version >= field.nullable
    if kind.startswith("[]"):
        return Array(_type_of(field, version, flexible, kind[2:]), flexible, nullable)
    if kind == "struct":
        return _struct_of(field.fields, version, flexible)
    if kind == "string":
        return String(flexible, nullable)
    if kind in ("bytes", "records"):
        return Bytes(flexible, nullable)
    return SIMPLE[kind]


def _struct_of(fields: Sequence[Field], version: int, flexible: bool) -> Struct:
    """Return the struct of `fields` in `version`."""
    members = []
    for field in fields:
        present = field.is_in(version)
        kind = _type_of(field, version, flexible) if present else ABSENT
        optional = not present or field.tag is not None or field.ignorable
        default = field.value_without() if optional else field.default
        members.append(Member(field.name, kind, default, field.tag, present, field.ignorable))
    return Struct(members, flexible)


@cache
def schema(message: Message, version: int) -> Struct:
    """Return the body of a message in `version`. Raise KeyError if cyproducer does not use the version."""
    if not message.first <= version <= message.last:
        raise KeyError(f"{message.name} v{version}")
    return _struct_of(message.fields, version, version >= message.flexible)


def field_type(message: Message, name: str, version: int) -> Type:
    """Return the type of a field of a message's body."""
    return _type_of(message.field(name), version, version >= message.flexible)


def first_version(api: ApiKey, name: str) -> int:
    """Return the first version of an API whose request has the field."""
    return REQUESTS[api].field(name).first
