"""Encodes and decodes the types of Kafka's protocol: primitive types, arrays, structs and tagged fields.

Every decoder checks its bounds before it reads, and every encoder checks the range before it writes. For any input,
the only exception is ``ProtocolError``, which names the field. Source of the layouts: the "Protocol Primitive Types"
section of Kafka's protocol guide, and KIP-482 for the compact forms.
"""

import copy
import struct
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ZERO_UUID = uuid.UUID(int=0)


class ProtocolError(Exception):
    """Bytes violate the protocol, or a value cannot be encoded.

    ``field`` is the path of the field ("topics[0].name"), empty if the error does not belong to a field.
    """

    def __init__(self, reason: str, field: str = "") -> None:
        super().__init__(reason, field)
        self.reason = reason
        self.field = field

    def inside(self, outer: str) -> "ProtocolError":
        """Prefix the path with the struct, array or message that holds the field, and return the same error."""
        joint = "" if not self.field or self.field.startswith("[") else "."
        self.field = outer + joint + self.field
        return self

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


class Reader:
    """A cursor over bytes that raises ProtocolError instead of reading past their end."""

    __slots__ = ("data", "end", "position")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = bytes(data)
        self.position = position
        self.end = len(self.data)

    @property
    def left(self) -> int:
        return self.end - self.position

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes. Raise ProtocolError if fewer are left."""
        start = self.position
        if count > self.end - start:
            raise ProtocolError(f"needs {count} bytes, {self.end - start} left")
        self.position = start + count
        return self.data[start : self.position]


class Type:
    """A type of the protocol: ``decode(reader)`` returns a Python value, ``encode(out, value)`` appends its bytes."""

    def decode(self, reader: Reader) -> Any:
        raise NotImplementedError

    def encode(self, out: bytearray, value: Any) -> None:
        raise NotImplementedError


INTEGER_FORMATS = {1: ">b", 2: ">h", 4: ">i", 8: ">q"}


class Integer(Type):
    """Signed big-endian integer of 1, 2, 4 or 8 bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.format = struct.Struct(INTEGER_FORMATS[size])
        self.limit = 1 << (8 * size - 1)

    def decode(self, reader: Reader) -> int:
        value: int = self.format.unpack(reader.read(self.size))[0]
        return value

    def encode(self, out: bytearray, value: Any) -> None:
        if type(value) is bool or not isinstance(value, int):
            raise ProtocolError(f"{value!r} is not an int")
        if not -self.limit <= value < self.limit:
            raise ProtocolError(f"{value} does not fit into int{8 * self.size}")
        out += self.format.pack(value)


class Boolean(Type):
    """One byte; every value except 0 is true."""

    def decode(self, reader: Reader) -> bool:
        return reader.read(1) != b"\0"

    def encode(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, bool):
            raise ProtocolError(f"{value!r} is not a bool")
        out.append(value)


class Uuid(Type):
    """16 bytes, most significant first; a ``uuid.UUID`` in Python. All zero means "no id"."""

    def decode(self, reader: Reader) -> uuid.UUID:
        return uuid.UUID(bytes=reader.read(16))

    def encode(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, uuid.UUID):
            raise ProtocolError(f"{value!r} is not a uuid.UUID")
        out += value.bytes


class Uvarint(Type):
    """Unsigned 32-bit integer with seven bits per byte, least significant first: at most five bytes."""

    def decode(self, reader: Reader) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = reader.read(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >= 1 << 32:
                    break
                return value
        raise ProtocolError("an unsigned varint is longer than 32 bits")

    def encode(self, out: bytearray, value: Any) -> None:
        if type(value) is bool or not isinstance(value, int) or not 0 <= value < 1 << 32:
            raise ProtocolError(f"{value!r} is not an unsigned 32-bit integer")
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)


INT8, INT16, INT32, INT64 = Integer(1), Integer(2), Integer(4), Integer(8)
BOOLEAN, UUID, UVARINT = Boolean(), Uuid(), Uvarint()


class Length:
    """The length before strings, bytes and arrays: int16 or int32 with -1 for null, or uvarint n + 1 (0 for null)."""

    def __init__(self, fixed: Integer, compact: bool, nullable: bool) -> None:
        self.fixed = fixed
        self.compact = compact
        self.nullable = nullable

    def decode(self, reader: Reader) -> int | None:
        """Return the length, or None for null. It is at most the number of bytes left: each item has at least one."""
        count = UVARINT.decode(reader) - 1 if self.compact else self.fixed.decode(reader)
        if count == -1 and self.nullable:
            return None
        if count < 0:
            raise ProtocolError("null is not allowed here" if count == -1 else f"negative length {count}")
        if count > reader.left:
            raise ProtocolError(f"length {count} exceeds the {reader.left} bytes left")
        return count

    def encode(self, out: bytearray, count: int | None) -> None:
        if count is None and not self.nullable:
            raise ProtocolError("null is not allowed here")
        plain = -1 if count is None else count
        if self.compact:
            UVARINT.encode(out, plain + 1)
        else:
            self.fixed.encode(out, plain)


class String(Type):
    """UTF-8 text: int16 length (-1 null), or compact."""

    def __init__(self, compact: bool = False, nullable: bool = False) -> None:
        # The compact form allows longer strings, but Kafka limits both forms to the range of int16.
        self.length = Length(INT16, compact, nullable)

    def decode(self, reader: Reader) -> str | None:
        count = self.length.decode(reader)
        if count is None:
            return None
        try:
            return reader.read(count).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ProtocolError(f"not UTF-8: {error.reason}") from None

    def encode(self, out: bytearray, value: Any) -> None:
        if value is None:
            self.length.encode(out, None)
            return
        if not isinstance(value, str):
            raise ProtocolError(f"{value!r} is not a str")
        try:
            data = value.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ProtocolError(f"not encodable as UTF-8: {error.reason}") from None
        if len(data) > 32767:
            raise ProtocolError(f"the string has {len(data)} bytes; at most 32767 are allowed")
        self.length.encode(out, len(data))
        out += data


class Bytes(Type):
    """Bytes (Kafka's BYTES and RECORDS): int32 length (-1 null), or compact."""

    def __init__(self, compact: bool = False, nullable: bool = False) -> None:
        self.length = Length(INT32, compact, nullable)

    def decode(self, reader: Reader) -> bytes | None:
        count = self.length.decode(reader)
        return None if count is None else reader.read(count)

    def encode(self, out: bytearray, value: Any) -> None:
        if value is None:
            self.length.encode(out, None)
            return
        if not isinstance(value, bytes | bytearray | memoryview):
            raise ProtocolError(f"{type(value).__name__} is not bytes")
        data = bytes(value)
        self.length.encode(out, len(data))
        out += data


class Array(Type):
    """A list of one type: int32 count (-1 null), or compact."""

    def __init__(self, element: Type, compact: bool = False, nullable: bool = False) -> None:
        self.element = element
        self.length = Length(INT32, compact, nullable)

    def decode(self, reader: Reader) -> list[Any] | None:
        count = self.length.decode(reader)
        if count is None:
            return None
        values = []
        for index in range(count):
            try:
                values.append(self.element.decode(reader))
            except ProtocolError as error:
                raise error.inside(f"[{index}]") from None
        return values

    def encode(self, out: bytearray, value: Any) -> None:
        if value is None:
            self.length.encode(out, None)
            return
        if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
            raise ProtocolError(f"{type(value).__name__} is not a list")
        self.length.encode(out, len(value))
        for index, item in enumerate(value):
            try:
                self.element.encode(out, item)
            except ProtocolError as error:
                raise error.inside(f"[{index}]") from None


REQUIRED: Any = object()
"""The default of a field without a default: the caller must give a value."""


class Member(NamedTuple):
    """A field of a struct in one version; `present` is false if this version does not have the field."""

    name: str
    type: Type
    default: Any = REQUIRED
    tag: int | None = None
    present: bool = True
    ignorable: bool = False


class Struct(Type):
    """Fields in order, as a dict by name. A flexible struct ends with the tagged fields.

    The decoded dict contains every field that has a default, so that its keys do not depend on the version. Encoding
    refuses unknown names and missing values without a default. Like Kafka, it also refuses a value other than the
    default for a field that this version does not have, unless the field is ignorable.
    """

    def __init__(self, members: Sequence[Member], flexible: bool = False) -> None:
        self.flexible = flexible
        self.names = frozenset(member.name for member in members)
        self.plain = [member for member in members if member.present and member.tag is None]
        self.tagged = {member.tag: member for member in members if member.present and member.tag is not None}
        self.absent = [member for member in members if not member.present]

    def decode(self, reader: Reader) -> dict[str, Any]:
        values = {}
        for member in self.plain:
            try:
                values[member.name] = member.type.decode(reader)
            except ProtocolError as error:
                raise error.inside(member.name) from None
        for member in (*self.tagged.values(), *self.absent):
            if member.default is not REQUIRED:
                values[member.name] = copy.deepcopy(member.default)
        if self.flexible:
            for tag, data in decode_tagged(reader):
                known = self.tagged.get(tag)
                if known is not None:
                    values[known.name] = decode_exactly(known.type, data, known.name)
        return values

    def encode(self, out: bytearray, value: Any) -> None:
        if not isinstance(value, Mapping):
            raise ProtocolError(f"{type(value).__name__} is not a mapping")
        unknown = sorted(map(repr, set(value) - self.names))
        if unknown:
            raise ProtocolError(f"unknown field {', '.join(unknown)}")
        for member in self.absent:
            given = value.get(member.name, member.default)
            if given is not member.default and given != member.default and not member.ignorable:
                raise ProtocolError("this version does not have the field", member.name)
        for member in self.plain:
            self.encode_member(out, member, value)
        if self.flexible:
            self.encode_tagged(out, value)

    @staticmethod
    def encode_member(out: bytearray, member: Member, value: Mapping[str, Any]) -> None:
        """Append one field. Raise ProtocolError with its name."""
        given = value.get(member.name, member.default)
        if given is REQUIRED:
            raise ProtocolError("a value is required", member.name)
        try:
            member.type.encode(out, given)
        except ProtocolError as error:
            raise error.inside(member.name) from None

    def encode_tagged(self, out: bytearray, value: Mapping[str, Any]) -> None:
        """Append the tagged fields that differ from their default, in the order of their tags."""
        present = [
            (tag, member)
            for tag, member in sorted(self.tagged.items())
            if value.get(member.name, member.default) != member.default
        ]
        UVARINT.encode(out, len(present))
        for tag, member in present:
            data = bytearray()
            self.encode_member(data, member, value)
            UVARINT.encode(out, tag)
            UVARINT.encode(out, len(data))
            out += data


def decode_tagged(reader: Reader) -> list[tuple[int, bytes]]:
    """Return all tagged fields, known and unknown, as (tag, bytes)."""
    fields = []
    try:
        count = UVARINT.decode(reader)
        if 2 * count > reader.left:
            raise ProtocolError(f"{count} tagged fields exceed the {reader.left} bytes left")
        for _ in range(count):
            tag = UVARINT.decode(reader)
            fields.append((tag, reader.read(UVARINT.decode(reader))))
    except ProtocolError as error:
        raise error.inside("tagged fields") from None
    return fields


def decode_exactly(kind: Type, data: bytes, name: str, position: int = 0, exact: bool = True) -> Any:
    """Decode one value from `data` at `position`, and return it.

    With `exact`, bytes left over raise ProtocolError. The path of each error begins with `name`.
    """
    reader = Reader(data, position)
    try:
        value = kind.decode(reader)
        if exact and reader.left:
            raise ProtocolError(f"{reader.left} bytes left over")
    except ProtocolError as error:
        raise error.inside(name) from None
    return value
